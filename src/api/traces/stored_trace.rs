//! Stored traces and their sizes.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use serde_json::{Map, Value};
use waymark_agent::{
    Action, ActionRecord, ContinuedEpisode, Conversation, EpisodeEnd, EpisodeOptions, PartialTrajectory, Policy,
    PolicySearch, Role, SearchRecord, Trajectory,
};
use waymark_index::Condition;
use waymark_models::chat::{Arguments, Tool, ToolCall};
use waymark_models::grammar::{Json, OutputForm};

use crate::api::auth::Caller;
use crate::api::episodes;
use crate::api::error::{ApiError, Code};
use crate::api::state::{AppState, now};
use crate::keys::KeyOwner;

/// Trace of a finished episode: the request and everything that was recorded.
#[derive(Debug)]
pub(crate) struct StoredTrace {
    pub(super) asked: TraceRequest,
    pub(super) end: TraceEnd,
    /// Recorded tokens, actions, evidence and timings.
    pub(super) record: PartialTrajectory,
    /// If `true`, the trace is in the server's state.
    pub(super) is_written: AtomicBool,
}

/// Request of an episode.
#[derive(Debug)]
pub(crate) struct TraceRequest {
    /// Creation time, in seconds since 1970.
    pub(super) created: u64,
    /// Key that owns the trace; no other key may see it.
    pub(super) owner: Option<KeyOwner>,
    /// Policy that answered. A weak reference, so a trace does not keep its adapter loaded.
    policy: Weak<Policy>,
    pub(super) model: String,
    pub(super) protocol: &'static str,
    /// ID of the adapter as it was loaded.
    pub(super) generation: Option<u64>,
    /// Hash of the build, the weights and the policy's files.
    pub(super) fingerprint: String,
    /// Name of the index that was searched. `None` for the default one.
    pub(super) index: Option<String>,
    pub(super) conversation: Conversation,
    pub(super) options: EpisodeOptions,
}

/// End of an episode.
#[derive(Debug)]
pub(super) enum TraceEnd {
    Finished {
        reason: EpisodeEnd,
        answer: Option<String>,
    },
    Failed(ApiError),
    /// The client disconnected, or did not resume its stream in time.
    Cancelled,
}

impl TraceRequest {
    pub(crate) fn new(
        state: &AppState,
        owner: Option<KeyOwner>,
        policy: &Arc<Policy>,
        conversation: Conversation,
        options: EpisodeOptions,
    ) -> TraceRequest {
        TraceRequest {
            created: now(),
            owner,
            // Weak, because a trace that kept the policy would keep its adapter in the engine.
            policy: Arc::downgrade(policy),
            model: policy.name.clone(),
            protocol: policy.protocol.name(),
            generation: policy.adapter().map(|adapter| adapter.generation),
            fingerprint: episodes::fingerprint(state, policy),
            index: state.is_other.then(|| state.index_id().to_owned()),
            conversation,
            options,
        }
    }

    /// Returns the policy that answered, if it is still served.
    ///
    /// # Errors
    /// 409 if the policy was replaced or unloaded, because a replay would not be comparable.
    pub(super) fn policy(&self, state: &AppState) -> Result<Arc<Policy>, ApiError> {
        let gone = || {
            let message = match self.generation {
                Some(generation) => {
                    format!("the policy `{}` of generation {generation} is no longer served", self.model)
                }
                None => format!("the policy `{}` was replaced since this trace was recorded", self.model),
            };
            ApiError::new(Code::PolicyChanged, message).with_param("id")
        };
        let served = state.policies.get(&self.model).map_err(|_| gone())?;
        // Identity counts, not the name: another policy may have been loaded under it. Completions are answered by the
        // verbatim form.
        let same = |policy: &&Arc<Policy>| self.policy.ptr_eq(&Arc::downgrade(policy));
        [&served.policy, &served.verbatim].into_iter().find(same).cloned().ok_or_else(gone)
    }
}

