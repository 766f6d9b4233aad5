//! `POST /v1/responses/input_tokens`.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::format::TextRequest;
use super::function_tool::ToolChoiceShape;
use super::input::InputShape;
use super::plan::of_input;
use super::planned;
use super::request::{ConversationParam, ReasoningRequest, ResponsesInput, ResponsesRequest, Truncation};
use super::tool::ToolShape;
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest};
use crate::api::episodes::{self, EpisodeSeed};
use crate::api::error::{ApiError, Code, Refusals};
use crate::api::hint::Hint;
use crate::api::state::AppState;

/// Request whose tokens are counted: the fields of a request for a response that its prompt depends on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputTokensRequest {
    /// Policy that would answer, by its name in `/v1/models`.
    pub model: String,
    /// Question, or conversation whose last message is the question.
    #[schema(value_type = InputShape)]
    pub input: ResponsesInput,
    /// Instructions that precede the conversation.
    pub instructions: Option<String>,
    /// ID of a stored response whose conversation is continued.
    pub previous_response_id: Option<String>,
    /// Conversation that is continued.
    pub conversation: Option<ConversationParam>,
    /// Tools of the request.
    #[schema(value_type = Option<Vec<ToolShape>>)]
    pub tools: Option<Vec<Value>>,
    /// Choice between the tools.
    #[schema(value_type = Option<ToolChoiceShape>)]
    pub tool_choice: Option<Value>,
    /// Without effect on the prompt.
    pub parallel_tool_calls: Option<bool>,
    /// Format of the answer. Without effect on the prompt.
    pub text: Option<TextRequest>,
    /// Hints for reasoning.
    pub reasoning: Option<ReasoningRequest>,
    /// Treatment of a conversation that is too long for the context.
    pub truncation: Option<Truncation>,
}

impl WireRequest for InputTokensRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("reasoning.generate_summary", &[]), ("reasoning.summary", &[])];
    const HINTS: &'static [Hint] = &[Hint::NESTED_EFFORT, Hint::NESTED_VERBOSITY];
}

/// Number of tokens of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputTokens {
    /// Always `response.input_tokens`.
    pub object: &'static str,
    /// Number of tokens in the prompt, as in `usage.input_tokens` of a response to the same request.
    pub input_tokens: usize,
}

impl From<InputTokensRequest> for ResponsesRequest {
    fn from(request: InputTokensRequest) -> ResponsesRequest {
        ResponsesRequest {
            instructions: request.instructions,
            previous_response_id: request.previous_response_id,
            conversation: request.conversation,
            tools: request.tools,
            tool_choice: request.tool_choice,
            parallel_tool_calls: request.parallel_tool_calls,
            text: request.text,
            reasoning: request.reasoning,
            truncation: request.truncation,
            ..ResponsesRequest::new(request.model, request.input)
        }
    }
}

/// Counts the tokens of the prompt of a response, without generating the response.
#[utoipa::path(post, path = "/v1/responses/input_tokens", operation_id = "countInputTokens", tag = "inference",
    request_body = InputTokensRequest,
    responses((status = 200, description = "the number of tokens", body = InputTokens), Refusals))]
pub(crate) async fn count(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<InputTokensRequest>,
) -> Result<axum::Json<InputTokens>, ApiError> {
    let (plan, mut episode_request) = planned(&state, &caller, request.into()).await?;
    let options = &mut episode_request.options;
    // Neither changes the prompt, and compiling grammars takes time.
    options.form = None;
    options.calls.clear();
    options.strict.clear();
    // No episode runs, and `build` must not be asked for a trace.
    options.store = Some(false);
    let requests = vec![episode_request];
    let seed = EpisodeSeed::PerQuestion;
    let built = episodes::build(&plan.state, &caller, &plan.policy, requests, 1, 0, seed).await;
    let built = built.map_err(of_input)?;
    let episode = built.first().ok_or_else(|| ApiError::new(Code::Internal, "no prompt was made"))?;
    Ok(axum::Json(InputTokens { object: "response.input_tokens", input_tokens: episode.prompt_tokens() }))
}
