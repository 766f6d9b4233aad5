//! Metrics of a run in `metrics.jsonl`, one row per line.
//!
//! ```text
//! {"step":12,"phase":"grpo1","seconds":803.25,"kl":0.0021,"reward":0.4375}
//! ```
//!
//! JSON has no NaN and no infinity. Such a value is written as a string, `"kl":"NaN"`, and logged. The report shows
//! where it occurred, and other tools read a string instead of a misleading zero.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{RunError, durable};

const STEP: &str = "step";
const PHASE: &str = "phase";
const SECONDS: &str = "seconds";

/// Metrics of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsRow {
    /// Step, counted through all phases of the run. Several rows may share a step.
    pub step: u64,
    /// Phase: `sft`, `grpo1`, `grpo2`, `eval`, …
    pub phase: String,
    /// Wall time since the start of the run in seconds, without the time between a kill and the next start.
    pub seconds: f64,
    /// Values by name. The names `step`, `phase` and `seconds` are reserved.
    pub values: BTreeMap<String, f64>,
}

impl MetricsRow {
    /// Creates a row without values.
    pub fn new(step: u64, phase: impl Into<String>, seconds: f64) -> MetricsRow {
        MetricsRow { step, phase: phase.into(), seconds, values: BTreeMap::new() }
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: f64) -> MetricsRow {
        self.values.insert(name.into(), value);
        self
    }

    fn encode(&self) -> Result<String, RunError> {
        let mut row = Map::new();
        row.insert(STEP.into(), self.step.into());
        row.insert(PHASE.into(), self.phase.as_str().into());
        row.insert(SECONDS.into(), number(self.seconds));
        for (name, &value) in &self.values {
            if [STEP, PHASE, SECONDS].contains(&name.as_str()) {
                return Err(RunError::Reserved { name: name.clone() });
            }
            if !value.is_finite() {
                tracing::warn!(step = self.step, phase = self.phase, name, value, "a metric is not a finite number");
            }
            row.insert(name.clone(), number(value));
        }
        let mut line = serde_json::to_string(&row).map_err(|source| RunError::Encode { step: self.step, source })?;
        line.push('\n');
        Ok(line)
    }

    fn decode(line: &[u8]) -> Result<MetricsRow, String> {
        let row: Map<String, Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let mut read = MetricsRow::new(
            row.get(STEP).and_then(Value::as_u64).ok_or("`step` is missing or not an integer")?,
            row.get(PHASE).and_then(Value::as_str).ok_or("`phase` is missing or not a string")?,
            row.get(SECONDS).and_then(float).ok_or("`seconds` is missing or not a number")?,
        );
        for (name, value) in row {
            if ![STEP, PHASE, SECONDS].contains(&name.as_str()) {
                let value = float(&value).ok_or_else(|| format!("{name:?} is not a number"))?;
                read.values.insert(name, value);
            }
        }
        Ok(read)
    }
}

/// Writer of `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    last: u64,
}

impl MetricsFile {
    /// Opens the file of a run that continues after `step`. Rows of later steps and an unfinished last line are
    /// dropped in one atomic write. After step 0 no row is kept: a run that starts, or starts again, writes its rows
    /// of step 0 itself.
    ///
    /// # Errors
    /// If a finished line is not a row, or on an I/O error.
    pub fn resume(path: &Path, step: u64) -> Result<MetricsFile, RunError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(RunError::io("read", path)(error)),
        };
        let mut kept = Vec::with_capacity(bytes.len());
        let mut last = 0;
        for (line, row) in parse(path, &bytes)? {
            if step > 0 && row.step <= step {
                kept.extend_from_slice(line);
                last = row.step;
            }
        }
        // The file is rewritten only if something was dropped.
        if kept.len() != bytes.len() {
            durable::write(path, &kept)?;
        }
        let file = File::options().create(true).append(true).open(path).map_err(RunError::io("open", path))?;
        durable::sync_parent(path)?;
        Ok(MetricsFile { path: path.to_owned(), file, last })
    }

    /// Appends a row in a single write, so that a concurrent reader sees all of it or none.
    ///
    /// # Errors
    /// If the row has a smaller step than the last one, if a value has a reserved name, or on an I/O error.
    pub fn append(&mut self, row: &MetricsRow) -> Result<(), RunError> {
        if row.step < self.last {
            return Err(RunError::Order { step: row.step, last: self.last });
        }
        let line = row.encode()?;
        self.file.write_all(line.as_bytes()).map_err(RunError::io("write", &self.path))?;
        self.last = row.step;
        Ok(())
    }

    /// Syncs the rows to disk. Called before a checkpoint, so that a crash of the machine cannot lose rows of steps
    /// that the checkpoint includes.
    ///
    /// # Errors
    /// On an I/O error.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().map_err(RunError::io("sync", &self.path))
    }

    /// Reads all rows in file order. An unfinished last line is skipped. A missing file has no rows.
    ///
    /// # Errors
    /// If a finished line is not a row, or on an I/O error.
    pub fn read(path: &Path) -> Result<Vec<MetricsRow>, RunError> {
        match fs::read(path) {
            Ok(bytes) => Ok(parse(path, &bytes)?.into_iter().map(|(_, row)| row).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(RunError::io("read", path)(error)),
        }
    }
}

/// Splits the file into finished lines, each with its row.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vec<(&'a [u8], MetricsRow)>, RunError> {
    // A last line without a newline is unfinished, even if it parses: its last number may lack digits.
    let whole = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let row = |(at, line): (usize, &'a [u8])| match MetricsRow::decode(line) {
        Ok(row) => Ok((line, row)),
        Err(reason) => Err(RunError::Line { path: path.to_owned(), line: at + 1, reason }),
    };
    whole.enumerate().map(row).collect()
}

fn number(value: f64) -> Value {
    // `Value::from` turns NaN and infinities into null.
    if value.is_finite() { Value::from(value) } else { Value::from(value.to_string()) }
}

fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}

#[cfg(test)]
mod tests;
