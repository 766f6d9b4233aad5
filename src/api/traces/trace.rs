//! A stored trace as it goes over the wire.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_index::{Condition, GraphVariant, Hit, Mode, Ranking, TripleHit};
use waymark_models::chat::ToolCall;
use waymark_models::grammar::Json;

use super::kept::{End, Kept};
use super::tokens::TraceTokens;
use crate::agent::{Acted, Action, EpisodeOptions, Found, Message, Reason, Role, Sampling, Timings, Usage};
use crate::schema;

/// Everything that was written down about an episode.
#[derive(Debug, Serialize, ToSchema)]
pub struct Trace<'a> {
    /// The id of the episode, completion or response. Of several answers the second one's ends in `-1`, and so on.
    pub id: &'a str,
    /// Always `trace`.
    pub object: &'static str,
    /// When the episode was begun, in seconds since 1970.
    pub created: u64,
    /// How it ended.
    pub status: TraceStatus,
    /// What broke it off, where it failed.
    #[schema(required)]
    pub error: Option<TraceError<'a>>,
    /// The policy that answered.
    pub model: &'a str,
    /// How it thinks, searches and answers.
    pub protocol: &'static str,
    /// Names the policy's adapter as it was loaded; none for the bare base model.
    #[schema(required)]
    pub generation: Option<u64>,
    /// A short hash of build, weights and the policy's files.
    pub system_fingerprint: &'a str,
    /// What was said before, and at last the question; of a continued text, that text as the question.
    pub messages: Vec<TraceMessage<'a>>,
    /// What the request asked for; null where the policy had its way.
    pub options: TraceOptions<'a>,
    /// Where the random sequence began: the same `seed` in a request begins there again.
    pub seed: i64,
    /// The answer, if there is one.
    #[schema(required)]
    pub answer: Option<&'a str>,
    /// Why it ended; null where it was broken off.
    #[schema(required)]
    pub finish_reason: Option<Reason>,
    /// What it took.
    pub usage: Usage,
    /// Every token.
    pub tokens: TraceTokens<'a>,
    /// The text after the prompt.
    pub text: &'a str,
    /// What each turn asked for, in order.
    pub actions: Vec<TraceAction<'a>>,
    /// What each search found, in order.
    pub searches: Vec<TraceSearch<'a>>,
    /// Where its time went.
    pub timings: TraceTimings,
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceStatus {
    /// With an answer, or within its bounds without one.
    Finished,
    /// With an error.
    Failed,
    /// Its client went away.
    Cancelled,
}

/// What broke an episode off.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceError<'a> {
    /// The error's name.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: &'a str,
}

/// One message of the conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceMessage<'a> {
    /// Who spoke: `system`, `user`, `assistant` or `tool`.
    #[schema(value_type = String)]
    pub role: Role,
    /// What was said.
    pub content: &'a str,
    /// The calls of tools that it made: the `name` and the `arguments` of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub tool_calls: Option<&'a [ToolCall]>,
}

