//! Errors of the run directory.

use std::io;
use std::path::{Path, PathBuf};

use waymark_models::ModelError;

/// Error returned when the directory of a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An I/O operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Failed operation, as a verb.
        action: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Writing a directory atomically failed.
    #[error(transparent)]
    Folder(#[from] ModelError),
    /// A new run would start in a directory that already holds one.
    #[error("{} already holds a run: resume it or choose another directory", dir.display())]
    Exists {
        /// Directory.
        dir: PathBuf,
    },
    /// A new run would start in a directory that holds other files.
    #[error("{} is not empty and holds no run (no run.toml): choose a new or an empty directory", dir.display())]
    Foreign {
        /// Directory.
        dir: PathBuf,
    },
    /// The directory holds no run.
    #[error("{} holds no run (no run.toml): choose the directory of a training run", dir.display())]
    Missing {
        /// Directory.
        dir: PathBuf,
    },
    /// Another process has locked the directory.
    #[error("another trainer is running in {}: wait for it, stop it, or choose another directory", dir.display())]
    Locked {
        /// Directory.
        dir: PathBuf,
    },
    /// A finished line is not a metrics row.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Description of the problem.
        reason: String,
    },
    /// A metrics row has a smaller step than the row before it.
    #[error("a row of step {step} cannot follow a row of step {last}: steps must not decrease within a run")]
    Order {
        /// Step of the rejected row.
        step: u64,
        /// Step of the last written row.
        last: u64,
    },
    /// A metric uses the name of another field of its row.
    #[error("a metric cannot be named {name:?}: every row has a field of that name")]
    Reserved {
        /// Name of the metric.
        name: String,
    },
    /// A checkpoint cannot be written or read.
    #[error("{}: {reason}", path.display())]
    Checkpoint {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// A metrics row cannot be serialized.
    #[error("cannot write the row of step {step}: {source}")]
    Encode {
        /// Step of the row.
        step: u64,
        /// Cause of the failure.
        source: serde_json::Error,
    },
}

impl RunError {
    /// Returns a function for `map_err` that adds the failed operation and its path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io { action, path, source }
    }
}
