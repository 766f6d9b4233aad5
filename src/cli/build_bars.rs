//! Progress of index builds, shown on a terminal or logged.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar};
use waymark_index::{BuildPhase, BuildProgress, EmbeddingEstimate, UnreadScript};
use waymark_runtime::progress;

/// Formats a size.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Interval between log lines when no progress bar is visible.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of a build: one bar per phase, or log lines if there is no terminal.
#[derive(Debug, Default)]
pub(crate) struct BuildBars(Mutex<Option<CurrentBar>>);

/// State of the current phase.
#[derive(Debug)]
struct CurrentBar {
    phase: BuildPhase,
    bar: ProgressBar,
    /// Time of the last log line about the phase.
    last_logged: Option<Instant>,
}

impl BuildBars {
    /// Removes the last bar from the terminal.
    pub(crate) fn clear(&self) {
        if let Some(shown) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            shown.bar.finish_and_clear();
        }
    }
}

impl CurrentBar {
    fn update(&mut self, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        // A hidden bar means that standard error is no terminal.
        if self.bar.is_hidden() && self.last_logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            self.last_logged = Some(Instant::now());
            tracing::info!(phase = %self.phase, done, total, "indexing");
        }
    }
}

impl BuildProgress for BuildBars {
    fn update(&self, phase: BuildPhase, done: u64, total: Option<u64>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(over) = shown.take_if(|shown| shown.phase != phase) {
            over.bar.finish_and_clear();
        }
        let begun = || CurrentBar { phase, bar: progress::things().with_message(phase.to_string()), last_logged: None };
        shown.get_or_insert_with(begun).update(done, total);
    }

    fn truncated(&self, passages: u64) {
        tracing::warn!(
            passages,
            "passages are longer than the embedder reads: dense search will see only their beginning; stop here and split \
             them with --chunk, or go on"
        );
    }

    fn unread(&self, found: &UnreadScript) {
        let UnreadScript { script, passages, unread } = *found;
        tracing::warn!(
            "{unread} of {passages} passages in {script} letters gave no facts, so graph search follows none from them: the \
             built-in extractor reads English; `--triples` takes those of a language model"
        );
    }

    fn estimated(&self, estimate: EmbeddingEstimate) {
        let passages = HumanDuration(estimate.passages);
        if estimate.graph.is_zero() {
            tracing::info!("embedding the passages will take about {passages}");
            return;
        }
        let graph = HumanDuration(estimate.graph);
        tracing::info!(
            "embedding the passages will take about {passages}, the phrases and facts of the graph about {graph} more; \
             `--triples none` builds no graph"
        );
    }
}
