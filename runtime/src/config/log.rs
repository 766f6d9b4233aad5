//! Format of the log.

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people to read.
    Text,
    /// One JSON object per line.
    Json,
}
