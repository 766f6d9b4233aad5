//! Progress of a run: a progress bar on a terminal, log lines otherwise.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::dpo::ROUND_END;
use crate::run::MetricsRow;

const LOOK: &str = "{prefix} {bar:24} {pos}/{len} {wide_msg}";
/// Minimum time between two log lines when standard error is not a terminal.
const PAUSE: Duration = Duration::from_secs(20);

/// Displays metrics rows as they arrive.
#[derive(Debug)]
pub(super) struct StepProgress {
    bar: ProgressBar,
    shown: Option<Instant>,
    /// Seconds per step, exponentially smoothed. `None` before the first row.
    pace: Option<f64>,
    names: &'static [&'static str],
}

impl StepProgress {
    /// Creates a bar of `total` steps, `done` of which are complete. It displays the metrics in `names`.
    pub(super) fn new(prefix: &'static str, done: u64, total: u64, names: &'static [&'static str]) -> Self {
        let style = ProgressStyle::with_template(LOOK).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_prefix(prefix).with_position(done);
        Self { bar, shown: None, pace: None, names }
    }

    /// Displays a row.
    pub(super) fn show(&mut self, row: &MetricsRow) {
        // DPO learns the length of a round only after its rollouts, so the bar shows the steps up to the end of the
        // round.
        if let Some(end) = row.values.get(ROUND_END) {
            self.bar.set_length(*end as u64);
        }
        let told = |name: &str| self.names.contains(&name) || name.ends_with("/em") || name.ends_with("/f1");
        let number = |(name, value): (&String, &f64)| format!("{} {}", name.replace('_', " "), short(*value));
        let text = row.values.iter().filter(|(name, _)| told(name)).map(number).collect::<Vec<_>>().join(", ");
        let text = format!("{text}; {} to go", duration(self.left(row)));
        self.bar.set_position(row.step);
        self.bar.set_message(text.clone());
        // The last row is always logged.
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= PAUSE) || self.bar.length() == Some(row.step);
        if !stderr().is_terminal() && due {
            self.shown = Some(Instant::now());
            let phase = &row.phase;
            let step = row.step;
            let total = self.bar.length().unwrap_or(0);
            tracing::info!("{phase} {step}/{total}: {text}");
        }
    }

    /// Estimated seconds left, at the pace of the latest steps.
    fn left(&mut self, row: &MetricsRow) -> f64 {
        // Weight of the latest step in the moving average: rollout steps vary a lot.
        const FRESH: f64 = 0.2;
        if let Some(seconds) = row.values.get("step_seconds") {
            self.pace = Some(self.pace.map_or(*seconds, |pace| pace + FRESH * (seconds - pace)));
        }
        self.pace.unwrap_or(0.0) * self.bar.length().unwrap_or(0).saturating_sub(row.step) as f64
    }

    /// Stops the bar at its current position.
    pub(super) fn end(&self) {
        self.bar.abandon();
    }
}

/// Formats a number in a few characters.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (0.01..1e4).contains(&size) => format!("{value:.3}"),
        size if size >= 1e4 => format!("{value:.0}"),
        _ => format!("{value:.2e}"),
    }
}

/// Formats seconds as hours and minutes.
pub(super) fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}
