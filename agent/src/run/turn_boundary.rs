//! State of an episode between two turns, from which it can go on several times.

use std::time::Duration;

use waymark_index::AnswerRoom;

use super::budget_tracker::BudgetTracker;
use super::transcript::Transcript;

/// What a turn begins with: the record so far, and what is left of the limits.
#[derive(Debug, Clone)]
pub(super) struct TurnBoundary {
    pub(super) budget: BudgetTracker,
    pub(super) transcript: Transcript,
    pub(super) evidence_room: AnswerRoom,
    /// Number of generations so far.
    pub(super) generations: u64,
}

/// The beginning of a turn, with a session that has computed the tokens before it.
#[derive(Debug)]
pub(super) struct TurnState<G> {
    pub(super) boundary: TurnBoundary,
    /// Time since the beginning of the episode.
    pub(super) elapsed: Duration,
    /// Session with the visible tokens. `None` if the loop opens one for each turn.
    pub(super) session: Option<G>,
}
