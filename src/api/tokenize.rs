//! `/tokenize` and `/detokenize`: what texts and conversations are to the model.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_models::tokenizer::Tokenizer;

use super::beside::beside;
use super::body::{Json, Wire};
use super::chat::messages::conversation;
use super::chat::request::ChatMessage;
use super::chat::tool;
use super::error::{ApiError, Code, Refusals};
use super::state::AppState;

/// A text or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The policy that would read it; the first one when not given.
    pub model: Option<String>,
    /// A text, in which control tokens have no meaning. Either this or `messages`.
    pub prompt: Option<String>,
    /// A conversation: gives the very ids that an answer to it would begin with, the policy's instruction included.
    pub messages: Option<Vec<ChatMessage>>,
    /// Whether to name each token as well.
    pub return_token_strs: Option<bool>,
}

impl Wire for TokenizeRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
        &[("add_generation_prompt", &["true"]), ("add_special_tokens", &["false"])];
}

/// Token ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tokens {
    /// How many they are.
    pub count: usize,
    /// The longest sequence the server holds, in tokens.
    pub max_model_len: usize,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The text of each, where it was asked for: a control token's name, U+FFFD for what is no UTF-8 by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

/// Token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The policy that would read them; the first one when not given.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

impl Wire for DetokenizeRequest {}

/// What token ids spell.
#[derive(Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// The text: control tokens by their names, U+FFFD for what is no UTF-8.
    pub prompt: String,
}

/// The token ids of a text, or of a conversation as a policy is shown it.
#[utoipa::path(post, path = "/tokenize", operation_id = "tokenize", tag = "models", request_body = TokenizeRequest, responses(
    (status = 200, description = "the ids", body = Tokens),
    Refusals,
))]
pub(super) async fn tokenize(
    State(state): State<AppState>,
    Json(request): Json<TokenizeRequest>,
) -> Result<axum::Json<Tokens>, ApiError> {
    let policy = state.policies.get_or_first(request.model.as_deref())?.policy.clone();
    let chat = match (&request.prompt, request.messages) {
        (Some(_), None) => None,
        (None, Some(messages)) => {
            let chat = conversation(messages)?;
            tool::check(&state, &policy, &chat)?;
            Some(chat)
        }
        (Some(_), Some(_)) => return Err(ApiError::invalid("messages", "give either `prompt` or `messages`")),
        (None, None) => {
            let message = "`prompt` or `messages` is required";
            return Err(ApiError::new(Code::MissingParameter, message).with_param("prompt"));
        }
    };
    let (runtime, text) = (state.runtime.clone(), request.prompt.unwrap_or_default());
    let named = request.return_token_strs.unwrap_or(false);
    let work = move || -> Result<Tokens, ApiError> {
        let tokens = match chat {
            None => runtime.literal(&text)?,
            Some(chat) => runtime.encode(&policy.protocol.prompt(&chat, policy.guided))?,
        };
        let name = |id: &u32| String::from_utf8_lossy(&spelled(&runtime.tokenizer, *id)).into_owned();
        let token_strs = named.then(|| tokens.iter().map(name).collect());
        Ok(Tokens { count: tokens.len(), max_model_len: runtime.engine.limit(), tokens, token_strs })
    };
    beside(work).await.map(axum::Json)
}

/// The text that token ids spell.
#[utoipa::path(post, path = "/detokenize", operation_id = "detokenize", tag = "models", request_body = DetokenizeRequest, responses(
    (status = 200, description = "the text", body = Detokenized),
    Refusals,
))]
pub(super) async fn detokenize(
    State(state): State<AppState>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<axum::Json<Detokenized>, ApiError> {
    state.policies.get_or_first(request.model.as_deref())?;
    let tokenizer = state.runtime.tokenizer.clone();
    let vocab = tokenizer.vocab();
    if let Some(at) = request.tokens.iter().position(|id| *id as usize >= vocab) {
        let message = format!("{} is no token id below {vocab}", request.tokens[at]);
        return Err(ApiError::invalid(&format!("tokens[{at}]"), message));
    }
    let work = move || {
        let bytes: Vec<u8> = request.tokens.iter().flat_map(|id| spelled(&tokenizer, *id)).collect();
        Ok(Detokenized { prompt: String::from_utf8_lossy(&bytes).into_owned() })
    };
    beside(work).await.map(axum::Json)
}

/// A token's bytes; a control token, which has none, by its name.
fn spelled(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.is_control(id) {
        true => tokenizer.name(id).unwrap_or_default().into_bytes(),
        false => tokenizer.bytes_of(id).to_vec(),
    }
}
