//! Actions of a policy, and their results.

use serde::{Deserialize, Serialize};
use waymark_index::{Mode, Passage, TripleHit};

use super::tool_call::ToolCallText;

/// Action of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Action {
    /// A search for evidence.
    Search(PolicySearch),
    /// Withdrawal of the last search that was not withdrawn yet.
    Backtrack,
    /// An answer, which ends the episode.
    Answer {
        /// The answer, stripped.
        text: String,
    },
    /// A call of a client's tool, which ends the episode.
    Call {
        /// Name of the tool.
        name: String,
        /// Arguments: a JSON object as text.
        arguments: String,
    },
    /// A refusal to answer, which ends the episode.
    Refuse {
        /// The explanation, stripped; may be empty.
        text: String,
    },
    /// No action that the protocol knows.
    Invalid,
}

impl Action {
    /// Returns `true` if the action ends the episode in every loop.
    pub fn ends(&self) -> bool {
        matches!(self, Action::Answer { .. } | Action::Call { .. } | Action::Refuse { .. })
    }

    /// Returns the search that the action asks for, if any.
    pub fn search(&self) -> Option<&PolicySearch> {
        match self {
            Action::Search(search) => Some(search),
            _ => None,
        }
    }

    /// Returns the text with which the action ends the episode: an answer, or the explanation of a refusal.
    pub fn ending(&self) -> Option<&str> {
        match self {
            Action::Answer { text } | Action::Refuse { text } => Some(text),
            _ => None,
        }
    }
}

impl From<ToolCallText> for Action {
    fn from(ToolCallText { name, arguments }: ToolCallText) -> Action {
        Action::Call { name, arguments }
    }
}

/// A search that a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySearch {
    /// The stripped text as written, possibly with the name of its mode.
    pub written: String,
    /// Text to search for.
    pub query: String,
    /// Mode named by the policy. `None` uses the policy's default mode.
    pub mode: Option<Mode>,
    /// Names of entities attached to the query, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
}

impl PolicySearch {
    /// Creates a search for the whole text, without a mode.
    pub fn plain(written: impl Into<String>) -> PolicySearch {
        let written = written.into();
        PolicySearch { query: written.clone(), written, mode: None, entities: Vec::new() }
    }
}

/// Result of an action that does not end the episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActionOutcome<'a> {
    /// The search found evidence, possibly none.
    Evidence(FoundEvidence<'a>),
    /// The search failed, for this reason.
    Failed(&'a str),
    /// Query of the search that [`Action::Backtrack`] withdrew. `None` if there was no search to withdraw.
    Withdrawn(Option<&'a str>),
    /// Whole text of a turn that was an [`Action::Invalid`].
    Invalid(&'a str),
}

/// Evidence of a search: as stored, or with its headers sanitized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundEvidence<'a> {
    /// Retrieval mode.
    pub mode: Mode,
    /// Passages, best first; may be empty.
    pub passages: &'a [Passage],
    /// Triples, best first, in the modes that return any.
    pub triples: &'a [TripleHit],
}

impl<'a> FoundEvidence<'a> {
    /// Creates the evidence of a passage search.
    pub fn of(passages: &'a [Passage]) -> FoundEvidence<'a> {
        FoundEvidence { mode: Mode::Passage, passages, triples: &[] }
    }
}
