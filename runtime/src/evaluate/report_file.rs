//! The files that an evaluation writes: rows as episodes end, and the report.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use super::EpisodeRow;

/// A row with the name of its policy.
#[derive(Serialize)]
struct PolicyRow<'a> {
    policy: &'a str,
    #[serde(flatten)]
    row: &'a EpisodeRow,
}

/// An output file, opened before the evaluation so that an unwritable path fails early. Its old content stays until the
/// first write.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    file: File,
    /// First write error; nothing is written after it.
    failure: Option<io::Error>,
}

impl ReportFile {
    /// Opens a file and creates it if it is missing.
    pub fn open(path: &Path) -> anyhow::Result<ReportFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(ReportFile { path: path.to_owned(), file, failure: None })
    }

    /// Truncates the file.
    pub fn clear(&mut self) {
        // Only a regular file has old content; a pipe cannot be truncated.
        let clear = || if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) };
        self.failure = clear().err();
    }

    /// Writes a row and flushes it, so that an interrupted run leaves its rows.
    pub fn add(&mut self, policy: &str, row: &EpisodeRow) {
        if self.failure.is_none() {
            let line = serde_json::to_vec(&PolicyRow { policy, row }).map_err(io::Error::from);
            let line = line.map(|mut line| {
                line.push(b'\n');
                line
            });
            self.failure = line.and_then(|line| self.file.write_all(&line)).err();
        }
    }

    /// Replaces the content of the file.
    pub fn fill(mut self, content: &impl Serialize) -> anyhow::Result<()> {
        self.clear();
        if self.failure.is_none() {
            self.failure = serde_json::to_vec_pretty(content)
                .map_err(io::Error::from)
                .and_then(|json| self.file.write_all(&json))
                .err();
        }
        self.finish()
    }

    /// Returns the first write error, if any.
    pub fn finish(self) -> anyhow::Result<()> {
        let ReportFile { path, failure, .. } = self;
        failure.map_or(Ok(()), Err).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_are_there_as_soon_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, "what was there before, which is longer than what is written now".repeat(40)).unwrap();
        let mut sheet = ReportFile::open(&path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("what was there"), "not yet");
        sheet.clear();
        for id in ["1", "2"] {
            sheet.add("mine", &EpisodeRow { id: id.into(), ..EpisodeRow::default() });
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let ids: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((ids.len(), &ids[0]["policy"], &ids[1]["id"]), (2, &"mine".into(), &"2".into()));
        sheet.finish().unwrap();
        ReportFile::open(&path).unwrap().fill(&[1]).unwrap();
        assert_eq!(serde_json::from_str::<Vec<u8>>(&std::fs::read_to_string(&path).unwrap()).unwrap(), [1]);
        let error = ReportFile::open(&dir.path().join("none/rows.jsonl")).unwrap_err();
        assert!(error.to_string().contains("rows.jsonl"), "{error}");
    }
}
