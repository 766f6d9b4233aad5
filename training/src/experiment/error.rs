//! Errors of experiments.

use std::path::PathBuf;

use crate::run::RunError;

/// Error returned when an experiment cannot be read, run or reported.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The description is not valid TOML.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// Path of the description.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// A field of the description is invalid.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// Path of the description.
        path: PathBuf,
        /// Path of the field.
        field: String,
        /// Reason.
        reason: String,
    },
    /// The directory holds an experiment with other inputs.
    #[error("{}: {what} differs from what the experiment was started with: restore it, or choose another --out", dir.display())]
    Changed {
        /// Directory of the experiment.
        dir: PathBuf,
        /// Name of the input that differs.
        what: String,
    },
    /// A job's process failed.
    #[error("{job} failed ({status}); its log is {}:\n{tail}", log.display())]
    Job {
        /// Name of the job.
        job: String,
        /// Exit status.
        status: String,
        /// Path of the log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// The rows of an evaluation are not as expected.
    #[error("{}: {reason}", path.display())]
    Rows {
        /// Path of the rows.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A file or directory cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
}
