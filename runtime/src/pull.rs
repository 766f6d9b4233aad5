//! Weights fetched on demand, behind a progress bar.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;
use waymark_models::pull::{self, Progress, PullOptions};

use crate::environment::variable;
use crate::progress;

/// Resolves `spec` (a catalog name, a hub ID or a path) to a path on this machine and downloads what is missing into
/// `cache`.
///
/// # Errors
/// If the weights cannot be found, downloaded or verified.
pub fn fetch(spec: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    // The variables of `huggingface_hub`, so that a mirror or token set up for Python tools works here too.
    let options = PullOptions { hub: variable("HF_ENDPOINT"), token: variable("HF_TOKEN"), ..PullOptions::default() };
    // Downloads block for minutes; the other tasks of this thread move elsewhere meanwhile.
    Ok(tokio::task::block_in_place(|| pull::pull_with(spec, cache, &options, &Bar::default()))?)
}

/// Progress bar that appears with the first byte.
#[derive(Debug, Default)]
struct Bar(Mutex<Option<ProgressBar>>);

impl Progress for Bar {
    fn update(&self, message: &str, done: u64, total: Option<u64>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Weights that are on disk already report no progress, and a bar would flash for them.
        let bar = shown.get_or_insert_with(progress::bytes);
        bar.set_message(message.to_owned());
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}
