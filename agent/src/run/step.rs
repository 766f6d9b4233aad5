//! Requests of the state machine to its driver.

use std::sync::Arc;

use waymark_engine::{Constraint, Generate, Origin, StopSet, TurnFinish};
use waymark_index::{Evidence, Mode, Passage};

use crate::action::PolicySearch;
use crate::event::Event;

/// Next task for the driver of an episode. Requests that have a result are answered before the next poll.
#[derive(Debug)]
pub(super) enum Step {
    /// Send an event.
    Emit(Event),
    /// Append given tokens to the sequence.
    Extend {
        /// Token IDs; at least one.
        ids: Vec<u32>,
        /// Origin of the tokens.
        origin: Origin,
        /// If `true`, the tokens are written in the policy's name.
        forced: bool,
    },
    /// Replace the sequence by the visible tokens of the record.
    Rebuild {
        /// Number of tokens that stay: those before the hidden evidence.
        kept: usize,
    },
    /// A turn begins with the next poll, and its beginning can be kept.
    Boundary,
    /// Generate with these parameters. Answered by `sampled` for each token, then by `generated`.
    Generate(Box<Generate>),
    /// Search. Answered by `found`.
    Search(Box<SearchStep>),
    /// Close the sequence. Answered by `closed`.
    Close,
    /// Find the passages that support an answer. Answered by `cited`.
    Cite {
        /// The answer.
        answer: String,
        /// Passages found, in the order of retrieval.
        passages: Vec<Passage>,
    },
    /// The episode is over.
    End,
}

/// A search to execute.
#[derive(Debug)]
pub(super) struct SearchStep {
    /// The search that the policy asks for.
    pub(super) search: PolicySearch,
    /// Retrieval mode.
    pub(super) mode: Mode,
    /// Result of an earlier search that asked for the same. `None` if the search has to be executed.
    pub(super) recalled: Option<Evidence>,
}

/// Parameters of one generation.
#[derive(Debug, Default)]
pub(super) struct GenerationParams {
    /// Maximum number of tokens; not 0.
    pub(super) max: usize,
    /// Stop strings.
    pub(super) stops: Arc<StopSet>,
    /// Token ids that may be chosen. `None` allows all.
    pub(super) allow: Option<Vec<u32>>,
    /// Constraint on the text. `None` allows any.
    pub(super) constraint: Option<Arc<dyn Constraint>>,
    /// Tokens banned by guided generation.
    pub(super) bans: Option<Arc<[(u32, f32)]>>,
}

/// Reason for the end of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The stop string with this index was completed.
    Tag(usize),
    /// The policy ended the turn.
    Eos,
    /// The token limit was reached.
    Length,
    /// The context was exhausted.
    Context,
    /// A limit left no room for the tokens to be forced.
    Unforced,
    /// A client's stop string or a tool call ended the answer.
    Stopped,
    /// The time was exhausted.
    Time,
}

impl TurnEnd {
    /// Returns `true` if a limit ended the turn, not the policy.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, TurnEnd::Length | TurnEnd::Context | TurnEnd::Unforced | TurnEnd::Time)
    }
}

impl From<TurnFinish> for TurnEnd {
    fn from(finish: TurnFinish) -> TurnEnd {
        match finish {
            TurnFinish::Stop(which) => TurnEnd::Tag(which),
            TurnFinish::Eos => TurnEnd::Eos,
            TurnFinish::Length => TurnEnd::Length,
            TurnFinish::Context => TurnEnd::Context,
        }
    }
}
