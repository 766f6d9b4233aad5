//! What can go wrong with the directory of a run.

use std::io;
use std::path::{Path, PathBuf};

use waymark_models::ModelError;

/// Why the directory of a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something about a folder that is to be there whole or not at all.
    #[error(transparent)]
    Folder(#[from] ModelError),
    /// A new run was asked for where there is one already.
    #[error("{} holds a run already: resume it, or give another folder", dir.display())]
    Exists {
        /// The folder.
        dir: PathBuf,
    },
    /// A new run was asked for in a folder that holds something else.
    #[error("{} is not empty and holds no run (no run.toml): give a new or an empty folder", dir.display())]
    Foreign {
        /// The folder.
        dir: PathBuf,
    },
    /// A run was asked for where there is none.
    #[error("{} holds no run (no run.toml): give the folder that a training run wrote to", dir.display())]
    Missing {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process trains in this folder.
    #[error("another trainer is at work in {}: wait for it, stop it, or give another folder", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// A line that is not a row, and not the torn end of the file either.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A row goes back behind the one before it.
    #[error("a row of step {step} cannot follow one of step {last}: steps count through the whole run")]
    Order {
        /// The step of the refused row.
        step: u64,
        /// The step of the last row that was written.
        last: u64,
    },
    /// A number has a name that a row needs for itself.
    #[error("a number cannot be called {name:?}: that field of a row is taken")]
    Reserved {
        /// The name.
        name: String,
    },
    /// A checkpoint cannot be written or read.
    #[error("{}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Numbers do not go into a row of JSON.
    #[error("cannot write the row of step {step}: {source}")]
    Encode {
        /// The step of the row.
        step: u64,
        /// What serde said.
        source: serde_json::Error,
    },
}

impl RunError {
    /// For `map_err`: names what was tried, and on what.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io { action, path, source }
    }
}
