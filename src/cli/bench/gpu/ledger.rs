//! What was measured and what failed, kept as it comes: a card may be there for minutes only, and whoever takes it away asks
//! nobody.

use std::any::Any;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use futures::FutureExt;

use super::report::Report;
use crate::engine::message;

/// The report, the file that it is saved in, and what failed.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) report: Report,
    file: Option<PathBuf>,
    /// What failed first.
    first: Option<String>,
}

impl Ledger {
    /// A file that cannot be written is refused before anything is measured; what it holds stays until there is something to
    /// write. So is what is no file: a report is written again after every part, and a pipe would wait for a reader each time.
    pub(super) fn new(report: Report, file: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(path) = &file {
            ensure!(path.is_file() || !path.exists(), "--json {} is no file", path.display());
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self { report, file, first: None })
    }

    /// Keeps what a part came to: when it failed, that is told at once, on standard error and in the report; which is saved.
    pub(super) fn keep(&mut self, part: &str, outcome: anyhow::Result<()>) {
        self.note(part, outcome);
        let saved = self.save();
        self.note("report", saved);
    }

    fn note(&mut self, part: &str, outcome: anyhow::Result<()>) {
        let Err(error) = outcome else { return };
        let failure = format!("{part}: {error:#}");
        let note = format!("FAILED: {failure}");
        // What cannot be saved cannot be saved the next time either.
        if self.report.notes.contains(&note) {
            return;
        }
        // Where nobody reads it, the report has it.
        let _ = writeln!(io::stderr(), "{note}");
        self.report.notes.push(note);
        self.first.get_or_insert(failure);
    }

    /// Writes what is known so far, whole or not at all.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.report)?;
        write(path, &text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Fails with what failed first, if anything did.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        match &self.first {
            Some(first) => bail!("{first}"),
            None => Ok(()),
        }
    }
}

/// Replaces a file, so that a program that is ended in the middle leaves what was there.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, text)?;
    fs::rename(&part, path)
}

/// Does a part of the work. A panic in it is a failure like others.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only what a card is asked does not wait"))]
pub(super) fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// The same of work that waits.
pub(super) async fn awaited<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> anyhow::Error {
    anyhow!("it panicked: {}", message(panic))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn never() -> anyhow::Result<()> {
        panic!("never")
    }

    #[tokio::test]
    async fn what_fails_is_in_the_file_at_once_and_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.json");
        let mut ledger = Ledger::new(Report::default(), Some(path.clone())).unwrap();
        let saved = || serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&path).unwrap()).unwrap();
        ledger.keep("one", Ok(()));
        assert_eq!(saved()["notes"].as_array().unwrap().len(), 0);
        ledger.end().unwrap();
        let what = "way";
        ledger.keep("two", guarded(|| -> anyhow::Result<()> { panic!("no {what}") }));
        assert_eq!(saved()["notes"][0], "FAILED: two: it panicked: no way");
        ledger.keep("three", awaited(never()).await);
        assert_eq!(saved()["notes"][1], "FAILED: three: it panicked: never");
        assert_eq!(ledger.end().unwrap_err().to_string(), "two: it panicked: no way");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/null"), dir.path()] {
            let error = Ledger::new(Report::default(), Some(path.to_owned())).unwrap_err();
            assert_eq!(error.to_string(), format!("--json {} is no file", path.display()));
        }
    }

    #[test]
    fn a_report_that_cannot_be_saved_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("none");
        assert!(Ledger::new(Report::default(), Some(folder.join("gpu.json"))).is_err(), "before anything is measured");
        fs::create_dir(&folder).unwrap();
        let mut ledger = Ledger::new(Report::default(), Some(folder.join("gpu.json"))).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        ledger.keep("one", Ok(()));
        ledger.keep("two", Ok(()));
        assert_eq!(ledger.report.notes.len(), 1, "{:?}", ledger.report.notes);
        assert!(ledger.end().unwrap_err().to_string().contains("gpu.json"));
    }
}