/// What a request asked for; null where the policy had its way.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceOptions<'a> {
    /// Sampling parameters; null where the policy's own held.
    #[schema(value_type = Object)]
    pub sampling: &'a Sampling,
    /// Tokens to sample over the whole run.
    #[schema(required)]
    pub max_tokens: Option<usize>,
    /// Strings that end the answer.
    pub stop: &'a [String],
    /// The mode of every search.
    #[schema(required, value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// How passages were ranked.
    #[schema(required, value_type = Option<String>)]
    pub ranking: Option<Ranking>,
    /// Passages per search.
    #[schema(required)]
    pub k: Option<usize>,
    /// Ids of the passages that were left out of what its searches found, which only a replay asks for.
    pub without: &'a [String],
    /// What the documents' metadata had to say of the passages that were found.
    #[schema(required, value_type = Option<schema::Condition>)]
    pub filters: Option<&'a Condition>,
    /// Whose graph search was made.
    #[schema(required, value_type = Option<String>)]
    pub graph: Option<GraphVariant>,
    /// Rounds with the environment.
    #[schema(required)]
    pub turns: Option<usize>,
    /// Executed searches.
    #[schema(required)]
    pub searches: Option<usize>,
    /// Tokens of all observations together.
    #[schema(required)]
    pub environment_tokens: Option<usize>,
    /// Wall time in seconds.
    #[schema(required)]
    pub seconds: Option<f64>,
    /// Whether generation was guided.
    #[schema(required)]
    pub guided: Option<bool>,
    /// How many alternatives were told for each token.
    #[schema(required)]
    pub logprobs: Option<usize>,
    /// The JSON schema that the answer was held to; `{"type": "object"}` where any object would do.
    #[schema(required, value_type = Option<Object>)]
    pub json: Option<Cow<'a, Value>>,
    /// The tools of which the reply had to be one call.
    pub calls: &'a [String],
    /// The tools of which the first call ended the reply, which needed not hold any.
    pub one_call: &'a [String],
}

/// What a turn asked for.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceAction<'a> {
    /// The turn, counted from 1.
    pub turn: usize,
    /// Whether anything was done about it: not about a search after the last round.
    pub executed: bool,
    /// What it asked for: `{"type": "search" | "backtrack" | "answer" | "refuse" | "invalid", …}`.
    #[schema(value_type = Object)]
    pub action: &'a Action,
    /// What it says of the evidence before it, where policies of the protocol summarise.
    #[schema(required)]
    pub summary: Option<&'a str>,
}

/// A search and what it found.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceSearch<'a> {
    /// The turn that asked for it.
    pub turn: usize,
    /// What was searched for.
    pub query: &'a str,
    /// The names that the policy said it is about.
    pub entities: &'a [String],
    /// How.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// The state of the index; null where the search failed.
    #[schema(required)]
    pub snapshot: Option<u64>,
    /// What was found, as it was stored then.
    #[schema(value_type = Vec<schema::Hit>)]
    pub hits: &'a [Hit],
    /// The triples found, in the modes that return any.
    #[schema(value_type = Vec<schema::TripleHit>)]
    pub triples: &'a [TripleHit],
    /// Whether it was taken from an earlier search of the episode.
    pub cached: bool,
    /// How many tags in the passages were made harmless.
    pub neutralised: usize,
    /// Seconds it took.
    pub seconds: f64,
    /// Why it failed, where it did.
    #[schema(required)]
    pub error: Option<&'a str>,
    /// The turn that withdrew it, where one did: what it found supports no answer.
    #[schema(required)]
    pub withdrawn: Option<usize>,
}

/// Where the time of an episode went, in seconds.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceTimings {
    /// From the beginning until nothing more was computed.
    pub total: f64,
    /// From the beginning to the first token.
    #[schema(required)]
    pub first_token: Option<f64>,
    /// Generation, its queues included.
    pub generation: f64,
    /// Searches.
    pub search: f64,
}

/// A trace in a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceSummary {
    /// The trace's id.
    pub id: String,
    /// Always `trace`.
    pub object: &'static str,
    /// When the episode was begun, in seconds since 1970.
    pub created: u64,
    /// How it ended.
    pub status: TraceStatus,
    /// The policy that answered.
    pub model: String,
    /// The beginning of what was asked.
    pub question: String,
    /// Turns of the policy.
    pub turns: usize,
    /// Searches made.
    pub searches: usize,
    /// Length of the whole sequence.
    pub tokens: usize,
    /// About what it takes in memory.
    pub bytes: usize,
}

impl Kept {
    pub(super) fn status(&self) -> TraceStatus {
        match self.end {
            End::Finished { .. } => TraceStatus::Finished,
            End::Failed(_) => TraceStatus::Failed,
            End::Cancelled => TraceStatus::Cancelled,
        }
    }

