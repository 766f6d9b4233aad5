//! Validation of a request: its policy, conversation, search options, and what is returned and stored.

use std::sync::Arc;

use serde_json::Value;
use uuid::Uuid;
use waymark_agent::{Conversation, ConversationMessage, EpisodeOptions, Policy, Role, Sampling};
use waymark_models::grammar::OutputForm;

use super::chat_history::ChatHistory;
use super::format::TextFormat;
use super::function_tool::ChosenTools;
use super::object::{ReasoningOptions, ResponseObject, ResponseStatus, TextOptions};
use super::parsed_item::ParsedItem;
use super::request::{ConversationParam, ConversationReference, ResponsesRequest, Truncation};
use super::show::Show;
use super::tool::RequestTools;
use crate::api::auth::Caller;
use crate::api::chat::tool;
use crate::api::conversations;
use crate::api::episodes::{self, EpisodeRequest};
use crate::api::error::{ApiError, Code};
use crate::api::metadata::check_metadata;
use crate::api::rag::{self, RagTrace};
use crate::api::sampling_params::{self, RequestSampling};
use crate::api::state::{AppState, now};
use crate::store::RecordKey;

/// Validated request.
#[derive(Debug)]
pub(super) struct ResponsePlan {
    /// State with the index that the policy searches.
    pub(super) state: AppState,
    pub(super) policy: Arc<Policy>,
    pub(super) stream: bool,
    pub(super) show: Show,
    /// Response object in its initial state.
    pub(super) object: ResponseObject,
    /// If `true`, what the response leaves behind is kept: the response on a server that keeps responses, and its items
    /// in a conversation.
    pub(super) store: bool,
    /// Names of the functions whose calls the policy writes in its answer.
    pub(super) functions: Vec<String>,
    /// Messages as another response may continue them: without instructions.
    pub(super) history: ChatHistory,
    /// Input of the request, as items.
    pub(super) input: Vec<Value>,
    /// Conversation that the response continues.
    pub(super) conversation: Option<RecordKey>,
}

impl ResponsePlan {
    /// Validates everything about a request that does not need the engine. `previous` are the messages that it
    /// continues. The references in its input must be resolved.
    pub(super) async fn new(
        state: &AppState,
        caller: &Caller,
        request: ResponsesRequest,
        previous: ChatHistory,
    ) -> Result<(ResponsePlan, EpisodeRequest), ApiError> {
        let policy = state.policy(&request.model)?.policy.clone();
        let store = request.store.unwrap_or(true);
        check_store(state, &request, store)?;
        let show = Show::read(request.include.as_deref().unwrap_or_default())?;
        let top_logprobs = top_logprobs(request.top_logprobs, show)?;
        let mut tools = RequestTools::read(state, caller, request.tools.clone(), &policy)?;
        let named = request.rag.as_ref().and_then(|rag| rag.rest.index.as_deref());
        // From here on the state searches the selected index, and the plan keeps it for the episodes.
        let state = &tools.searched(state, caller, named, &policy)?;
        let functions = std::mem::take(&mut tools.functions);
        let choice = request.tool_choice.as_ref();
        let ChosenTools { tools: functions, searches } = functions.choose(choice, tools.lists_search())?;
        check_metadata(request.metadata.as_ref())?;
        let id = format!("resp_{}", Uuid::now_v7().simple());
        let mut options = EpisodeOptions {
            id: Some(id.clone()),
            sampling: sampling(&request)?,
            seed: episodes::seed(request.seed),
            max_tokens: sampling_params::most_tokens("max_output_tokens", request.max_output_tokens)?,
            logprobs: show.logprobs.then_some(top_logprobs),
            cites: true,
            ..EpisodeOptions::default()
        };
        options.form = format(&request).shape()?.map(OutputForm::Json);
        let rag = request.rag.clone().unwrap_or_default();
        rag::apply(&rag, &mut options)?;
        // A response that is not stored leaves no trace either, unless `rag.store` asks for one.
        options.store = options.store.or_else(|| (!store).then_some(false));
        restrict(&mut options, &request, &tools, searches)?;
        let stored = store && state.responses.is_enabled();
        let object = object(id, &policy, &options, &request, tools.listed, stored);
        let own = request.input.parsed()?;
        let input = own.iter().filter(|(_, item)| item.is_seen()).map(|(_, item)| item.listed()).collect();
        // A result at the end may answer the call that ended an earlier episode; `tool::resume` lets that one go on.
        let answered = match own.last() {
            Some((_, ParsedItem::Output { id, .. })) => Some(id.clone()),
            _ => None,
        };
        let history = previous.with_items(own)?;
        let key = |conversation: &ConversationParam| conversations::key(caller, conversation.id());
        let conversation_key = request.conversation.as_ref().map(key);
        // Not part of the history: a response that continues this one gives its own instructions.
        let instructions = request.instructions.map(|text| ConversationMessage::new(Role::System, text));
        let messages = instructions.into_iter().chain(history.messages.iter().cloned()).collect();
        let conversation = Conversation::from_messages(messages).map_err(|error| of_input(error.into()))?;
        options.truncates = request.truncation == Some(Truncation::Auto);
        let conversation = if options.truncates { readable(state, conversation)? } else { conversation };
        let (functions, conversation) =
            tool::offer(functions, request.parallel_tool_calls, &policy, conversation, &mut options);
        let mut episode_request = EpisodeRequest { conversation, options };
        tool::resume(state, caller, &policy, answered.as_deref(), &mut episode_request).await;
        sampling_params::note_user(request.safety_identifier.as_deref().or(request.user.as_deref()));
        let stream = request.stream.unwrap_or(false);
        let plan = ResponsePlan {
            state: state.clone(),
            policy,
            stream,
            show,
            object,
            store,
            functions,
            history,
            input,
            conversation: conversation_key,
        };
        Ok((plan, episode_request))
    }
}

