//! Wire types of a stored trace.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waymark_agent::{
    Action, ActionRecord, ContinuedEpisode, ConversationMessage, EpisodeEnd, EpisodeOptions, HiddenEvidence, Role,
    Sampling, SearchRecord, Timings, TurnEnds, Usage,
};
use waymark_index::{AnswerCut, Hit, Mode, SearchFields, SearchScope, TripleHit, WithSearch};
use waymark_models::chat::ToolCall;
use waymark_models::grammar::{Json, OutputForm};

use super::stored_trace::{StoredTrace, TraceEnd};
use super::tokens::TraceTokens;
use crate::api::indexes::INDEX;

/// Everything that was recorded of an episode.
#[derive(Debug, Serialize, ToSchema)]
pub struct Trace<'a> {
    /// ID of the episode, completion or response. With several answers, the ID of the second one ends in `-1`, and so
    /// on.
    pub id: &'a str,
    /// Always `trace`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// End of the episode.
    pub status: TraceStatus,
    /// Error that ended the episode, if it failed.
    #[schema(required)]
    pub error: Option<TraceError<'a>>,
    /// Name of the policy that answered.
    pub model: &'a str,
    /// Name of the policy's protocol.
    pub protocol: &'static str,
    /// Name of the index that the policy searched, or ID of the vector store; `default` for the default index. Each search
    /// names its snapshot.
    pub index: &'a str,
    /// ID of the policy's adapter as it was loaded. Null without an adapter.
    #[schema(required)]
    pub generation: Option<u64>,
    /// Short hash of the build, the weights and the policy's files.
    pub system_fingerprint: &'a str,
    /// Conversation, whose last message is the question, or the result of a call. For a verbatim completion, its text
    /// is the question.
    pub messages: Vec<TraceMessage<'a>>,
    /// Options of the request; null where the policy's own applied.
    pub options: TraceOptions<'a>,
    /// Seed of the random number generator. A request with this `seed` gets the same random numbers.
    pub seed: i64,
    /// Answer, if there is one.
    #[schema(required)]
    pub answer: Option<&'a str>,
    /// Reason the episode ended. Null if it was cut off.
    #[schema(required)]
    pub finish_reason: Option<EpisodeEnd>,
    /// Tokens used.
    pub usage: Usage,
    /// All tokens.
    pub tokens: TraceTokens<'a>,
    /// Text after the prompt.
    pub text: &'a str,
    /// Actions of the turns, in order.
    pub actions: Vec<TraceAction<'a>>,
    /// Searches and their results, in order.
    pub searches: Vec<TraceSearch<'a>>,
    /// Durations of the episode's parts.
    pub timings: TraceTimings,
}

/// End of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceStatus {
    /// Finished with an answer, or at a limit without one.
    Finished,
    /// Failed with an error.
    Failed,
    /// Canceled, because its client disconnected.
    Cancelled,
}

/// Error that ended an episode.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceError<'a> {
    /// Code of the error.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: &'a str,
}

/// Message of the conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceMessage<'a> {
    /// Role of the speaker: `system`, `user`, `assistant` or `tool`.
    #[schema(value_type = String)]
    pub role: Role,
    /// Text of the message.
    pub content: &'a str,
    /// Tool calls in the message: the `name` and the `arguments` of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub tool_calls: Option<&'a [ToolCall]>,
}

/// Options of a request; null where the policy's own applied.
pub type TraceOptions<'a> = WithSearch<TraceOptionFields<'a>>;

