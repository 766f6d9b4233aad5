//! The trace: what an episode tells while it runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{Hit, Mode, TripleHit};

use super::budget::Bound;
use crate::schema;

/// One thing that happened. In JSON its `type` names it.
///
/// `Think`, `Query`, `Answer` and `Text` are deltas. The `Answer` deltas of an episode, joined, are its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AgentEvent)]
pub enum Event {
    /// The episode begins.
    Started {
        /// Its id.
        id: String,
        /// The policy.
        model: String,
        /// The protocol.
        protocol: String,
        /// What is asked.
        question: String,
        /// Length of the prompt.
        prompt_tokens: usize,
    },
    /// The policy begins to write.
    TurnStarted {
        /// Counted from 1.
        turn: usize,
    },
    /// More reasoning.
    Think {
        /// The turn it belongs to.
        turn: usize,
        /// The text.
        text: String,
        /// Its tokens, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// More of a query, as the policy writes it.
    Query {
        /// The turn it belongs to.
        turn: usize,
        /// The text.
        text: String,
        /// Its tokens, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// More of the answer.
    Answer {
        /// The text.
        text: String,
        /// Its tokens, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// Why the policy gives no answer, told whole.
    Refusal {
        /// The text; never empty.
        text: String,
    },
    /// More text outside every known tag.
    Text {
        /// The turn it belongs to.
        turn: usize,
        /// The text.
        text: String,
        /// Its tokens, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLogprob>,
    },
    /// A search begins.
    SearchStarted {
        /// The turn that asked for it.
        turn: usize,
        /// What is searched for.
        query: String,
        /// The names that the policy said it is about.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schema(value_type = Option<Vec<String>>)]
        entities: Vec<String>,
        /// How.
        #[schema(value_type = String)]
        mode: Mode,
        /// How many passages are wanted.
        k: usize,
    },
    /// A search ended.
    SearchFinished {
        /// The turn that asked for it.
        turn: usize,
        /// What was searched for.
        query: String,
        /// How.
        #[schema(value_type = String)]
        mode: Mode,
        /// What was found, as it is stored.
        #[schema(value_type = Vec<schema::Hit>)]
        hits: Vec<Hit>,
        /// The triples found, in the modes that return any.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schema(value_type = Option<Vec<schema::TripleHit>>)]
        triples: Vec<TripleHit>,
        /// The state of the index that was searched; none where the search failed.
        #[schema(required)]
        snapshot: Option<u64>,
        /// Whether the episode had made the same search before and reused what it found.
        cached: bool,
        /// How long it took.
        milliseconds: f64,
        /// How many tags and control tokens were made harmless in the part of the passages that an observation is cut from.
        neutralised: usize,
        /// Why it gave nothing, where it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The policy went back: what one of its searches found supports no answer any more.
    Withdrawn {
        /// The turn that went back.
        turn: usize,
        /// The turn that had asked for the search.
        search: usize,
        /// What was searched for.
        query: String,
    },
    /// Text that the environment put into the context.
    Observation {
        /// The turn it answers.
        turn: usize,
        /// The text.
        text: String,
        /// Its length.
        tokens: usize,
        /// Whether it was too long and was cut.
        truncated: bool,
    },
    /// The turn asked for nothing that the protocol knows.
    Invalid {
        /// The turn.
        turn: usize,
        /// What the policy was told.
        message: String,
    },
    /// A bound was reached.
    Budget {
        /// Which.
        kind: Bound,
    },
    /// The episode is over.
    Finished {
        /// Why.
        reason: Reason,
        /// The answer, if there is one.
        #[schema(required)]
        answer: Option<String>,
        /// What it took.
        usage: Usage,
        /// Turns of the policy.
        turns: usize,
        /// Searches, repeated ones included.
        searches: usize,
        /// The passages that support the answer, in the order of its text; empty also where they were not asked for.
        #[serde(default)]
        #[schema(required)]
        citations: Vec<Cited>,
    },
    /// The episode was broken off.
    Failed {
        /// What happened.
        message: String,
        /// A short name for it.
        code: String,
    },
}

/// A passage that supports a part of the answer, by the rule of `waymark::agent::citation`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AgentCitation)]
pub struct Cited {
    /// Where in the answer the part begins, in characters (Unicode scalar values).
    pub start: usize,
    /// Where it ends: the place after its last character.
    pub end: usize,
    /// The passage's id.
    pub passage: String,
    /// Its title; may be empty.
    pub title: String,
    /// Whether the passage holds the part word for word, and not only its telling words.
    pub stated: bool,
}

/// Why an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EpisodeEnd)]
pub enum Reason {
    /// With an answer that is complete, or that ran into one of the client's stop strings; without one where the policy
    /// asked for nothing, which ends an episode of a reference's loop.
    Stop,
    /// The tokens allowed, or the context, were used up; the answer or the refusal, if any, is not complete.
    Length,
    /// The rounds, the searches or the tokens of observations were used up without an answer.
    Turns,
    /// The time was used up; the answer or the refusal, if any, is not complete.
    Time,
    /// With a complete refusal: the policy says that it can give no answer.
    Refused,
}

/// What an episode took in tokens and searches.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = EpisodeUsage)]
pub struct Usage {
    /// The prompt's.
    pub prompt_tokens: usize,
    /// Sampled by the policy, or written for it by force.
    pub completion_tokens: usize,
    /// Those of the former that are no part of the answer.
    pub reasoning_tokens: usize,
    /// Put in by the environment.
    pub environment_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Searches that were executed; what was answered from the episode is none. What was written before they were counted
    /// reads as 0.
    #[serde(default)]
    #[schema(required)]
    pub searches: usize,
    /// How long its searches took, in milliseconds.
    #[serde(default)]
    #[schema(required)]
    pub search_ms: f64,
}

/// A token of a delta with its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// Its text; broken UTF-8 reads as U+FFFD.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its log-probability under the full distribution; none where it was written by force.
    #[schema(required)]
    pub logprob: Option<f32>,
    /// The most probable tokens in its place, best first.
    pub top: Vec<TopLogprob>,
}

/// A token that might have been.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopLogprob {
    /// Its id.
    pub id: u32,
    /// Its text; broken UTF-8 reads as U+FFFD.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its log-probability under the full distribution.
    pub logprob: f32,
}