    pub(super) fn summary(&self) -> TraceSummary {
        const SHOWN: usize = 200;
        TraceSummary {
            id: self.id().to_owned(),
            object: "trace",
            created: self.asked.created,
            status: self.status(),
            model: self.asked.model.clone(),
            question: self.asked.conversation.question().chars().take(SHOWN).collect(),
            turns: self.record.actions.len(),
            searches: self.record.evidence.len(),
            tokens: self.record.tokens.len(),
            bytes: self.bytes(),
        }
    }

    pub(super) fn trace(&self) -> Trace<'_> {
        let (asked, record) = (&self.asked, &self.record);
        let (error, answer, finish_reason) = match &self.end {
            End::Finished { reason, answer } => (None, answer.as_deref(), Some(*reason)),
            End::Failed(error) => (Some(TraceError { code: error.code.name(), message: &error.message }), None, None),
            End::Cancelled => (None, None, None),
        };
        let (history, last) = (asked.conversation.history(), asked.conversation.last());
        let messages = history.iter().chain([last]).map(TraceMessage::from).collect();
        Trace {
            id: self.id(),
            object: "trace",
            created: self.asked.created,
            status: self.status(),
            error,
            model: &asked.model,
            protocol: asked.protocol,
            generation: asked.generation,
            system_fingerprint: &asked.fingerprint,
            messages,
            options: (&asked.options).into(),
            seed: asked.options.seed.cast_signed(),
            answer,
            finish_reason,
            usage: record.usage,
            tokens: TraceTokens::new(&record.tokens),
            text: &record.text,
            actions: record.actions.iter().map(TraceAction::from).collect(),
            searches: record.evidence.iter().map(TraceSearch::from).collect(),
            timings: record.timings.into(),
        }
    }
}

impl<'a> From<&'a Message> for TraceMessage<'a> {
    fn from(message: &'a Message) -> TraceMessage<'a> {
        let tool_calls = (!message.calls.is_empty()).then_some(message.calls.as_slice());
        TraceMessage { role: message.role, content: &message.content, tool_calls }
    }
}

impl<'a> From<&'a EpisodeOptions> for TraceOptions<'a> {
    fn from(options: &'a EpisodeOptions) -> TraceOptions<'a> {
        TraceOptions {
            sampling: &options.sampling,
            max_tokens: options.max_tokens,
            stop: &options.stop,
            mode: options.mode,
            ranking: options.ranking,
            k: options.k,
            without: &options.without,
            filters: options.only.as_deref(),
            graph: options.graph,
            turns: options.turns,
            searches: options.searches,
            environment_tokens: options.environment_tokens,
            seconds: options.seconds,
            guided: options.guided,
            logprobs: options.logprobs,
            json: options.json.as_ref().map(|shape| match shape {
                Json::Object => Cow::Owned(json!({"type": "object"})),
                Json::Schema(schema) => Cow::Borrowed(schema),
            }),
            calls: &options.calls,
            one_call: &options.one_call,
        }
    }
}

impl<'a> From<&'a Acted> for TraceAction<'a> {
    fn from(acted: &'a Acted) -> TraceAction<'a> {
        TraceAction {
            turn: acted.turn,
            executed: acted.executed,
            action: &acted.action,
            summary: acted.summary.as_deref(),
        }
    }
}

impl<'a> From<&'a Found> for TraceSearch<'a> {
    fn from(found: &'a Found) -> TraceSearch<'a> {
        TraceSearch {
            turn: found.turn,
            query: &found.query,
            entities: &found.entities,
            mode: found.mode,
            snapshot: found.snapshot,
            hits: &found.hits,
            triples: &found.triples,
            cached: found.cached,
            neutralised: found.neutralised,
            seconds: found.seconds,
            error: found.error.as_deref(),
            withdrawn: found.withdrawn,
        }
    }
}

impl From<Timings> for TraceTimings {
    fn from(timings: Timings) -> TraceTimings {
        let Timings { total, first_token, generation, search } = timings;
        TraceTimings { total, first_token, generation, search }
    }
}
