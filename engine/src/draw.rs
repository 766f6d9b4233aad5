//! Sampling: one token for every row that needs one, in parallel on the backend's threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use waymark_models::Logits;
use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};

use super::error::EngineError;
use super::masking::{MASK_TIMEOUT, MaskWait};
use super::request::Generate;
use super::sequence::{RunningTurn, Sequence};
use super::worker::panic_message;

/// A turn taken out of its session while its next token is chosen.
#[derive(Debug)]
pub(super) struct Draw {
    pub(super) session: u64,
    pub(super) turn: RunningTurn,
    /// Row of the logits.
    row: usize,
    /// Set by the backend, or by [`draw_all`].
    pub(super) drawn: Drawn,
}

/// Result of a draw.
#[derive(Debug)]
pub(super) enum Drawn {
    /// No draw was made yet.
    Nothing,
    /// A token was drawn.
    Token(Sampled),
    /// The mask was late: the row misses this step.
    Late,
    /// No token could be chosen.
    Failed(EngineError),
}

impl RunningTurn {
    /// Returns parameters with which the backend may choose the next token of a sequence of `len` tokens. `None` if the
    /// choice is restricted, or needs more than one row of logits.
    pub(super) fn pick(&mut self, len: usize) -> Option<Pick> {
        let forced = len - self.begin < self.generate.force.len();
        let Generate { allow, constraint, .. } = &self.generate;
        if forced || allow.is_some() || constraint.is_some() { None } else { self.sampler.pick() }
    }
}

impl Draw {
    /// Creates the draw of a turn. `drawn` is the backend's choice, if it made one.
    pub(super) fn new(
        session: u64,
        mut turn: RunningTurn,
        row: usize,
        drawn: Option<Result<Sampled, SampleError>>,
    ) -> Self {
        // The backend has used a random number of this sampler: it must not be used again.
        if drawn.is_some() {
            turn.sampler.picked();
        }
        let drawn = match drawn {
            None => Drawn::Nothing,
            Some(Ok(sampled)) => Drawn::Token(sampled),
            Some(Err(error)) => Drawn::Failed(EngineError::Sample(error.to_string())),
        };
        Self { session, turn, row, drawn }
    }

    /// Chooses the token. A panic fails this row only.
    fn draw(&mut self, logits: &Logits, sequences: &HashMap<u64, Sequence>, until: Instant) {
        if !matches!(self.drawn, Drawn::Nothing) {
            return;
        }
        let Some(sequence) = sequences.get(&self.session) else { return };
        let mask = match self.turn.masking.as_ref().map(|masking| masking.wait(until)) {
            None => None,
            Some(MaskWait::Mask(mask)) => mask,
            Some(MaskWait::Late) => return self.drawn = Drawn::Late,
            Some(MaskWait::Failed(error)) => return self.drawn = Drawn::Failed(error),
        };
        let history = &sequence.ids[self.turn.begin..];
        let sampler = &mut self.turn.sampler;
        let generate = &self.turn.generate;
        // A forced token is scored under the full distribution, whatever else is allowed.
        let forced = generate.force.get(history.len()).map(slice::from_ref);
        let allow = forced.or(generate.allow.as_deref());
        let row = logits.row(self.row);
        let sampled = catch_unwind(AssertUnwindSafe(|| match mask.as_ref().filter(|_| forced.is_none()) {
            Some(mask) => sampler.sample_within(row, history, mask),
            None => sampler.sample(row, history, allow),
        }));
        self.drawn = match sampled {
            Err(panic) => Drawn::Failed(EngineError::Sample(format!("panic: {}", panic_message(panic.as_ref())))),
            Ok(Err(error)) => Drawn::Failed(EngineError::Sample(error.to_string())),
            Ok(Ok(sampled)) => Drawn::Token(sampled),
        };
    }
}

/// Chooses a token for every draw without one. The result does not depend on the number of threads: each turn has its
/// own random numbers.
pub(super) fn draw_all(draws: &mut [Draw], logits: &Logits, sequences: &HashMap<u64, Sequence>, team: Option<&Team>) {
    // One deadline for all rows: the step waits for late masks only once.
    let until = Instant::now() + MASK_TIMEOUT;
    let draw_each = |draws: &mut [Draw]| draws.iter_mut().for_each(|draw| draw.draw(logits, sequences, until));
    match team {
        Some(team) => team.rows(draws, 1, 1, &|_, draws| draw_each(draws)),
        None => draw_each(draws),
    }
}
