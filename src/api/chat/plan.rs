//! Validation of a chat request: its policy, conversation, options and number of answers.

use std::sync::Arc;

use waymark_agent::{EpisodeOptions, Policy};

use super::check;
use super::messages::{conversation, last_call};
use super::request::{ChatRequest, ResponseFormat};
use super::tool::{self, ClientTools};
use crate::api::auth::Caller;
use crate::api::chunks::CompletionHead;
use crate::api::episodes::{self, EpisodeRequest};
use crate::api::error::ApiError;
use crate::api::rag;
use crate::api::sampling_params;
use crate::api::state::AppState;
use crate::api::vllm_options::{self, EndFields, FormFields};

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
    /// Names of the tools whose calls the policy writes in its answer.
    pub(super) tools: Vec<String>,
    /// Path of the field that gives the form of the answer, if one does.
    form_param: Option<&'static str>,
}

impl ChatPlan {
    /// Validates everything about a request that does not need the engine.
    pub(super) async fn new(
        state: &AppState,
        caller: &Caller,
        request: ChatRequest,
    ) -> Result<(ChatPlan, EpisodeRequest), ApiError> {
        let policy = state.policy(&request.model)?.policy.clone();
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
        options.stop = sampling_params::stops("stop", request.stop, sampling_params::MAX_STOPS)?;
        let fields = FormFields {
            structured_outputs: request.structured_outputs,
            guided_json: request.guided_json,
            guided_regex: request.guided_regex,
            guided_choice: request.guided_choice,
            guided_grammar: request.guided_grammar,
        };
        let (form_param, form) = fields.form(ResponseFormat::shape(request.response_format)?)?.unzip();
        options.form = form;
        let rag = request.rag.unwrap_or_default();
        rag::apply(&rag, &mut options)?;
        let state = &state.of_request(caller, "rag.index", rag.rest.index.as_deref(), &policy)?;
        // Either switch, `store` or `rag.store`, suffices to keep no trace.
        if check::store(request.store, state.config.strict)? == Some(false) {
            options.store = Some(false);
        }
        sampling_params::note_user(request.safety_identifier.as_deref().or(request.user.as_deref()));
        let tools = ClientTools::read(request.tools, request.tool_choice)?;
        // Read here, because the messages are consumed before `tool::resume` needs it.
        let call = last_call(&request.messages).map(str::to_owned);
        check::speakers(&request.messages, state.config.strict)?;
        let conversation = conversation(request.messages)?;
        let (tools, conversation) =
            tool::offer(tools, request.parallel_tool_calls, &policy, conversation, &mut options);
        let ends = EndFields {
            stop_token_ids: request.stop_token_ids,
            ignore_eos: request.ignore_eos,
            min_tokens: request.min_tokens,
        };
        ends.apply(&policy, state.runtime.engine.spec().vocab, &mut options)?;
        let switched = policy.budget.turns == 0 && state.runtime.takes_thinking();
        let conversation = conversation.with_thinking(vllm_options::thinking(request.chat_template_kwargs, switched)?);
        let mut episode_request = EpisodeRequest { conversation, options };
        tool::resume(state, caller, &policy, call.as_deref(), &mut episode_request).await;
        let plan = ChatPlan {
            state: state.clone(),
            head: CompletionHead::new(state, &policy, id),
            // As in OpenAI's interface, only a request that names a tier gets one in its response.
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
            form_param,
        };
        Ok((plan, episode_request))
    }

    /// Replaces the field in an error about the form of the answer with the field that the request used.
    pub(super) fn of_form(&self, error: ApiError) -> ApiError {
        of_form(error, self.form_param)
    }
}

fn of_form(error: ApiError, param: Option<&str>) -> ApiError {
    match param {
        Some(param) => error.renamed("response_format", param),
        None => error,
    }
}
