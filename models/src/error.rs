//! Error type shared by the modules of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// Error in loading or running a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// An operation of the operating system failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// Attempted operation, as a verb.
        action: &'static str,
        /// Affected file or folder.
        path: PathBuf,
        /// Error reported by the operating system.
        source: io::Error,
    },
    /// A file is truncated, damaged or inconsistent.
    #[error("{path}: {reason}")]
    Corrupt {
        /// Affected file.
        path: PathBuf,
        /// Description of the defect and, where known, its remedy.
        reason: String,
    },
    /// A valid file needs a feature that this crate does not implement.
    #[error("{path}: unsupported {what}")]
    Unsupported {
        /// Affected file.
        path: PathBuf,
        /// Missing feature, with the value found.
        what: String,
    },
    /// Model files have a layout that must be converted first.
    #[error("{path}: {layout} cannot be served as it is: {remedy}")]
    Layout {
        /// Affected file or folder.
        path: PathBuf,
        /// Name of the layout.
        layout: String,
        /// Command that converts it, or another way out.
        remedy: String,
    },
    /// A tensor is missing or has the wrong shape.
    #[error("tensor {name}: {reason}")]
    Tensor {
        /// Canonical name of the tensor.
        name: String,
        /// Description of the defect.
        reason: String,
    },
    /// The tokenizer could not be built, or rejected a text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template could not be compiled or rendered.
    #[error("chat template: {0}")]
    Template(String),
    /// An argument of the caller does not fit the loaded model.
    #[error("{0}")]
    Input(String),
    /// A GPU refused an operation or was lost.
    #[error("{0}")]
    Gpu(String),
}

impl ModelError {
    /// Adapter for `map_err` that records the attempted operation and its path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
