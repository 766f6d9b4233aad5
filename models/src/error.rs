//! The one error type of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong between a file of weights and a row of logits.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The system refused something.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder in question.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file is not what it claims to be: truncated, damaged or inconsistent.
    #[error("{path}: {reason}")]
    Corrupt {
        /// The file in question.
        path: PathBuf,
        /// What is wrong, and what would mend it.
        reason: String,
    },
    /// A file is sound but asks for something this crate does not do.
    #[error("{path}: unsupported {what}")]
    Unsupported {
        /// The file in question.
        path: PathBuf,
        /// The feature, with the value found.
        what: String,
    },
    /// A tensor is missing or has the wrong shape.
    #[error("tensor {name}: {reason}")]
    Tensor {
        /// The tensor's canonical name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer could not be built or refused a text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template could not be compiled or rendered.
    #[error("chat template: {0}")]
    Template(String),
    /// A caller's argument does not fit the loaded model.
    #[error("{0}")]
    Input(String),
    /// A card that a pass runs on refused, or is lost.
    #[error("{0}")]
    Card(String),
}

impl ModelError {
    /// For `map_err`: names what was tried, and on what.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
