//! Events of an episode: the trace that it emits while it runs.

use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;
use waymark_index::{AnswerCut, Hit, Mode, TripleHit};

use super::budget::BudgetLimit;
use super::token_logprob::TokenLogprob;
use super::usage::Usage;

/// An event of an episode. In JSON, `type` names its kind.
///
/// `Think`, `Query`, `Answer` and `Text` are deltas. The `Answer` deltas of an episode, joined, are its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", schema(as = AgentEvent))]
pub enum Event {
    /// The episode begins.
    Started {
        /// ID of the episode.
        id: String,
        /// Name of the policy.
        model: String,
        /// Name of the protocol.
        protocol: String,
        /// The question.
        question: String,
        /// Length of the prompt in tokens.
        prompt_tokens: usize,
    },
    /// The policy begins a turn.
    TurnStarted {
        /// Number of the turn, counted from 1.
        turn: usize,
    },
    /// A delta of the reasoning.
    Think {
        /// Number of the turn.
        turn: usize,
        /// The text.
        text: String,
        /// Tokens of the delta, if log-probabilities were requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// A delta of a query, as the policy writes it.
    Query {
        /// Number of the turn.
        turn: usize,
        /// The text.
        text: String,
        /// Tokens of the delta, if log-probabilities were requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// A delta of the answer.
    Answer {
        /// The text.
        text: String,
        /// Tokens of the delta, if log-probabilities were requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// The complete text in which the policy explains that it gives no answer.
    Refusal {
        /// The text; never empty.
        text: String,
    },
    /// The policy calls a client's tool, which ends the episode. Policies that do not search write their calls in the
    /// answer.
    ToolCall {
        /// Number of the turn.
        turn: usize,
        /// Name of the tool.
        name: String,
        /// Arguments: a JSON object as text.
        arguments: String,
    },
    /// A delta of text outside every known tag.
    Text {
        /// Number of the turn.
        turn: usize,
        /// The text.
        text: String,
        /// Tokens of the delta, if log-probabilities were requested.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// A search begins.
    SearchStarted {
        /// Number of the turn that asked for the search.
        turn: usize,
        /// Text to search for.
        query: String,
        /// Names of entities that the policy attached to the query.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
        entities: Vec<String>,
        /// Retrieval mode.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        mode: Mode,
        /// Number of passages requested.
        k: usize,
    },
    /// A search ended.
    SearchFinished {
        /// Number of the turn that asked for the search.
        turn: usize,
        /// Text that was searched for.
        query: String,
        /// Retrieval mode.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        mode: Mode,
        /// Passages found, as they are stored.
        hits: Vec<Hit>,
        /// Triples found, in the modes that return triples.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<TripleHit>>))]
        triples: Vec<TripleHit>,
        /// Snapshot of the index that was searched. `null` if the search failed.
        #[cfg_attr(feature = "openapi", schema(required))]
        snapshot: Option<u64>,
        /// If `true`, an earlier search of the episode asked for the same, and its result was reused.
        cached: bool,
        /// Duration of the search.
        milliseconds: f64,
        /// Number of tags and control tokens that were sanitized in the passages, as far as the observation may show
        /// them.
        neutralised: usize,
        /// Reason of the failure. Absent if the search succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Passages and triples that are missing here because the evidence of the episode is too large. The policy has
        /// read them as far as the observation shows them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<AnswerCut>,
    },
    /// The policy withdrew one of its searches, whose evidence no longer supports an answer.
    Withdrawn {
        /// Number of the turn that withdrew the search.
        turn: usize,
        /// Number of the turn that had asked for the search.
        search: usize,
        /// Text that was searched for.
        query: String,
        /// Number of tokens of its evidence that the policy no longer sees. Absent if the evidence stays in its context.
        #[serde(default, skip_serializing_if = "is_zero")]
        removed: usize,
    },
    /// The environment added text to the context.
    Observation {
        /// Number of the turn that caused the observation.
        turn: usize,
        /// The text.
        text: String,
        /// Length of the text in tokens.
        tokens: usize,
        /// If `true`, the text was too long and was cut.
        truncated: bool,
    },
    /// The turn contained no action that the protocol knows.
    Invalid {
        /// Number of the turn.
        turn: usize,
        /// Reply to the policy.
        message: String,
    },
    /// A generation failed and went on in a new attempt, on another engine if there is one. No token is repeated.
    Resumed {
        /// Number of the turn.
        turn: usize,
        /// Number of tokens of the generation that were sampled before the failure.
        tokens: usize,
        /// Reason of the failure.
        reason: String,
    },
    /// A limit was reached.
    Budget {
        /// Kind of the limit.
        kind: BudgetLimit,
    },
    /// The episode is over.
    Finished {
        /// Reason for the end.
        reason: EpisodeEnd,
        /// The answer. `null` if there is none.
        #[cfg_attr(feature = "openapi", schema(required))]
        answer: Option<String>,
        /// Token and search counts.
        usage: Usage,
        /// Number of turns of the policy.
        turns: usize,
        /// Number of searches, including repeated ones.
        searches: usize,
        /// Passages that support the answer, in the order of its text. Empty if citations were not requested.
        #[serde(default)]
        #[cfg_attr(feature = "openapi", schema(required))]
        citations: Vec<Cited>,
    },
    /// The episode was interrupted by an error.
    Failed {
        /// Error message.
        message: String,
        /// Machine-readable error code.
        code: String,
    },
}

impl Event {
    /// Returns the event's `type` in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Started { .. } => "started",
            Event::TurnStarted { .. } => "turn_started",
            Event::Think { .. } => "think",
            Event::Query { .. } => "query",
            Event::Answer { .. } => "answer",
            Event::Refusal { .. } => "refusal",
            Event::ToolCall { .. } => "tool_call",
            Event::Text { .. } => "text",
            Event::SearchStarted { .. } => "search_started",
            Event::SearchFinished { .. } => "search_finished",
            Event::Withdrawn { .. } => "withdrawn",
            Event::Observation { .. } => "observation",
            Event::Invalid { .. } => "invalid",
            Event::Resumed { .. } => "resumed",
            Event::Budget { .. } => "budget",
            Event::Finished { .. } => "finished",
            Event::Failed { .. } => "failed",
        }
    }

    /// Returns `true` for the steps that traces show between the texts of the policy: searches and their withdrawal,
    /// replies of the environment, resumed generations, and limits.
    pub fn is_step(&self) -> bool {
        match self {
            Event::SearchStarted { .. }
            | Event::SearchFinished { .. }
            | Event::Withdrawn { .. }
            | Event::Observation { .. }
            | Event::Invalid { .. }
            | Event::Resumed { .. }
            | Event::Budget { .. } => true,
            Event::Started { .. }
            | Event::TurnStarted { .. }
            | Event::Think { .. }
            | Event::Query { .. }
            | Event::Answer { .. }
            | Event::Refusal { .. }
            | Event::ToolCall { .. }
            | Event::Text { .. }
            | Event::Finished { .. }
            | Event::Failed { .. } => false,
        }
    }

    /// Returns the remark with which a terminal shows the event: a label of one word and a text. `None` for deltas,
    /// searches, observations, and the beginning and end of turns and episodes, which are shown in more than one line,
    /// or not at all.
    pub fn remark(&self) -> Option<(&'static str, String)> {
        match self {
            Event::Refusal { text } => Some(("refused", text.clone())),
            Event::ToolCall { name, arguments, .. } => Some(("call", format!("{name} {arguments}"))),
            Event::Withdrawn { query, .. } => Some(("back", format!("withdraws the search for {query}"))),
            Event::Invalid { .. } => Some(("invalid", "the turn is not a valid action of the protocol".to_owned())),
            Event::Resumed { reason, .. } => {
                Some(("resumed", format!("the generation went on after a failure: {reason}")))
            }
            Event::Budget { kind } => Some(("budget", format!("no {kind} left"))),
            _ => None,
        }
    }
}

/// Returns `true` for a count that is left out of an event.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A passage that supports a segment of the answer, by the rule of `waymark::agent::citation`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = AgentCitation))]
pub struct Cited {
    /// Start of the segment in the answer, in characters (Unicode scalar values).
    pub start: usize,
    /// End of the segment: the position after its last character.
    pub end: usize,
    /// ID of the passage.
    pub passage: String,
    /// Title of the passage; may be empty.
    pub title: String,
    /// If `true`, the passage contains the segment verbatim; otherwise it contains all its content words.
    pub stated: bool,
}

/// Reason for the end of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", schema(as = EpisodeEnd))]
pub enum EpisodeEnd {
    /// The answer is complete, or ran into one of the client's stop strings. Without an answer, the policy asked for
    /// nothing, which ends an episode of a reference's loop.
    Stop,
    /// The token limit or the context was exhausted; the answer or the refusal, if any, is incomplete.
    Length,
    /// The limit of turns, searches or observation tokens was exhausted without an answer.
    Turns,
    /// The time was exhausted; the answer or the refusal, if any, is incomplete.
    Time,
    /// The policy refused to answer, and its refusal is complete.
    Refused,
    /// The policy called a client's tool in place of an answer.
    Called,
}