impl StoredTrace {
    pub(super) fn new(asked: TraceRequest, end: TraceEnd, record: PartialTrajectory) -> StoredTrace {
        StoredTrace { asked, end, record, is_written: AtomicBool::new(false) }
    }

    /// Creates the trace of an episode that ended normally.
    pub(super) fn finished(asked: TraceRequest, trajectory: Trajectory) -> StoredTrace {
        let Trajectory { id, tokens, prompt_tokens, text, actions, evidence, answer, finish, usage, timings } =
            trajectory;
        let record = PartialTrajectory { id, tokens, prompt_tokens, text, actions, evidence, usage, timings };
        StoredTrace::new(asked, TraceEnd::Finished { reason: finish, answer }, record)
    }

    /// Returns the ID of the episode.
    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    /// Returns the sequence of an episode of `policy` that ended with a call of a tool, for an episode whose
    /// conversation goes on with the result of that call. `None` if the conversation is another one.
    pub(crate) fn continued(&self, policy: &Arc<Policy>, conversation: &Conversation) -> Option<ContinuedEpisode> {
        let TraceEnd::Finished { reason: EpisodeEnd::Called, .. } = self.end else { return None };
        let asked = &self.asked.conversation;
        let (before, after) = conversation.messages().split_at_checked(asked.messages().len())?;
        let [call, results @ ..] = after else { return None };
        let Some(Action::Call { name, arguments }) = self.record.actions.last().map(|acted| &acted.action) else {
            return None;
        };
        let made = call
            .calls
            .iter()
            .any(|made| made.name == *name && Arguments::parse(arguments).is_ok_and(|own| own == made.arguments));
        // A client that has changed its messages or tools asks about another conversation.
        let same = before == asked.messages()
            && conversation.tools() == asked.tools()
            && made
            && call.calls.len() == 1
            && results.iter().all(|message| message.role == Role::Tool);
        // Identity counts, not the name, as in `TraceRequest::policy`.
        if !same || results.is_empty() || !self.asked.policy.ptr_eq(&Arc::downgrade(policy)) {
            return None;
        }
        let earlier = self.continues().map_or(&[][..], |earlier| &earlier.evidence);
        Some(ContinuedEpisode {
            id: self.id().to_owned(),
            tokens: self.record.visible_tokens().iter().map(|token| token.id).collect(),
            evidence: [earlier, &self.record.evidence].concat(),
            messages: results.to_vec(),
        })
    }

    /// Returns `true` if `caller` may see the trace.
    pub(super) fn belongs_to(&self, caller: &Caller) -> bool {
        self.asked.owner == caller.owner
    }

    /// Returns `true` if the request was refused before any token was generated.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self.end, TraceEnd::Failed(_)) && self.record.tokens.len() == self.record.prompt_tokens
    }

    /// Returns the approximate size in memory: texts, tokens, and the structures themselves.
    pub(super) fn bytes(&self) -> usize {
        let record = &self.record;
        let conversation = &self.asked.conversation;
        let messages: usize = conversation.messages().iter().map(|message| message.content.len() + 64).sum();
        let calls = conversation.messages().iter().flat_map(|message| &message.calls).map(call_bytes);
        let tools = calls.sum::<usize>() + conversation.tools().iter().map(tool_bytes).sum::<usize>();
        let answer = match &self.end {
            TraceEnd::Finished { answer, .. } => answer.as_ref().map_or(0, String::len),
            TraceEnd::Failed(error) => error.message.len(),
            TraceEnd::Cancelled => 0,
        };
        let actions: usize = record.actions.iter().map(action_bytes).sum();
        size_of::<StoredTrace>()
            + size_of_val(record.tokens.as_slice())
            + size_of_val(self.asked.options.sampling.logit_bias.as_slice())
            + size_of_val(self.asked.options.prompt.as_deref().unwrap_or_default())
            + self.asked.options.stop.iter().map(String::len).sum::<usize>()
            + names_bytes(&self.asked.options.without)
            + self.asked.options.search.filters.as_deref().map_or(0, condition_bytes)
            + self.asked.options.form.as_ref().map_or(0, form_bytes)
            + names_bytes(&self.asked.options.calls)
            + names_bytes(&self.asked.options.one_call)
            + names_bytes(&self.asked.options.strict)
            + self.asked.options.continues.as_deref().map_or(0, continued_bytes)
            + record.text.len()
            + messages
            + tools
            + answer
            + actions
            + record.evidence.iter().map(search_bytes).sum::<usize>()
    }
}

