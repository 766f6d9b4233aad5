//! Temporary directory.

use std::path::Path;
use std::{env, fs, process};

use anyhow::Context;

/// Creates a temporary directory for the duration of `work`. Memory-mapped files stay valid after their removal.
pub(super) fn with<T>(work: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let dir = env::temp_dir().join(format!("waymark-bench-gpu-{}", process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let made = work(&dir);
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    made
}
