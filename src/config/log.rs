//! How the log is written.

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for a person.
    Text,
    /// One JSON object per line.
    Json,
}
