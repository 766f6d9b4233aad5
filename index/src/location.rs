//! Position in a file, for messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Path of the file.
    pub file: Arc<Path>,
    /// Line number, from 1.
    pub line: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}
