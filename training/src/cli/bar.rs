//! How far a run is: a bar for a person, lines for a file.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::run::Row;

const LOOK: &str = "{prefix} {bar:24} {pos}/{len} {elapsed} to go {eta} {wide_msg}";
/// Seconds from one line to the next where there is no terminal.
const PAUSE: Duration = Duration::from_secs(20);

/// Shows rows while they come.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    shown: Option<Instant>,
    names: &'static [&'static str],
}

impl Bar {
    /// A bar of `total` steps, of which `done` are made; it shows the numbers called `names`.
    pub(super) fn new(prefix: &'static str, done: u64, total: u64, names: &'static [&'static str]) -> Self {
        let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_prefix(prefix).with_position(done);
        // Or the steps made before a resumption would count as made just now.
        bar.reset_eta();
        Self { bar, shown: None, names }
    }

    /// Shows a row.
    pub(super) fn show(&mut self, row: &Row) {
        let number =
            |name: &&str| row.values.get(*name).map(|value| format!("{} {}", name.replace('_', " "), short(*value)));
        let text = self.names.iter().filter_map(number).collect::<Vec<_>>().join(", ");
        self.bar.set_position(row.step);
        self.bar.set_message(text.clone());
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= PAUSE) || self.bar.length() == Some(row.step);
        if !stderr().is_terminal() && due {
            self.shown = Some(Instant::now());
            let (phase, step, total) = (&row.phase, row.step, self.bar.length().unwrap_or(0));
            tracing::info!("{phase} {step}/{total}: {text}; {} s to go", self.bar.eta().as_secs());
        }
    }

    /// Leaves the bar where it is.
    pub(super) fn end(&self) {
        self.bar.abandon();
    }
}

/// A number in few signs.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (0.01..1e4).contains(&size) => format!("{value:.3}"),
        size if size >= 1e4 => format!("{value:.0}"),
        _ => format!("{value:.2e}"),
    }
}
