//! Files of a folder that are not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::format::extension;

/// Maximum number of skipped files that are kept by name.
const NAMED: usize = 50;

/// Number of files in a summary.
const SUMMARIZED: usize = 3;

/// Files of a folder that were not read, by their type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkippedFiles {
    /// Number of files by extension with its dot; `no extension` for others.
    pub by_type: BTreeMap<String, u64>,
    /// First 50 files, each with the reason why it was not read.
    pub first: Vec<(PathBuf, String)>,
}

impl SkippedFiles {
    /// Number of files.
    pub fn count(&self) -> u64 {
        self.by_type.values().sum()
    }

    /// Names the first files with their reasons.
    pub(super) fn summary(&self) -> String {
        let shown = self.first.iter().take(SUMMARIZED).map(|(path, reason)| format!("{}: {reason}", path.display()));
        shown.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn add(&mut self, path: &Path, reason: String) {
        let kind = match extension(path).as_str() {
            "" => "no extension".to_owned(),
            extension => format!(".{extension}"),
        };
        *self.by_type.entry(kind).or_default() += 1;
        if self.first.len() < NAMED {
            self.first.push((path.to_owned(), reason));
        }
    }
}
