//! Sampling: one token for every row that wants one, side by side on the backend's threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use waymark_models::Logits;
use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};

use super::error::EngineError;
use super::masking::{PATIENCE, Waited};
use super::request::Generate;
use super::sequence::{Running, Sequence};
use super::worker::message;

/// A turn taken out of its session for as long as its next token is chosen.
#[derive(Debug)]
pub(super) struct Draw {
    pub(super) session: u64,
    pub(super) turn: Running,
    /// Row of the logits.
    row: usize,
    /// Filled by the backend, or by [`all`].
    pub(super) drawn: Drawn,
}

/// What came of a draw.
#[derive(Debug)]
pub(super) enum Drawn {
    /// Nothing: it was not made.
    Nothing,
    /// A token.
    Token(Sampled),
    /// The mask was not there in time: the row sits this step out.
    Late,
    /// No token could be chosen.
    Failed(EngineError),
}

impl Running {
    /// How the backend may choose the next token of a sequence of `len` tokens by itself; `None` where not every token may
    /// be chosen, or more is needed than one row of logits.
    pub(super) fn pick(&mut self, len: usize) -> Option<Pick> {
        let forced = len - self.begin < self.generate.force.len();
        let Generate { allow, constraint, .. } = &self.generate;
        if forced || allow.is_some() || constraint.is_some() { None } else { self.sampler.pick() }
    }
}

impl Draw {
    /// `drawn` is what the backend chose, where it did.
    pub(super) fn new(
        session: u64,
        mut turn: Running,
        row: usize,
        drawn: Option<Result<Sampled, SampleError>>,
    ) -> Self {
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

    /// A panic concerns this row alone.
    fn draw(&mut self, logits: &Logits, sequences: &HashMap<u64, Sequence>, until: Instant) {
        if !matches!(self.drawn, Drawn::Nothing) {
            return;
        }
        let Some(sequence) = sequences.get(&self.session) else { return };
        let mask = match self.turn.masking.as_ref().map(|masking| masking.wait(until)) {
            None => None,
            Some(Waited::Mask(mask)) => mask,
            Some(Waited::Late) => return self.drawn = Drawn::Late,
            Some(Waited::Failed(reason)) => return self.drawn = Drawn::Failed(EngineError::Sample(reason)),
        };
        let history = &sequence.ids[self.turn.begin..];
        let (sampler, generate) = (&mut self.turn.sampler, &self.turn.generate);
        let forced = generate.force.get(history.len()).map(slice::from_ref);
        let allow = forced.or(generate.allow.as_deref());
        let row = logits.row(self.row);
        let sampled = catch_unwind(AssertUnwindSafe(|| match mask.as_ref().filter(|_| forced.is_none()) {
            Some(mask) => sampler.sample_within(row, history, mask),
            None => sampler.sample(row, history, allow),
        }));
        self.drawn = match sampled {
            Err(panic) => Drawn::Failed(EngineError::Sample(format!("panic: {}", message(panic.as_ref())))),
            Ok(Err(error)) => Drawn::Failed(EngineError::Sample(error.to_string())),
            Ok(Ok(sampled)) => Drawn::Token(sampled),
        };
    }
}

/// Chooses a token for each that has none. Which thread does it makes no difference: each turn has its own random numbers.
pub(super) fn all(draws: &mut [Draw], logits: &Logits, sequences: &HashMap<u64, Sequence>, team: Option<&Team>) {
    let until = Instant::now() + PATIENCE;
    let some = |draws: &mut [Draw]| draws.iter_mut().for_each(|draw| draw.draw(logits, sequences, until));
    match team {
        Some(team) => team.rows(draws, 1, 1, &|_, draws| some(draws)),
        None => some(draws),
    }
}
