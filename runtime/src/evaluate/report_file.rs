//! The files that an evaluation writes: rows as episodes end, completed when an arm has ended, and the report.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use waymark_models::durable_file;

use super::EpisodeRow;

/// A row with the names of its question set and its arm.
#[derive(Serialize)]
struct PolicyRow<'a> {
    set: &'a str,
    policy: &'a str,
    #[serde(flatten)]
    row: &'a EpisodeRow,
}

/// Serializes a row of an arm, with its names, as a line.
fn line((set, policy): (&str, &str), row: &EpisodeRow) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&PolicyRow { set, policy, row })?;
    line.push(b'\n');
    Ok(line)
}

/// A line of a file of rows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LabeledRow {
    /// Name of the question set.
    pub set: String,
    /// Name of the arm.
    pub policy: String,
    /// The row.
    #[serde(flatten)]
    pub row: EpisodeRow,
}

impl LabeledRow {
    /// Reads a file of rows.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is not a row.
    pub fn read(path: &Path) -> anyhow::Result<Vec<LabeledRow>> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = BufReader::new(file).lines().zip(1..);
        let parse = |(line, number): (io::Result<String>, usize)| {
            let row: anyhow::Result<LabeledRow> =
                line.map_err(Into::into).and_then(|line| serde_json::from_str(&line).map_err(Into::into));
            row.with_context(|| format!("{}, line {number}", path.display()))
        };
        lines.map(parse).collect()
    }
}

/// An output file, opened before the evaluation so that an unwritable path fails early. Its old content stays until the
/// first write.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    file: File,
    /// Number of bytes at the beginning of the file that hold completed rows.
    completed: u64,
    /// First write error; nothing is written after it.
    failure: Option<io::Error>,
}

impl ReportFile {
    /// Opens a file and creates it if it is missing.
    pub fn open(path: &Path) -> anyhow::Result<ReportFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(ReportFile { path: path.to_owned(), file, completed: 0, failure: None })
    }

    /// Truncates the file.
    pub fn clear(&mut self) {
        // Only a regular file has old content; a pipe cannot be truncated.
        let clear = || if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) };
        self.failure = clear().err();
        self.completed = 0;
    }

    /// Writes a row and flushes it, so that an interrupted run leaves its rows.
    pub fn add(&mut self, names: (&str, &str), row: &EpisodeRow) {
        if self.failure.is_none() {
            self.failure = line(names, row).and_then(|line| self.file.write_all(&line)).err();
        }
    }

    /// Replaces the rows that were added since the last call by `rows`: those of the same arm, with the scores that
    /// models give when the arm has ended. A killed process leaves the old rows or the new ones. A pipe keeps the old
    /// rows, and so does a file in a folder that may not be changed, with a warning.
    pub fn complete(&mut self, names: (&str, &str), rows: &[EpisodeRow]) {
        if self.failure.is_none() {
            self.failure = self.replace_added(names, rows).err();
        }
    }

    fn replace_added(&mut self, names: (&str, &str), rows: &[EpisodeRow]) -> io::Result<()> {
        let written = self.file.metadata()?;
        if !written.is_file() {
            return Ok(());
        }
        // Resolved, so that the target of a link is replaced and not the link.
        let path = fs::canonicalize(&self.path)?;
        let mut content = Vec::new();
        File::open(&path)?.take(self.completed).read_to_end(&mut content)?;
        for row in rows {
            content.extend(line(names, row)?);
        }
        if let Err(error) = durable_file::replace(&path, &content) {
            tracing::warn!(path = %path.display(), %error, "cannot rewrite the rows: they lack the scores of models");
            self.completed = written.len();
            return Ok(());
        }
        self.file = OpenOptions::new().append(true).open(&path)?;
        self.completed = content.len() as u64;
        Ok(())
    }

    /// Replaces the content of the file by JSON.
    pub fn fill(self, content: &impl Serialize) -> anyhow::Result<()> {
        self.fill_text(&serde_json::to_string_pretty(content)?)
    }

    /// Replaces the content of the file.
    pub fn fill_text(mut self, content: &str) -> anyhow::Result<()> {
        self.clear();
        if self.failure.is_none() {
            self.failure = self.file.write_all(content.as_bytes()).err();
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
            sheet.add(("set", "mine"), &EpisodeRow { id: id.into(), ..EpisodeRow::default() });
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let ids: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let read = LabeledRow::read(&path).unwrap();
        assert_eq!((read.len(), read[1].set.as_str(), read[1].row.id.as_str()), (2, "set", "2"));
        assert_eq!((ids.len(), &ids[0]["policy"], &ids[1]["id"]), (2, &"mine".into(), &"2".into()));
        sheet.finish().unwrap();
        ReportFile::open(&path).unwrap().fill(&[1]).unwrap();
        assert_eq!(serde_json::from_str::<Vec<u8>>(&std::fs::read_to_string(&path).unwrap()).unwrap(), [1]);
        let error = ReportFile::open(&dir.path().join("none/rows.jsonl")).unwrap_err();
        assert!(error.to_string().contains("rows.jsonl"), "{error}");
    }

    #[test]
    fn completed_rows_take_the_place_of_those_of_their_arm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        let row = |id: &str, similarity: Option<f64>| EpisodeRow { id: id.into(), similarity, ..EpisodeRow::default() };
        let read = || -> Vec<(String, String, Option<f64>)> {
            let rows = LabeledRow::read(&path).unwrap().into_iter();
            rows.map(|LabeledRow { policy, row, .. }| (policy, row.id, row.similarity)).collect()
        };
        let of = |policy: &str, id: &str, similarity: Option<f64>| (policy.to_owned(), id.to_owned(), similarity);
        let mut sheet = ReportFile::open(&path).unwrap();
        sheet.clear();
        // In the order in which the episodes ended.
        sheet.add(("set", "first"), &row("2", None));
        sheet.add(("set", "first"), &row("1", None));
        sheet.complete(("set", "first"), &[row("1", Some(0.5)), row("2", None)]);
        let first = [of("first", "1", Some(0.5)), of("first", "2", None)];
        assert_eq!(read(), first);
        sheet.add(("set", "second"), &row("1", None));
        assert_eq!(read(), [&first[..], &[of("second", "1", None)]].concat(), "each row is there at once");
        sheet.complete(("set", "second"), &[row("1", Some(1.0))]);
        assert_eq!(read(), [&first[..], &[of("second", "1", Some(1.0))]].concat());
        sheet.finish().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
