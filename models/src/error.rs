//! The one error type of this crate.

use std::path::PathBuf;

/// What can go wrong between a file of weights and a row of logits.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file in question.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
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
}
