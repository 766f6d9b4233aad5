//! Files that are there for a moment.

use std::path::Path;
use std::{env, fs, process};

use anyhow::Context;

/// Makes a folder among the system's temporary ones for as long as `work` takes. What is mapped stays without its name.
pub(super) fn with<T>(work: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let dir = env::temp_dir().join(format!("waymark-bench-gpu-{}", process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let made = work(&dir);
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    made
}
