//! The files that an evaluation writes: rows as episodes end, and the report.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::evaluate::Row;

/// A row with the policy that it is of.
#[derive(Serialize)]
struct Of<'a> {
    policy: &'a str,
    #[serde(flatten)]
    row: &'a Row,
}

/// A file that is opened before anything is measured, so that a name that cannot be written to does not cost the
/// measurement; what it held stays until there is something to write.
#[derive(Debug)]
pub(super) struct Sheet {
    path: PathBuf,
    file: File,
    /// The first error of writing; nothing is written after it.
    broken: Option<io::Error>,
}

impl Sheet {
    /// Opens a file, and makes it where there is none.
    pub(super) fn open(path: &Path) -> anyhow::Result<Sheet> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Sheet { path: path.to_owned(), file, broken: None })
    }

    /// Empties it.
    pub(super) fn clear(&mut self) {
        // What is no file, such as a pipe, has nothing to lose.
        let clear = || if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) };
        self.broken = clear().err();
    }

    /// Writes a row. It has left the process when this returns, so that a run that is broken off leaves what it had.
    pub(super) fn add(&mut self, policy: &str, row: &Row) {
        if self.broken.is_none() {
            let line = serde_json::to_vec(&Of { policy, row }).map_err(io::Error::from);
            let line = line.map(|mut line| {
                line.push(b'\n');
                line
            });
            self.broken = line.and_then(|line| self.file.write_all(&line)).err();
        }
    }

    /// Writes the whole content in place of what it held.
    pub(super) fn fill(mut self, content: &impl Serialize) -> anyhow::Result<()> {
        self.clear();
        if self.broken.is_none() {
            self.broken = serde_json::to_vec_pretty(content)
                .map_err(io::Error::from)
                .and_then(|json| self.file.write_all(&json))
                .err();
        }
        self.finish()
    }

    /// Says what could not be written, if anything.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let Sheet { path, broken, .. } = self;
        broken.map_or(Ok(()), Err).with_context(|| format!("cannot write {}", path.display()))
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
        let mut sheet = Sheet::open(&path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("what was there"), "not yet");
        sheet.clear();
        for id in ["1", "2"] {
            sheet.add("mine", &Row { id: id.into(), ..Row::default() });
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let ids: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((ids.len(), &ids[0]["policy"], &ids[1]["id"]), (2, &"mine".into(), &"2".into()));
        sheet.finish().unwrap();
        Sheet::open(&path).unwrap().fill(&[1]).unwrap();
        assert_eq!(serde_json::from_str::<Vec<u8>>(&std::fs::read_to_string(&path).unwrap()).unwrap(), [1]);
        let error = Sheet::open(&dir.path().join("none/rows.jsonl")).unwrap_err();
        assert!(error.to_string().contains("rows.jsonl"), "{error}");
    }
}
