//! States of an episode.

use std::time::Duration;

use waymark_index::Evidence;

use crate::budget::BudgetLimit;
use crate::event::Cited;
use crate::protocol::{Injected, ModePrefix};
use crate::search::SearchError;
use crate::usage::Usage;

use super::guide_run::GuideRun;
use super::search_result::PendingSearch;
use super::step::TurnEnd;

/// State of an episode, from which the next transition starts once the driver has taken all steps.
#[derive(Debug)]
pub(super) enum State {
    /// A turn begins.
    TurnBegins,
    /// A guided turn goes on.
    Guided(GuideRun, Option<TurnEnd>),
    /// A generation is running.
    Generating(GenerationPurpose),
    /// A generation has ended.
    Generated(GenerationPurpose, TurnEnd),
    /// The turn is written, and may still lack an answer.
    Written(TurnEnd),
    /// The turn is over. The limit, if any, leaves no room for another one.
    TurnOver(TurnEnd, Option<BudgetLimit>),
    /// A search is running.
    Searching(PendingSearch),
    /// A search has ended.
    Found(PendingSearch, Box<Result<Evidence, SearchError>>, Duration),
    /// The environment replies.
    Replying(Vec<Injected>),
    /// The environment has replied.
    RoundOver,
    /// The sequence is being closed.
    Closing,
    /// The sequence is closed.
    Closed(Usage),
    /// Citations are being computed.
    Citing(Usage),
    /// The episode ends with these citations.
    Ending(Usage, Vec<Cited>),
    /// The episode is over.
    Ended,
}

/// Purpose of a generation.
#[derive(Debug)]
pub(super) enum GenerationPurpose {
    /// A turn that is not guided.
    Turn,
    /// The beginning of a turn, up to the tag of a query whose mode is written for the policy.
    Opening(ModePrefix),
    /// A part of a guided turn.
    Guided(GuideRun),
    /// A forced answer, needed because of this limit, or in the last turn.
    Answer(Option<BudgetLimit>),
}
