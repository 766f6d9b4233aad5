//! `report.html`: what a run did, as one page that needs nothing else.
//!
//! Curves are inline SVG; without scripts, fonts or anything from a network, it can be kept beside a checkpoint, sent by
//! mail and printed. Colours follow the reader's light or dark setting.

mod axis;
mod catalogue;
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

use super::{Folder, Metrics, RunError, durable};

/// Draws the report of a run from its `metrics.jsonl` and `run.toml`, and puts it in the place of the one before. Also
/// while the run goes on.
///
/// # Errors
///
/// When the metrics cannot be read, or when the system refuses.
pub fn report(run: &Folder) -> Result<(), RunError> {
    let rows = Metrics::read(&run.metrics())?;
    let facts = fs::read_to_string(run.facts()).map_err(RunError::io("read", &run.facts()))?;
    let name = run.path().file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy());
    durable::write(&run.report(), page::page(&name, &facts, &rows).as_bytes())
}

/// Text as it may stand in an element or in a quoted attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            char => escaped.push(char),
        }
    }
    escaped
}