/// Options of a request other than those of its searches.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TraceOptions, description = "Options of a request; null where the policy's own applied.")]
pub struct TraceOptionFields<'a> {
    /// Sampling parameters; null where the policy's own applied.
    #[schema(value_type = Object)]
    pub sampling: &'a Sampling,
    /// Maximum number of sampled tokens.
    #[schema(required)]
    pub max_tokens: Option<usize>,
    /// Strings that end the answer.
    pub stop: &'a [String],
    /// IDs of passages excluded from search results, which only replays set.
    pub without: &'a [String],
    /// Maximum number of rounds with the environment.
    #[schema(required)]
    pub turns: Option<usize>,
    /// Maximum number of executed searches.
    #[schema(required)]
    pub searches: Option<usize>,
    /// Maximum number of tokens of all observations together.
    #[schema(required)]
    pub environment_tokens: Option<usize>,
    /// Time limit in seconds.
    #[schema(required)]
    pub seconds: Option<f64>,
    /// If `true`, generation was guided.
    #[schema(required)]
    pub guided: Option<bool>,
    /// Number of most likely tokens returned at each position.
    #[schema(required)]
    pub logprobs: Option<usize>,
    /// JSON schema that constrained the answer; `{"type": "object"}` if any object was allowed.
    #[schema(required, value_type = Option<Object>)]
    pub json: Option<Cow<'a, Value>>,
    /// Form of the answer that is not JSON: `regex`, `choice` or `grammar` with its text. Absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub form: Option<Value>,
    /// Tokens that ended the turn. Absent if only those of the model did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub ends: Option<&'a TurnEnds>,
    /// Names of the tools of which the reply had to be one call.
    pub calls: &'a [String],
    /// Names of the tools whose calls had to follow their parameters.
    pub strict: &'a [String],
    /// Number of tokens of the earlier episode that continued with the result of its call. Null if none did.
    #[schema(required)]
    pub continued_tokens: Option<usize>,
    /// Names of the tools of which the first call ended the reply. The reply could also consist of text.
    pub one_call: &'a [String],
}

/// Action of a turn.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceAction<'a> {
    /// Number of the turn, from 1.
    pub turn: usize,
    /// If `true`, the action was executed. `false` for a search after the last round.
    pub executed: bool,
    /// Action with its fields; `type` is its name, for example `search`.
    #[schema(value_type = Object)]
    pub action: &'a Action,
    /// Reasoning in the turn, without its tags. Empty if there is none.
    pub thought: &'a str,
    /// Summary of the preceding evidence, in protocols whose policies summarize.
    #[schema(required)]
    pub summary: Option<&'a str>,
}

/// Search and its results.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceSearch<'a> {
    /// Turn that searched.
    pub turn: usize,
    /// Query of the search.
    pub query: &'a str,
    /// Names of entities that the policy gave with the query.
    pub entities: &'a [String],
    /// Kind of search.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// Snapshot of the index. Null if the search failed.
    #[schema(required)]
    pub snapshot: Option<u64>,
    /// Passages, as they were stored at the time.
    pub hits: &'a [Hit],
    /// Triples, in modes that return them.
    pub triples: &'a [TripleHit],
    /// If `true`, the results come from an earlier search of the episode.
    pub cached: bool,
    /// Number of tags in passages that were neutralized.
    pub neutralised: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Reason the search failed, if it did.
    #[schema(required)]
    pub error: Option<&'a str>,
    /// Passages and triples that are missing here because the evidence of the episode is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
    /// Turn that withdrew the search, if one did. Withdrawn results support no answer.
    #[schema(required)]
    pub withdrawn: Option<usize>,
    /// Tokens of the evidence that the policy no longer saw after the withdrawal. Absent if it saw them to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<HiddenEvidence>,
}

/// Durations of the parts of an episode, in seconds.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceTimings {
    /// Time from the beginning to the end of the computation.
    pub total: f64,
    /// Time from the beginning to the first token.
    #[schema(required)]
    pub first_token: Option<f64>,
    /// Generation, including queues.
    pub generation: f64,
    /// Searches.
    pub search: f64,
}

/// Entry of the list of traces.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceSummary {
    /// ID of the trace.
    pub id: String,
    /// Always `trace`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// End of the episode.
    pub status: TraceStatus,
    /// Name of the policy that answered.
    pub model: String,
    /// Beginning of the question.
    pub question: String,
    /// Number of turns of the policy.
    pub turns: usize,
    /// Number of searches.
    pub searches: usize,
    /// Length of the sequence in tokens.
    pub tokens: usize,
    /// Approximate size in memory, in bytes.
    pub bytes: usize,
}

impl StoredTrace {
    pub(super) fn status(&self) -> TraceStatus {
        match self.end {
            TraceEnd::Finished { .. } => TraceStatus::Finished,
            TraceEnd::Failed(_) => TraceStatus::Failed,
            TraceEnd::Cancelled => TraceStatus::Cancelled,
        }
    }