fn continued_bytes(earlier: &ContinuedEpisode) -> usize {
    let evidence: usize = earlier.evidence.iter().map(search_bytes).sum();
    let messages: usize = earlier.messages.iter().map(|message| message.content.len() + 64).sum();
    earlier.id.len() + size_of_val(earlier.tokens.as_slice()) + evidence + messages
}

fn condition_bytes(condition: &Condition) -> usize {
    match condition {
        Condition::Compare { key, value, .. } => size_of_val(condition) + key.len() + value_bytes(value),
        Condition::Among { key, values, .. } => {
            size_of_val(condition) + key.len() + values.iter().map(value_bytes).sum::<usize>()
        }
        Condition::All(parts) | Condition::Any(parts) => {
            size_of_val(condition) + parts.iter().map(condition_bytes).sum::<usize>()
        }
    }
}

fn form_bytes(form: &OutputForm) -> usize {
    match form {
        OutputForm::Json(Json::Schema(schema)) => value_bytes(schema),
        form => form.text_bytes(),
    }
}

fn call_bytes(call: &ToolCall) -> usize {
    size_of_val(call) + call.bytes()
}

fn tool_bytes(tool: &Tool) -> usize {
    let description = tool.description.as_ref().map_or(0, String::len);
    size_of_val(tool) + tool.name.len() + description + tool.parameters.as_ref().map_or(0, value_bytes)
}

/// Returns the size of a JSON value. The recursion is shallow: `models/src/grammar/json.rs` refuses schemas of more
/// than 32 levels before the episode starts, bodies have at most 64 levels, and text parsed as JSON at most 128.
fn value_bytes(value: &Value) -> usize {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(value_bytes).sum(),
        Value::Object(fields) => map_bytes(fields),
    };
    size_of_val(value) + inside
}

fn map_bytes(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, field)| size_of_val(name) + name.len() + value_bytes(field)).sum()
}

fn action_bytes(acted: &ActionRecord) -> usize {
    let summary = acted.summary.as_ref().map_or(0, String::len);
    size_of_val(acted) + action_text_bytes(&acted.action) + acted.thought.len() + summary
}

fn action_text_bytes(action: &Action) -> usize {
    let search = |search: &PolicySearch| search.written.len() + search.query.len() + names_bytes(&search.entities);
    let call = match action {
        Action::Call { name, arguments } => name.len() + arguments.len(),
        _ => 0,
    };
    action.search().map_or(0, search) + action.ending().map_or(0, str::len) + call
}

fn names_bytes(names: &[String]) -> usize {
    names.iter().map(|name| size_of_val(name) + name.len()).sum()
}

fn search_bytes(found: &SearchRecord) -> usize {
    let hits = found.hits.iter().map(|hit| {
        let via = hit.path.graph.iter().flat_map(|arrival| &arrival.via);
        let steps: usize = via.map(|step| size_of_val(step) + step.phrase.len()).sum();
        size_of_val(hit)
            + hit.passage.id.len()
            + hit.passage.title.len()
            + hit.passage.text.len()
            + steps
            + hit.metadata.as_ref().map_or(0, map_bytes)
    });
    let triples = found.triples.iter().map(|triple| {
        let passages: usize = triple.passages.iter().map(|id| size_of_val(id) + id.len()).sum();
        size_of_val(triple) + triple.subject.len() + triple.relation.len() + triple.object.len() + passages
    });
    size_of_val(found) + found.query.len() + names_bytes(&found.entities) + hits.sum::<usize>() + triples.sum::<usize>()
}
