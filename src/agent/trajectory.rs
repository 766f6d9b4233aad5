//! The record of an episode: what training and evaluation keep.

use waymark_index::{Hit, Mode, TripleHit};

use super::event::{Reason, Usage};
use super::protocol::Action;
use crate::engine::Token;

/// One run of the loop for one question.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    /// The episode's id.
    pub id: String,
    /// Every token, the prompt's first. Ids are never encoded again, but in the training variant.
    pub tokens: Vec<Token>,
    /// How many of them are the prompt.
    pub prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// What each turn asked for, in order.
    pub actions: Vec<Acted>,
    /// What each search found, in order.
    pub evidence: Vec<Found>,
    /// The answer, if there is one; none where the training variant has cut it away with the end of a long sequence.
    pub answer: Option<String>,
    /// Why it ended.
    pub finish: Reason,
    /// What it took.
    pub usage: Usage,
    /// Where its time went.
    pub timings: Timings,
}

/// What an episode had written down when it was broken off: a [`Trajectory`] that lacks its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment {
    /// The episode's id.
    pub id: String,
    /// Every token so far, the prompt's first.
    pub tokens: Vec<Token>,
    /// How many of them are the prompt.
    pub prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// What each turn asked for, in order.
    pub actions: Vec<Acted>,
    /// What each search found, in order.
    pub evidence: Vec<Found>,
    /// What it took.
    pub usage: Usage,
    /// Where its time went.
    pub timings: Timings,
}

/// A turn's action.
#[derive(Debug, Clone, PartialEq)]
pub struct Acted {
    /// The turn, counted from 1.
    pub turn: usize,
    /// What it asked for.
    pub action: Action,
    /// Whether the environment did anything about it: false for a search after the last round.
    pub executed: bool,
    /// Whether it came after the last round, or where a bound allowed no other search: it could only answer.
    pub late: bool,
    /// What the turn says of the evidence before it, in protocols whose policies summarise.
    pub summary: Option<String>,
}

/// A search and what it found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The turn that asked for it.
    pub turn: usize,
    /// What was searched for.
    pub query: String,
    /// The names that the policy said it is about.
    pub entities: Vec<String>,
    /// How.
    pub mode: Mode,
    /// What was found, as it is stored.
    pub hits: Vec<Hit>,
    /// The triples found, in the modes that return any.
    pub triples: Vec<TripleHit>,
    /// The state of the index; none where the search failed.
    pub snapshot: Option<u64>,
    /// Whether it was taken from an earlier search of the episode.
    pub cached: bool,
    /// How many tags were made harmless in the part of it that the observation was cut from.
    pub neutralised: usize,
    /// Seconds it took.
    pub seconds: f64,
    /// Why it failed, where it did.
    pub error: Option<String>,
    /// The turn that withdrew it: what it found stays in the sequence, but supports no answer.
    pub withdrawn: Option<usize>,
}

impl Found {
    /// Whether what it found supports an answer: nobody went back on it.
    pub fn stands(&self) -> bool {
        self.withdrawn.is_none()
    }
}

/// Where the time of an episode went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// From the beginning until nothing more was computed.
    pub total: f64,
    /// From the beginning to the first token.
    pub first_token: Option<f64>,
    /// Generation, its queues included.
    pub generation: f64,
    /// Searches.
    pub search: f64,
}

impl Trajectory {
    /// The tokens after the prompt.
    pub fn response(&self) -> &[Token] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Generations made.
    pub fn turns(&self) -> usize {
        self.actions.len()
    }

    /// Rounds with the environment.
    pub fn rounds(&self) -> usize {
        self.actions.iter().filter(|acted| acted.executed && !acted.action.ends()).count()
    }

    /// Why the policy gave no answer, where it says that it can give none.
    pub fn refusal(&self) -> Option<&str> {
        match self.actions.last().map(|acted| &acted.action) {
            Some(Action::Refuse { text }) => Some(text),
            _ => None,
        }
    }

    /// Turns with an action that the protocol knows.
    pub fn valid_actions(&self) -> usize {
        self.actions.iter().filter(|acted| acted.action != Action::Invalid).count()
    }

    /// Turns that asked for a search, executed or not.
    pub fn searches_asked(&self) -> usize {
        self.actions.iter().filter(|acted| matches!(acted.action, Action::Search(_))).count()
    }
}
