//! What a request means: which policy, which conversation, how many episodes, and how they are shown.

use std::sync::Arc;

use super::check;
use super::messages::conversation;
use super::request::{ChatRequest, ResponseFormat};
use super::tool::{self, Tools};
use crate::agent::{Conversation, EpisodeOptions, Policy};
use crate::api::chunks::Head;
use crate::api::episodes::{self, Question};
use crate::api::error::ApiError;
use crate::api::knobs;
use crate::api::state::AppState;

/// A request that makes sense.
#[derive(Debug)]
pub(super) struct Plan {
    /// What stands in every chunk.
    pub(super) head: Head,
    pub(super) policy: Arc<Policy>,
    pub(super) n: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    pub(super) trace: bool,
    /// Whether the end of each answer tells what supports it.
    pub(super) cites: bool,
    /// Whether reasoning is told under both of its names.
    pub(super) mirror: bool,
    /// The names of the tools that may be called.
    pub(super) tools: Vec<String>,
}

impl Plan {
    /// Checks everything about a request but what only the engine can know.
    pub(super) fn new(state: &AppState, request: ChatRequest) -> Result<(Plan, Question), ApiError> {
        let policy = state.policies.get(&request.model)?.policy.clone();
        let stream = knobs::streams(request.stream, request.stream_options.as_ref())?;
        let n = knobs::choices(request.n)?;
        let logprobs = check::top_logprobs(&request)?;
        let id = episodes::id("chatcmpl");
        let mut options = EpisodeOptions {
            id: Some(id.clone()),
            sampling: check::sampling(&request, state.runtime.engine.spec().vocab)?,
            seed: episodes::seed(request.seed),
            max_tokens: check::max_tokens(&request)?,
            logprobs,
            ..EpisodeOptions::default()
        };
        options.stop = knobs::stops(request.stop)?;
        options.json = ResponseFormat::shape(request.response_format)?;
        let rag = request.rag.unwrap_or_default();
        rag.apply(&mut options)?;
        state.check_index("rag.index", rag.index.as_deref())?;
        if check::store(request.store)? == Some(false) {
            options.store = Some(false);
        }
        knobs::note_user(request.safety_identifier.as_deref().or(request.user.as_deref()));
        let tools = Tools::read(request.tools, request.tool_choice)?;
        let (tools, conversation) =
            offer(tools, request.parallel_tool_calls, conversation(request.messages)?, &mut options)?;
        tool::check(state, &policy, &conversation)?;
        let plan = Plan {
            head: Head::new(state, &policy, id),
            policy,
            n,
            stream,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            logprobs: logprobs.is_some(),
            trace: rag.trace.unwrap_or(false),
            cites: rag.citations.unwrap_or(false),
            mirror: state.config.mirror_reasoning,
            tools,
        };
        Ok((plan, (conversation, options)))
    }
}

/// Puts tools before the model, and says which there are.
fn offer(
    tools: Tools,
    parallel: Option<bool>,
    conversation: Conversation,
    options: &mut EpisodeOptions,
) -> Result<(Vec<String>, Conversation), ApiError> {
    let Tools { shown, must } = tools;
    if shown.is_empty() {
        return Ok((Vec::new(), conversation));
    }
    if options.json.is_some() {
        return Err(ApiError::unsupported("response_format", "answers held to JSON beside `tools` are"));
    }
    let names: Vec<String> = shown.iter().map(|tool| tool.name.clone()).collect();
    // What must be a call is one and no more.
    if parallel == Some(false) && must.is_empty() {
        options.one_call.clone_from(&names);
    }
    options.calls = must;
    Ok((names, conversation.with_tools(shown)))
}
