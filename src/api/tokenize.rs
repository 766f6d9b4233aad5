//! `/tokenize` and `/detokenize`: conversion between text or conversations and token IDs.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_agent::Conversation;
use waymark_models::tokenizer::Tokenizer;

use super::auth::Caller;
use super::blocking::run_blocking;
use super::body::{JsonBody, WireRequest};
use super::chat::messages::conversation;
use super::chat::request::ChatMessage;
use super::error::{ApiError, Code, Refusals};
use super::state::AppState;

/// Text or conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// Policy whose prompt format is used; defaults to the first one.
    pub model: Option<String>,
    /// Text, in which control tokens have no special meaning. No BOS is added. Give either this or `messages`.
    pub prompt: Option<String>,
    /// Conversation. The result is exactly the token IDs of its prompt, including the policy's instruction.
    #[schema(min_items = 1)]
    pub messages: Option<Vec<ChatMessage>>,
    /// If `true`, the text of each token is returned as well.
    pub return_token_strs: Option<bool>,
}

impl WireRequest for TokenizeRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("add_generation_prompt", &["true"]), ("add_special_tokens", &["false"])];
}

/// Token IDs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tokens)]
pub struct TokenList {
    /// Number of tokens.
    pub count: usize,
    /// Maximum length of a sequence on this server, in tokens.
    pub max_model_len: usize,
    /// Token IDs.
    pub tokens: Vec<u32>,
    /// Text of each token, if requested: the name of a control token, and U+FFFD for bytes that are not UTF-8 by
    /// themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// Token IDs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// Policy; defaults to the first one.
    pub model: Option<String>,
    /// Token IDs.
    pub tokens: Vec<u32>,
}

impl WireRequest for DetokenizeRequest {}

/// Text of token IDs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// Text, with control tokens by their names and U+FFFD for bytes that are not UTF-8.
    pub prompt: String,
}

/// Returns the token IDs of a text, or of a conversation in the prompt format of a policy.
#[utoipa::path(post, path = "/tokenize", operation_id = "tokenize", tag = "models", request_body = TokenizeRequest, responses(
    (status = 200, description = "the token IDs", body = TokenList),
    Refusals,
))]
pub(super) async fn tokenize(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<TokenizeRequest>,
) -> Result<axum::Json<TokenList>, ApiError> {
    let policy = state.policy_or_first(request.model.as_deref())?.policy.clone();
    let chat = match (&request.prompt, request.messages) {
        (Some(_), None) => None,
        (None, Some(messages)) => Some(conversation(messages)?),
        (Some(_), Some(_)) => return Err(ApiError::invalid("messages", "give either `prompt` or `messages`")),
        (None, None) => {
            let message = "`prompt` or `messages` is required";
            return Err(ApiError::new(Code::MissingParameter, message).with_param("prompt"));
        }
    };
    let bytes = chat.as_ref().map_or(0, Conversation::bytes) + request.prompt.as_ref().map_or(0, String::len);
    let param = if chat.is_some() { "messages" } else { "prompt" };
    let runtime = state.runtime.clone();
    let text = request.prompt.unwrap_or_default();
    let named = request.return_token_strs.unwrap_or(false);
    let work = move || -> Result<TokenList, ApiError> {
        let tokens = match chat {
            None => runtime.literal_prompt(&text)?,
            Some(chat) => runtime.encode_conversation(&*policy.protocol, &chat, policy.guided)?,
        };
        let name = |id: &u32| String::from_utf8_lossy(&spelled(&runtime.tokenizer, *id)).into_owned();
        let token_strs = named.then(|| tokens.iter().map(name).collect());
        Ok(TokenList { count: tokens.len(), max_model_len: runtime.engine.limit(), tokens, token_strs })
    };
    let made = state.encode(&caller, bytes, work).await;
    made.map(axum::Json).map_err(|error| error.renamed("messages", param))
}

/// Returns the text of token IDs.
#[utoipa::path(post, path = "/detokenize", operation_id = "detokenize", tag = "models", request_body = DetokenizeRequest, responses(
    (status = 200, description = "the text", body = Detokenized),
    Refusals,
))]
pub(super) async fn detokenize(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<DetokenizeRequest>,
) -> Result<axum::Json<Detokenized>, ApiError> {
    state.policy_or_first(request.model.as_deref())?;
    let tokenizer = state.runtime.tokenizer.clone();
    let vocab = tokenizer.vocab();
    if let Some(at) = request.tokens.iter().position(|id| *id as usize >= vocab) {
        let message = format!("{} is not a token ID below {vocab}", request.tokens[at]);
        return Err(ApiError::invalid(&format!("tokens[{at}]"), message));
    }
    // Counted before the text is built: an ID of a few bytes may stand for much text.
    let bytes: usize = request.tokens.iter().map(|id| spelled(&tokenizer, *id).len()).sum();
    if bytes > state.config.answer_bytes {
        let limit = state.config.answer_bytes;
        let message = format!("`tokens` stand for {bytes} bytes, at most {limit} are sent: ask for fewer");
        return Err(ApiError::invalid("tokens", message));
    }
    let work = move || {
        // Joined before decoding, because a character may be split between tokens.
        let bytes: Vec<u8> = request.tokens.iter().flat_map(|id| spelled(&tokenizer, *id)).collect();
        Ok(Detokenized { prompt: String::from_utf8_lossy(&bytes).into_owned() })
    };
    run_blocking(work).await.map(axum::Json)
}

/// Returns a token's bytes, or the name of a control token, which has no bytes.
fn spelled(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.is_control(id) {
        true => tokenizer.name(id).unwrap_or_default().into_bytes(),
        false => tokenizer.bytes_of(id).to_vec(),
    }
}
