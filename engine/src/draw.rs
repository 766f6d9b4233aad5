//! Sampling: draws the next token of every row that needs one, and the tokens that verify its proposed tokens. Logits are
//! sampled in parallel on the backend's threads.

use std::borrow::Cow;
use std::time::Instant;

use smallvec::SmallVec;
use waymark_models::Logits;
use waymark_models::kernel::Team;
use waymark_models::sampler::{SampleError, Sampled};

use super::error::EngineError;
use super::masking::Masks;
use super::running_turn::RunningTurn;
use super::scheduler::Scheduler;

/// A turn taken out of its session while its next tokens are chosen.
#[derive(Debug)]
pub(super) struct Draw {
    pub(super) session: u64,
    pub(super) turn: Box<RunningTurn>,
    /// Proposed tokens. The token drawn at each position but the last is compared with the proposed one.
    pub(super) proposed: Vec<u32>,
    /// Sources of the tokens, one per position: mostly a single one, for which no memory is allocated.
    sources: SmallVec<[DrawSource; 1]>,
    /// Results by position, up to the first token that was not proposed. Empty before [`draw_all`].
    pub(super) drawn: SmallVec<[Drawn; 1]>,
}

/// Source of a sampled token.
#[derive(Debug)]
pub(super) enum DrawSource {
    /// Row of the logits to sample from.
    Logits(usize),
    /// Choice of the backend.
    Backend(Result<Sampled, SampleError>),
}

/// Result of a draw at one position.
#[derive(Debug)]
pub(super) enum Drawn {
    /// A token was drawn.
    Token(Sampled),
    /// The mask was late: the row misses this step.
    Late,
    /// No token could be chosen.
    Failed(EngineError),
}

impl Draw {
    /// Creates the draw of a turn. `sources` has one entry more than `proposed`.
    pub(super) fn new(
        session: u64,
        turn: Box<RunningTurn>,
        proposed: Vec<u32>,
        sources: SmallVec<[DrawSource; 1]>,
    ) -> Self {
        Self { session, turn, proposed, sources, drawn: SmallVec::new() }
    }

    /// Returns `true` if a token is to be sampled from logits.
    fn samples(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, DrawSource::Logits(_)))
    }

    /// Draws position by position, with the same results as separate steps. Stops at the first token that differs from
    /// the proposed one, since the next position was computed with the proposed token.
    fn draw(&mut self, logits: &Logits, scheduler: &Scheduler, until: Instant) {
        // A row without a session stays undrawn, and its delivery reports the error.
        let Some(session) = scheduler.session(self.session) else { return };
        let Self { turn, proposed, sources, drawn, .. } = self;
        let mut history = Cow::Borrowed(turn.history(session.sequence().ids()));
        for (position, source) in sources.drain(..).enumerate() {
            let result = match source {
                DrawSource::Logits(row) => turn.draw(logits.row(row), &history, until),
                DrawSource::Backend(chosen) => {
                    // The backend has used the sampler's next random number, so the sampler must skip that number.
                    turn.picked();
                    chosen.map_or_else(|error| Drawn::Failed(EngineError::Sample(error.to_string())), Drawn::Token)
                }
            };
            let accepted = match &result {
                Drawn::Token(sampled) => Some(sampled.id).filter(|id| proposed.get(position) == Some(id)),
                Drawn::Late | Drawn::Failed(_) => None,
            };
            drawn.push(result);
            match accepted {
                Some(id) => history.to_mut().push(id),
                None => break,
            }
        }
    }
}

/// Chooses the tokens of every draw. The result does not depend on the number of threads: each turn has its own random
/// numbers.
pub(super) fn draw_all(draws: &mut [Draw], logits: &Logits, scheduler: &Scheduler, team: Option<&Team>) {
    // One deadline for all rows: the step waits for late masks only once.
    let until = Masks::deadline();
    let draw_each = |draws: &mut [Draw]| draws.iter_mut().for_each(|draw| draw.draw(logits, scheduler, until));
    // Waking threads takes far longer than to take over all tokens that the backend chose.
    let team = team.filter(|_| draws.iter().filter(|draw| draw.samples()).nth(1).is_some());
    match team {
        Some(team) => team.rows(draws, 1, 1, &|_, draws| draw_each(draws)),
        None => draw_each(draws),
    }
}
