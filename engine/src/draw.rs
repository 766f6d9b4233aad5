//! Sampling: one token for every row that needs one, in parallel on the backend's threads.

use std::time::Instant;

use waymark_models::Logits;
use waymark_models::kernel::Team;
use waymark_models::sampler::{SampleError, Sampled};

use super::error::EngineError;
use super::masking::Masks;
use super::running_turn::RunningTurn;
use super::scheduler::Scheduler;

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
            turn.picked();
        }
        let drawn = match drawn {
            None => Drawn::Nothing,
            Some(Ok(sampled)) => Drawn::Token(sampled),
            Some(Err(error)) => Drawn::Failed(EngineError::Sample(error.to_string())),
        };
        Self { session, turn, row, drawn }
    }

    fn draw(&mut self, logits: &Logits, scheduler: &Scheduler, until: Instant) {
        if !matches!(self.drawn, Drawn::Nothing) {
            return;
        }
        // A row without a session stays undrawn, and its delivery reports the error.
        let Some(session) = scheduler.session(self.session) else { return };
        self.drawn = self.turn.draw(logits.row(self.row), session.sequence().ids(), until);
    }
}

/// Chooses a token for every draw without one. The result does not depend on the number of threads: each turn has its
/// own random numbers.
pub(super) fn draw_all(draws: &mut [Draw], logits: &Logits, scheduler: &Scheduler, team: Option<&Team>) {
    // One deadline for all rows: the step waits for late masks only once.
    let until = Masks::deadline();
    let draw_each = |draws: &mut [Draw]| draws.iter_mut().for_each(|draw| draw.draw(logits, scheduler, until));
    match team {
        Some(team) => team.rows(draws, 1, 1, &|_, draws| draw_each(draws)),
        None => draw_each(draws),
    }
}
