//! Sampling: one token for every row that wants one, side by side on the backend's threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use waymark_models::Logits;
use waymark_models::kernel::Team;
use waymark_models::sampler::{Pick, SampleError, Sampled};

use super::error::EngineError;
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
    pub(super) drawn: Option<Result<Sampled, EngineError>>,
}

impl Running {
    /// How the backend may choose the next token of a sequence of `len` tokens by itself; `None` where not every token may
    /// be chosen, or more is needed than one row of logits.
    pub(super) fn pick(&mut self, len: usize) -> Option<Pick> {
        let forced = len - self.begin < self.generate.force.len();
        if forced || self.generate.allow.is_some() { None } else { self.sampler.pick() }
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
        let drawn = drawn.map(|drawn| drawn.map_err(|error| EngineError::Sample(error.to_string())));
        Self { session, turn, row, drawn }
    }

    /// A panic concerns this row alone.
    fn draw(&mut self, logits: &Logits, sequences: &HashMap<u64, Sequence>) {
        if self.drawn.is_some() {
            return;
        }
        let Some(sequence) = sequences.get(&self.session) else { return };
        let history = &sequence.ids[self.turn.begin..];
        let (sampler, generate) = (&mut self.turn.sampler, &self.turn.generate);
        let forced = generate.force.get(history.len()).map(slice::from_ref);
        let allow = forced.or(generate.allow.as_deref());
        let row = logits.row(self.row);
        let sampled = catch_unwind(AssertUnwindSafe(|| sampler.sample(row, history, allow)));
        self.drawn = Some(match sampled {
            Err(panic) => Err(EngineError::Sample(format!("panic: {}", message(panic.as_ref())))),
            Ok(result) => result.map_err(|error| EngineError::Sample(error.to_string())),
        });
    }
}

/// Chooses a token for each that has none. Which thread does it makes no difference: each turn has its own random numbers.
pub(super) fn all(draws: &mut [Draw], logits: &Logits, sequences: &HashMap<u64, Sequence>, team: Option<&Team>) {
    let some = |draws: &mut [Draw]| draws.iter_mut().for_each(|draw| draw.draw(logits, sequences));
    match team {
        Some(team) => team.rows(draws, 1, 1, &|_, draws| some(draws)),
        None => some(draws),
    }
}
