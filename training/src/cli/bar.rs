//! How far a run is: a bar for a person, lines for a file.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::dpo::ROUND_END;
use crate::run::Row;

const LOOK: &str = "{prefix} {bar:24} {pos}/{len} {wide_msg}";
/// Seconds from one line to the next where there is no terminal.
const PAUSE: Duration = Duration::from_secs(20);

/// Shows rows while they come.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    shown: Option<Instant>,
    /// Seconds of a step, smoothed.
    pace: Option<f64>,
    names: &'static [&'static str],
}

impl Bar {
    /// A bar of `total` steps, of which `done` are made; it shows the numbers called `names`.
    pub(super) fn new(prefix: &'static str, done: u64, total: u64, names: &'static [&'static str]) -> Self {
        let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_prefix(prefix).with_position(done);
        Self { bar, shown: None, pace: None, names }
    }

    /// Shows a row.
    pub(super) fn show(&mut self, row: &Row) {
        // Where a run knows its length round by round, that of the round counts.
        if let Some(end) = row.values.get(ROUND_END) {
            self.bar.set_length(*end as u64);
        }
        let told = |name: &str| self.names.contains(&name) || name.ends_with("/em") || name.ends_with("/f1");
        let number = |(name, value): (&String, &f64)| format!("{} {}", name.replace('_', " "), short(*value));
        let text = row.values.iter().filter(|(name, _)| told(name)).map(number).collect::<Vec<_>>().join(", ");
        let text = format!("{text}; {} to go", duration(self.left(row)));
        self.bar.set_position(row.step);
        self.bar.set_message(text.clone());
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= PAUSE) || self.bar.length() == Some(row.step);
        if !stderr().is_terminal() && due {
            self.shown = Some(Instant::now());
            let (phase, step, total) = (&row.phase, row.step, self.bar.length().unwrap_or(0));
            tracing::info!("{phase} {step}/{total}: {text}");
        }
    }

    /// Seconds to go, at the pace of the latest steps.
    fn left(&mut self, row: &Row) -> f64 {
        const FRESH: f64 = 0.2;
        if let Some(seconds) = row.values.get("step_seconds") {
            self.pace = Some(self.pace.map_or(*seconds, |pace| pace + FRESH * (seconds - pace)));
        }
        self.pace.unwrap_or(0.0) * self.bar.length().unwrap_or(0).saturating_sub(row.step) as f64
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

/// Hours and minutes.
pub(super) fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}
