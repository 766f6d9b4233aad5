//! Validation of a chat request: its policy, conversation, options and number of answers.

use std::sync::Arc;

use waymark_agent::{EpisodeOptions, Policy};

use super::check;
use super::messages::{conversation, last_call};
use super::request::{ChatRequest, ResponseFormat};
use super::tool::{self, ClientTools};
use crate::api::auth::Caller;
use crate::api::chunks::CompletionHead;
use crate::api::episodes::{self, EpisodeQuestion};
use crate::api::error::ApiError;
use crate::api::rag;
use crate::api::sampling_params;
use crate::api::state::AppState;

/// Validated chat request.
#[derive(Debug)]
pub(super) struct ChatPlan {
    /// State with the index that the policy searches.
    pub(super) state: AppState,
    /// Fields shared by all chunks.
    pub(super) head: CompletionHead,
    /// Class of service to return.
    pub(super) service_tier: Option<&'static str>,
    pub(super) policy: Arc<Policy>,
    pub(super) n: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: bool,
    pub(super) trace: bool,
    /// If `true`, each answer ends with its supporting passages.
    pub(super) cites: bool,
    /// If `true`, reasoning is sent under both of its names.
    pub(super) mirror: bool,
    /// Names of the tools whose calls stand in the answer.
    pub(super) tools: Vec<String>,
}

impl ChatPlan {
    /// Validates everything about a request that does not need the engine.
    pub(super) fn new(
        state: &AppState,
        caller: &Caller,
        request: ChatRequest,
    ) -> Result<(ChatPlan, EpisodeQuestion), ApiError> {
        let policy = state.policies.get(&request.model)?.policy.clone();
        let stream = sampling_params::streams(request.stream, request.stream_options.as_ref())?;
        let n = sampling_params::choices(request.n)?;
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
        options.stop = sampling_params::stops(request.stop)?;
        options.json = ResponseFormat::shape(request.response_format)?;
        let rag = request.rag.unwrap_or_default();
        rag::apply(&rag, &mut options)?;
        let state = &state.of_request("rag.index", rag.rest.index.as_deref(), &policy)?;
        // Either switch, `store` or `rag.store`, suffices to keep no trace.
        if check::store(request.store, state.config.strict)? == Some(false) {
            options.store = Some(false);
        }
        sampling_params::note_user(request.safety_identifier.as_deref().or(request.user.as_deref()));
        let tools = ClientTools::read(request.tools, request.tool_choice)?;
        let call = last_call(&request.messages).map(str::to_owned);
        let conversation = conversation(request.messages)?;
        let (tools, conversation) =
            tool::offer(tools, request.parallel_tool_calls, &policy, conversation, &mut options)?;
        let mut question = (conversation, options);
        tool::resume(state, caller, &policy, call.as_deref(), &mut question);
        let plan = ChatPlan {
            state: state.clone(),
            head: CompletionHead::new(state, &policy, id),
            service_tier: request.service_tier.as_deref().map(|_| "default"),
            policy,
            n,
            stream,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            logprobs: logprobs.is_some(),
            trace: rag.rest.trace.unwrap_or(false),
            cites: rag.rest.citations.unwrap_or(false),
            mirror: state.config.mirror_reasoning,
            tools,
        };
        Ok((plan, question))
    }
}
