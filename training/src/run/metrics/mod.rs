//! `metrics.jsonl`: the numbers of a run, one row per line.
//!
//! ```text
//! {"step":12,"phase":"grpo1","seconds":803.25,"kl":0.0021,"reward":0.4375}
//! ```
//!
//! JSON has no NaN and no infinity. A number that is either is written in words, `"kl":"NaN"`, and logged: a report can
//! show where it was, and whoever reads the file with another tool meets a string instead of a zero.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{RunError, durable};

const STEP: &str = "step";
const PHASE: &str = "phase";
const SECONDS: &str = "seconds";

/// The numbers of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Counts optimizer's steps through the whole run, all phases; several rows may have the same.
    pub step: u64,
    /// What was going on: `sft`, `grpo1`, `grpo2`, `eval`, …
    pub phase: String,
    /// Wall time since the run began, in seconds, without the time between a kill and its resumption.
    pub seconds: f64,
    /// The numbers by name. `step`, `phase` and `seconds` are no names for one.
    pub values: BTreeMap<String, f64>,
}

impl Row {
    /// A row without numbers yet.
    pub fn new(step: u64, phase: impl Into<String>, seconds: f64) -> Row {
        Row { step, phase: phase.into(), seconds, values: BTreeMap::new() }
    }

    /// Adds a number.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: f64) -> Row {
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

    fn decode(line: &[u8]) -> Result<Row, String> {
        let row: Map<String, Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let mut read = Row::new(
            row.get(STEP).and_then(Value::as_u64).ok_or("no whole number `step`")?,
            row.get(PHASE).and_then(Value::as_str).ok_or("no string `phase`")?,
            row.get(SECONDS).and_then(float).ok_or("no number `seconds`")?,
        );
        for (name, value) in row {
            if ![STEP, PHASE, SECONDS].contains(&name.as_str()) {
                let value = float(&value).ok_or_else(|| format!("{name:?} is no number"))?;
                read.values.insert(name, value);
            }
        }
        Ok(read)
    }
}

/// The file, open at its end.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    last: u64,
}

impl Metrics {
    /// Opens the file of a run that goes on behind `step`: rows of later steps, and the torn last line of a killed
    /// process, are dropped, all at once or not at all. Behind step 0 there is nothing: a run that begins, or begins
    /// again, writes its rows of step 0 itself.
    ///
    /// # Errors
    ///
    /// When a line other than a torn last one is no row, or when the system refuses.
    pub fn resume(path: &Path, step: u64) -> Result<Metrics, RunError> {
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
        if kept.len() != bytes.len() {
            durable::write(path, &kept)?;
        }
        let file = File::options().create(true).append(true).open(path).map_err(RunError::io("open", path))?;
        durable::sync_parent(path)?;
        Ok(Metrics { path: path.to_owned(), file, last })
    }

    /// Appends a row, by one write: whoever reads meanwhile sees all of it or none.
    ///
    /// # Errors
    ///
    /// When the row goes back behind the last one, when a number has the name of another field, or when the system
    /// refuses.
    pub fn append(&mut self, row: &Row) -> Result<(), RunError> {
        if row.step < self.last {
            return Err(RunError::Order { step: row.step, last: self.last });
        }
        let line = row.encode()?;
        self.file.write_all(line.as_bytes()).map_err(RunError::io("write", &self.path))?;
        self.last = row.step;
        Ok(())
    }

    /// Makes the rows so far outlast a crash of the machine. For before a checkpoint: the rows of the steps it has
    /// behind it must not be lost if it is not.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().map_err(RunError::io("sync", &self.path))
    }

    /// Reads all rows, in the order of the file. A torn last line is left out, and a file that is not there has none.
    ///
    /// # Errors
    ///
    /// When a line other than a torn last one is no row, or when the system refuses.
    pub fn read(path: &Path) -> Result<Vec<Row>, RunError> {
        match fs::read(path) {
            Ok(bytes) => Ok(parse(path, &bytes)?.into_iter().map(|(_, row)| row).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(RunError::io("read", path)(error)),
        }
    }
}

/// The whole lines, each with its row.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vec<(&'a [u8], Row)>, RunError> {
    // What does not end in a newline was torn off, even if it reads as a row: its last number may lack digits.
    let whole = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let row = |(at, line): (usize, &'a [u8])| match Row::decode(line) {
        Ok(row) => Ok((line, row)),
        Err(reason) => Err(RunError::Line { path: path.to_owned(), line: at + 1, reason }),
    };
    whole.enumerate().map(row).collect()
}

fn number(value: f64) -> Value {
    // `Value::from` would make null of what JSON cannot say.
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