    pub(super) fn summary(&self) -> TraceSummary {
        // Enough to recognize a question; the trace itself has all of it.
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
        let asked = &self.asked;
        let record = &self.record;
        let (error, answer, finish_reason) = match &self.end {
            TraceEnd::Finished { reason, answer } => (None, answer.as_deref(), Some(*reason)),
            TraceEnd::Failed(error) => {
                (Some(TraceError { code: error.code.name(), message: &error.message }), None, None)
            }
            TraceEnd::Cancelled => (None, None, None),
        };
        let messages = asked.conversation.messages().iter().map(TraceMessage::from).collect();
        Trace {
            id: self.id(),
            object: "trace",
            created: self.asked.created,
            status: self.status(),
            error,
            model: &asked.model,
            protocol: asked.protocol,
            index: asked.index.as_deref().unwrap_or(INDEX),
            generation: asked.generation,
            system_fingerprint: &asked.fingerprint,
            messages,
            options: trace_options(&asked.options, self.continues()),
            // Seeds are signed in requests too.
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

    /// Returns the earlier episode that this one continued. `None` if the prompt was encoded from the conversation
    /// alone.
    pub(super) fn continues(&self) -> Option<&ContinuedEpisode> {
        let earlier = self.asked.options.continues.as_deref()?;
        // The request names the earlier episode also if it was too long to go on with.
        let prompt = self.record.tokens.get(..self.record.prompt_tokens)?;
        let begins = prompt.iter().map(|token| token.id).take(earlier.tokens.len());
        begins.eq(earlier.tokens.iter().copied()).then_some(earlier)
    }
}

impl<'a> From<&'a ConversationMessage> for TraceMessage<'a> {
    fn from(message: &'a ConversationMessage) -> TraceMessage<'a> {
        let tool_calls = (!message.calls.is_empty()).then_some(message.calls.as_slice());
        TraceMessage { role: message.role, content: &message.content, tool_calls }
    }
}

impl SearchFields for TraceOptionFields<'_> {
    const SCOPE: SearchScope = SearchScope::Recorded;
}

fn trace_options<'a>(options: &'a EpisodeOptions, continues: Option<&ContinuedEpisode>) -> TraceOptions<'a> {
    let rest = TraceOptionFields {
        sampling: &options.sampling,
        max_tokens: options.max_tokens,
        stop: &options.stop,
        without: &options.without,
        turns: options.turns,
        searches: options.searches,
        environment_tokens: options.environment_tokens,
        seconds: options.seconds,
        guided: options.guided,
        logprobs: options.logprobs,
        json: options.form.as_ref().and_then(|form| match form {
            OutputForm::Json(Json::Object) => Some(Cow::Owned(json!({"type": "object"}))),
            OutputForm::Json(Json::Schema(schema)) => Some(Cow::Borrowed(schema)),
            OutputForm::Regex(_) | OutputForm::Choice(_) | OutputForm::Lark(_) => None,
        }),
        form: options.form.as_ref().and_then(|form| match form {
            OutputForm::Json(_) => None,
            OutputForm::Regex(text) => Some(json!({"regex": text})),
            OutputForm::Choice(texts) => Some(json!({"choice": texts})),
            OutputForm::Lark(text) => Some(json!({"grammar": text})),
        }),
        ends: Some(&options.ends).filter(|ends| !ends.is_default()),
        calls: &options.calls,
        strict: &options.strict,
        continued_tokens: continues.map(|earlier| earlier.tokens.len()),
        one_call: &options.one_call,
    };
    WithSearch { search: options.search.clone(), rest }
}

impl<'a> From<&'a ActionRecord> for TraceAction<'a> {
    fn from(acted: &'a ActionRecord) -> TraceAction<'a> {
        TraceAction {
            turn: acted.turn,
            executed: acted.executed,
            action: &acted.action,
            thought: &acted.thought,
            summary: acted.summary.as_deref(),
        }
    }
}

impl<'a> From<&'a SearchRecord> for TraceSearch<'a> {
    fn from(found: &'a SearchRecord) -> TraceSearch<'a> {
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
            cut: found.cut,
            withdrawn: found.withdrawn,
            hidden: found.hidden,
        }
    }
}

impl From<Timings> for TraceTimings {
    fn from(timings: Timings) -> TraceTimings {
        let Timings { total, first_token, generation, search } = timings;
        TraceTimings { total, first_token, generation, search }
    }
}
