//! Records of episodes, for training and evaluation.

use std::ops::Range;
use std::time::Duration;

use waymark_engine::Token;
use waymark_index::{AnswerCut, Evidence, Hit, Mode, TripleHit};

use super::action::Action;
use super::event::EpisodeEnd;
use super::hidden_evidence::{HiddenEvidence, visible};
use super::search::SearchError;
use super::usage::Usage;

/// Record of one run of the loop for one question.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    /// ID of the episode.
    pub id: String,
    /// All tokens, beginning with the prompt. Sampled ids are never encoded again, except in the training variant.
    pub tokens: Vec<Token>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// Action of each turn, in order.
    pub actions: Vec<ActionRecord>,
    /// Result of each search, in order.
    pub evidence: Vec<SearchRecord>,
    /// The answer. `None` if there is none, or if the training variant has cut it off with the end of a long sequence.
    pub answer: Option<String>,
    /// Reason for the end.
    pub finish: EpisodeEnd,
    /// Token and search counts.
    pub usage: Usage,
    /// Durations.
    pub timings: Timings,
}

/// Partial record of an interrupted episode: a [`Trajectory`] without its end.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialTrajectory {
    /// ID of the episode.
    pub id: String,
    /// All tokens so far, beginning with the prompt.
    pub tokens: Vec<Token>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The text after the prompt.
    pub text: String,
    /// Action of each turn, in order.
    pub actions: Vec<ActionRecord>,
    /// Result of each search, in order.
    pub evidence: Vec<SearchRecord>,
    /// Token and search counts.
    pub usage: Usage,
    /// Durations.
    pub timings: Timings,
}

/// Action of a turn, as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionRecord {
    /// Number of the turn, counted from 1.
    pub turn: usize,
    /// The action.
    pub action: Action,
    /// If `true`, the environment executed or answered the action, or the action ended the episode. `false`, for
    /// example, for a search after the last round.
    pub executed: bool,
    /// If `true`, the turn came after the last round, or a limit allowed no further search: it could only answer.
    pub late: bool,
    /// Reasoning in the turn, without its tags. Empty if there is none.
    pub thought: String,
    /// Summary of the evidence before the turn, in protocols whose policies summarize.
    pub summary: Option<String>,
    /// Positions of the environment's reply among all tokens. Empty without a reply. A response that was cut may end
    /// before it.
    pub reply: Range<usize>,
}

/// A search and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchRecord {
    /// Number of the turn that asked for it.
    pub turn: usize,
    /// Text that was searched for.
    pub query: String,
    /// Names of entities that the policy attached to the query.
    pub entities: Vec<String>,
    /// Retrieval mode.
    pub mode: Mode,
    /// Passages found, as they are stored.
    pub hits: Vec<Hit>,
    /// Triples found, in the modes that return triples.
    pub triples: Vec<TripleHit>,
    /// Snapshot of the index. `None` if the search failed.
    pub snapshot: Option<u64>,
    /// If `true`, the result was taken from an earlier search of the episode.
    pub cached: bool,
    /// Number of tags sanitized in the evidence, as far as the observation may show it.
    pub neutralised: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Reason of the failure. `None` if the search succeeded.
    pub error: Option<String>,
    /// Passages and triples left out because the evidence of the episode is too large. `None` if all are here.
    pub cut: Option<AnswerCut>,
    /// Number of the turn that withdrew the search. Its evidence stays in the trajectory, but supports no answer.
    pub withdrawn: Option<usize>,
    /// Tokens of the evidence that the policy no longer saw after the withdrawal. `None` if it saw them to the end.
    pub hidden: Option<HiddenEvidence>,
}

impl SearchRecord {
    /// Creates the record of a search without a result.
    pub fn asked(turn: usize, query: String, entities: Vec<String>, mode: Mode) -> SearchRecord {
        SearchRecord {
            turn,
            query,
            entities,
            mode,
            hits: Vec::new(),
            triples: Vec::new(),
            snapshot: None,
            cached: false,
            neutralised: 0,
            seconds: 0.0,
            error: None,
            cut: None,
            withdrawn: None,
            hidden: None,
        }
    }

    /// Adds the result of the search, which took `took`.
    #[must_use]
    pub fn with_result(self, result: Result<Evidence, SearchError>, took: Duration) -> SearchRecord {
        let seconds = took.as_secs_f64();
        match result {
            Ok(Evidence { hits, triples, snapshot, .. }) => {
                SearchRecord { hits, triples, snapshot: Some(snapshot), seconds, ..self }
            }
            Err(error) => SearchRecord { error: Some(error.to_string()), seconds, ..self },
        }
    }

    /// Returns `true` if the search was not withdrawn, so that its evidence supports an answer.
    pub fn stands(&self) -> bool {
        self.withdrawn.is_none()
    }
}

/// Durations in an episode, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// From the beginning to the end of all computation.
    pub total: f64,
    /// From the beginning to the first token. `None` without a token.
    pub first_token: Option<f64>,
    /// Generation, including its time in the engine's queue.
    pub generation: f64,
    /// Searches.
    pub search: f64,
}

impl PartialTrajectory {
    /// Returns the tokens that the policy sees at the end: all but hidden evidence.
    pub fn visible_tokens(&self) -> Vec<Token> {
        visible(&self.tokens, &self.evidence)
    }
}

impl Trajectory {
    /// Returns the tokens after the prompt.
    pub fn response(&self) -> &[Token] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Returns the number of turns.
    pub fn turns(&self) -> usize {
        self.actions.len()
    }

    /// Returns the number of rounds with the environment.
    pub fn rounds(&self) -> usize {
        self.actions.iter().filter(|acted| acted.executed && !acted.action.ends()).count()
    }

    /// Returns the explanation of a refusal, if the policy refused to answer.
    pub fn refusal(&self) -> Option<&str> {
        match self.actions.last().map(|acted| &acted.action) {
            Some(Action::Refuse { text }) => Some(text),
            _ => None,
        }
    }

    /// Returns the number of turns with an action that the protocol knows.
    pub fn valid_actions(&self) -> usize {
        self.actions.iter().filter(|acted| acted.action != Action::Invalid).count()
    }
}
