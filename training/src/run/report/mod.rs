//! `report.html`: the curves of a run as one self-contained page.
//!
//! Curves are inline SVG without scripts, fonts or network access, so the page can be kept with a checkpoint, mailed
//! and printed. Colors follow the reader's light or dark mode.

mod axis;
mod catalog;
mod chart;
mod facts;
mod figure;
mod number;
mod page;
mod phase;
mod plot;
mod series;
mod table;
#[cfg(test)]
mod tests;
mod tile;

use std::fs;

use super::{MetricsFile, RunError, RunFolder, durable};

/// Draws the report of a run from its `metrics.jsonl` and `run.toml`, replacing the previous one. The run may still
/// be in progress.
///
/// # Errors
/// If the metrics cannot be read, or on an I/O error.
pub fn report(run: &RunFolder) -> Result<(), RunError> {
    let rows = MetricsFile::read(&run.metrics())?;
    let facts = fs::read_to_string(run.facts()).map_err(RunError::io("read", &run.facts()))?;
    let name = run.path().file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy());
    durable::write(&run.report(), page::page(&name, &facts, &rows).as_bytes())
}