/// Checks the options that need a stored response. `store` is `true` unless the request asks for nothing to be kept.
fn check_store(state: &AppState, request: &ResponsesRequest, store: bool) -> Result<(), ApiError> {
    let background = request.background.unwrap_or(false);
    if background && !store {
        return Err(ApiError::invalid("background", "`background` needs `store: true`"));
    }
    if request.conversation.is_some() && !store {
        return Err(ApiError::invalid("conversation", "`conversation` needs `store: true`"));
    }
    // A conversation is kept even where no response is, so `store` has a meaning with one.
    let demanded = request.store == Some(true) && request.conversation.is_none();
    if (background || demanded) && !state.responses.is_enabled() {
        let message = "this server keeps no responses: start it with `--kept-responses` and `--response-bytes` above 0";
        let param = if background { "background" } else { "store" };
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param(param));
    }
    Ok(())
}

/// Returns a conversation without the oldest turns that no context could hold. Texts are admitted to encoding by their
/// bytes, before their tokens are known.
fn readable(state: &AppState, conversation: Conversation) -> Result<Conversation, ApiError> {
    conversation.shortened(|shorter| Ok(state.runtime.check_bytes(shorter.bytes()).is_ok()))
}

fn format(request: &ResponsesRequest) -> TextFormat {
    request.text.as_ref().and_then(|text| text.format.clone()).unwrap_or_default()
}

/// Renames the fields of an error to those of this interface.
pub(super) fn of_input(error: ApiError) -> ApiError {
    error.renamed("response_format", "text.format").renamed("messages", "input")
}

/// Applies the search options of the tools to those of `rag`.
fn restrict(
    options: &mut EpisodeOptions,
    request: &ResponsesRequest,
    tools: &RequestTools,
    searches: bool,
) -> Result<(), ApiError> {
    // The same value in both places contradicts nothing.
    if let (Some(k), Some(other)) = (tools.search.k, options.search.k)
        && k != other
    {
        let param = tools.search_param("max_num_results");
        return Err(ApiError::invalid(&param, format!("`{param}` and `rag.k` differ: give one of them")));
    }
    if let (Some(filters), Some(other)) = (&tools.search.filters, &options.search.filters)
        && filters != other
    {
        let param = tools.search_param("filters");
        return Err(ApiError::invalid(&param, format!("`{param}` and `rag.filters` differ: give one of them")));
    }
    options.search = tools.search.clone().or(&options.search);
    // `tool_choice: none` allows no round with a search.
    let rounds = if searches { request.max_tool_calls } else { Some(0) };
    // Both limits hold, so the lower one decides.
    options.turns = [options.turns, rounds].into_iter().flatten().min();
    Ok(())
}

fn top_logprobs(top: Option<u32>, show: Show) -> Result<usize, ApiError> {
    let top = sampling_params::alternatives("top_logprobs", top)?.unwrap_or(0);
    if top > 0 && !show.logprobs {
        let message = "`top_logprobs` needs `message.output_text.logprobs` in `include`";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    Ok(top)
}

fn sampling(request: &ResponsesRequest) -> Result<Sampling, ApiError> {
    let params =
        RequestSampling { temperature: request.temperature, top_p: request.top_p, ..RequestSampling::default() };
    // A vocabulary of 0 is enough here: only `logit_bias`, which this route does not have, is checked against it.
    params.sampling(0)
}

fn object(
    id: String,
    policy: &Policy,
    options: &EpisodeOptions,
    request: &ResponsesRequest,
    tools: Vec<Value>,
    store: bool,
) -> ResponseObject {
    // The seed is not shown, so it does not matter here.
    let sampling = options.sampling.or(&policy.sampling).params(0, 0);
    let background = request.background.unwrap_or(false);
    let trace = request.rag.as_ref().and_then(|rag| rag.rest.trace).unwrap_or(false);
    ResponseObject {
        id,
        object: "response",
        created_at: now(),
        status: if background { ResponseStatus::Queued } else { ResponseStatus::InProgress },
        completed_at: None,
        error: None,
        incomplete_details: None,
        background,
        conversation: request.conversation.as_ref().map(|it| ConversationReference { id: it.id().to_owned() }),
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        max_tool_calls: request.max_tool_calls,
        metadata: request.metadata.clone().unwrap_or_default(),
        model: policy.name.clone(),
        output: Vec::new(),
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        previous_response_id: request.previous_response_id.clone(),
        prompt_cache_key: request.prompt_cache_key.clone(),
        reasoning: ReasoningOptions {
            effort: request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()),
            summary: None,
        },
        safety_identifier: request.safety_identifier.clone(),
        service_tier: "default",
        store,
        temperature: sampling.temperature,
        text: TextOptions {
            format: format(request),
            verbosity: request.text.as_ref().and_then(|text| text.verbosity.clone()),
        },
        tool_choice: request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        tools,
        top_logprobs: request.top_logprobs.unwrap_or(0),
        top_p: sampling.top_p,
        truncation: request.truncation.unwrap_or_default(),
        usage: None,
        user: request.user.clone(),
        rag: trace.then(RagTrace::default),
    }
}
