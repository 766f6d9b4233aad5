//! The actions that a guided turn may take.

use crate::budget::BudgetLimit;
use crate::episode_limits::line;
use crate::guide::AllowedActions;
use crate::trajectory::SearchRecord;

use super::setup::EpisodeSetup;

/// Longest thought of a guided turn, in tokens.
const THINK: usize = 80;

/// Longest query of a guided turn, in tokens.
const QUERY: usize = 40;

/// State of an episode at the beginning of a guided turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfferState<'a> {
    /// Number of the turn.
    pub(super) turn: usize,
    /// Maximum number of tokens of the turn.
    pub(super) room: usize,
    /// If `true`, no round with the environment can follow.
    pub(super) last: bool,
    /// Exhausted limit of the environment.
    pub(super) exhausted: Option<BudgetLimit>,
    /// Results of the episode's own searches so far.
    pub(super) evidence: &'a [SearchRecord],
}

/// Returns the allowed actions. A thought gets at most half of the room, a query or an answer at most a quarter.
pub(super) fn offer(state: OfferState<'_>, setup: &EpisodeSetup) -> AllowedActions {
    let OfferState { turn, room, last, exhausted, evidence } = state;
    let found_nothing = |found: &SearchRecord| found.hits.is_empty() && found.triples.is_empty();
    let all = || setup.earlier_evidence().iter().chain(evidence);
    let standing = || all().filter(|found| found.stands());
    // The evidence in the prompt cannot be withdrawn.
    let latest = evidence.iter().rfind(|found| found.stands());
    // A policy that repeats a search has no other question left.
    let repeats = evidence.last().is_some_and(|found| found.cached);
    let observes = !last && exhausted != Some(BudgetLimit::EnvironmentTokens);
    AllowedActions {
        question: line(&setup.question),
        informed: standing().next().is_some(),
        turn,
        opened: setup.opened(turn).is_some(),
        search: !last && !repeats && exhausted.is_none(),
        answer: standing().count() >= setup.settings.retrieval.least_searches,
        withdraw: observes && latest.is_some_and(found_nothing),
        refuse: all().next().is_some() && standing().all(found_nothing),
        modes: setup.settings.mode.map_or_else(|| setup.modes.clone(), |mode| vec![mode]),
        think_tokens: THINK.min(room / 2).max(1),
        query_tokens: QUERY.min(room / 4).max(1),
        answer_tokens: setup.settings.budget.answer_tokens.min(room / 4).max(1),
    }
}
