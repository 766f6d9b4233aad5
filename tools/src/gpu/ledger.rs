//! Measurements and failures, saved as they come: a GPU may be lent for minutes only and taken away without notice.

use std::any::Any;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use futures::FutureExt;
use waymark_engine::panic_message;
use waymark_models::durable_file;

use super::report::GpuReport;

/// The report, the file it is saved to, and the first failure.
#[derive(Debug)]
pub(super) struct ReportLedger {
    pub(super) report: GpuReport,
    file: Option<PathBuf>,
    /// First failure, if any.
    first: Option<String>,
}

impl ReportLedger {
    /// Checks that the file is writable before anything is measured, without changing its content. Only a regular file
    /// is accepted: the report is rewritten after every part, and a pipe would block until someone reads it.
    pub(super) fn new(report: GpuReport, file: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(path) = &file {
            ensure!(path.is_file() || !path.exists(), "--json {}: not a regular file", path.display());
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self { report, file, first: None })
    }

    /// Records the outcome of a part and saves the report. A failure is printed to standard error immediately and added
    /// to the notes.
    pub(super) fn record(&mut self, part: &str, outcome: anyhow::Result<()>) {
        self.note(part, outcome);
        let saved = self.save();
        self.note("report", saved);
    }

    fn note(&mut self, part: &str, outcome: anyhow::Result<()>) {
        let Err(error) = outcome else { return };
        let failure = format!("{part}: {error:#}");
        let note = format!("FAILED: {failure}");
        // A saving error can recur after every part; report it once.
        if self.report.notes.contains(&note) {
            return;
        }
        // Standard error may be closed; the report has the note in any case.
        let _ = writeln!(io::stderr(), "{note}");
        self.report.notes.push(note);
        self.first.get_or_insert(failure);
    }

    /// Saves the report atomically.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.report)?;
        durable_file::replace(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the first failure, if any.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        match &self.first {
            Some(first) => bail!("{first}"),
            None => Ok(()),
        }
    }
}

/// Runs part of the work, converting a panic into an error.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPU calls are synchronous"))]
pub(super) fn catch_panic<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Runs asynchronous work, converting a panic into an error.
pub(super) async fn catch_panic_async<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> anyhow::Error {
    anyhow!("it panicked: {}", panic_message(panic))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use super::*;

    async fn never() -> anyhow::Result<()> {
        panic!("never")
    }

    #[tokio::test]
    async fn what_fails_is_in_the_file_at_once_and_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.json");
        let mut ledger = ReportLedger::new(GpuReport::default(), Some(path.clone())).unwrap();
        let saved = || serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&path).unwrap()).unwrap();
        ledger.record("one", Ok(()));
        assert_eq!(saved()["notes"].as_array().unwrap().len(), 0);
        ledger.end().unwrap();
        let what = "way";
        ledger.record("two", catch_panic(|| -> anyhow::Result<()> { panic!("no {what}") }));
        assert_eq!(saved()["notes"][0], "FAILED: two: it panicked: no way");
        ledger.record("three", catch_panic_async(never()).await);
        assert_eq!(saved()["notes"][1], "FAILED: three: it panicked: never");
        assert_eq!(ledger.end().unwrap_err().to_string(), "two: it panicked: no way");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/null"), dir.path()] {
            let error = ReportLedger::new(GpuReport::default(), Some(path.to_owned())).unwrap_err();
            assert_eq!(error.to_string(), format!("--json {}: not a regular file", path.display()));
        }
    }

    #[test]
    fn a_report_that_cannot_be_saved_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("none");
        assert!(
            ReportLedger::new(GpuReport::default(), Some(folder.join("gpu.json"))).is_err(),
            "before anything is measured"
        );
        fs::create_dir(&folder).unwrap();
        let mut ledger = ReportLedger::new(GpuReport::default(), Some(folder.join("gpu.json"))).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        ledger.record("one", Ok(()));
        ledger.record("two", Ok(()));
        assert_eq!(ledger.report.notes.len(), 1, "{:?}", ledger.report.notes);
        assert!(ledger.end().unwrap_err().to_string().contains("gpu.json"));
    }
}
