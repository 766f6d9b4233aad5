//! Asynchronous passes of the mock, which then behaves like a device and draws tokens itself.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use waymark_models::adaptive_wait::AdaptiveWait;
use waymark_models::sampler::Pick;
use waymark_models::{ForwardBatch, Logits};

use crate::backend::PassOutput;

/// A pass that was submitted and not collected.
#[derive(Debug)]
pub(super) struct MockPass {
    pub(super) batch: ForwardBatch,
    pub(super) picks: Vec<Option<Pick>>,
    pub(super) started: Instant,
}

/// Error of a pass that exceeded the time limit.
#[derive(Debug)]
pub(super) struct Overdue;

impl MockPass {
    /// Waits for the end of the pass in the way the GPU backend does. The pass lasts `time`; with `None`, it never ends.
    pub(super) fn wait(&self, time: Option<Duration>, patience: &mut AdaptiveWait) -> Result<(), Overdue> {
        let done = || Ok::<_, Infallible>(time.is_some_and(|time| self.started.elapsed() >= time));
        match patience.wait(self.started, done) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Overdue),
        }
    }
}

/// Draws the token of each row that has a pick, and copies the logits of the others to the output, as a device does.
pub(crate) fn draw_rows(logits: &Logits, picks: &[Option<Pick>], output: &mut PassOutput) {
    let rows = logits.rows();
    let pick = |row: usize| picks.get(row).and_then(Option::as_ref);
    output.drawn.clear();
    output.drawn.extend((0..rows).map(|row| pick(row).map(|pick| pick.choose(logits.row(row)))));
    let left: Vec<usize> = (0..rows).filter(|&row| pick(row).is_none()).collect();
    output.logits.reset(logits.vocab(), left.len());
    for (to, from) in left.into_iter().enumerate() {
        output.logits.row_mut(to).copy_from_slice(logits.row(from));
    }
}
