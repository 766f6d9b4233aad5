//! Parsing of an endpoint's replies.

use serde::Deserialize;
use serde_json::Value;
use waymark_index::ModelReply;

/// Maximum number of characters quoted from an error message.
const MAX_MESSAGE_CHARS: usize = 300;

#[derive(Deserialize)]
struct EndpointReply {
    choices: Vec<EndpointChoice>,
}

#[derive(Deserialize)]
struct EndpointChoice {
    message: ReplyMessage,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ReplyMessage {
    /// `None` if the model wrote nothing or refused.
    #[serde(default)]
    content: Option<String>,
}

/// Parses the first choice of a chat completion.
pub(super) fn completion(body: &str) -> Result<ModelReply, String> {
    let reply: EndpointReply = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let choice = reply.choices.into_iter().next().ok_or("the reply has no choices")?;
    // A list that was cut at the token limit still holds whole triples before the cut.
    let cut = choice.finish_reason.as_deref() == Some("length");
    Ok(ModelReply { text: choice.message.content.unwrap_or_default(), cut })
}

/// Error body of an endpoint.
pub(super) struct Trouble {
    pub(super) message: String,
    /// If `true`, the quota is used up and later requests will fail too.
    pub(super) quota: bool,
}

/// Parses an error body such as `{"error": {"message", "code"}}`; a body of another form becomes the message. `hide`
/// masks secrets before the message is truncated, so that no part of a key remains.
pub(super) fn trouble(body: &str, hide: impl Fn(&str) -> String) -> Trouble {
    let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let error = &value["error"];
    // OpenAI, llama.cpp, FastAPI and plain proxies each put the message elsewhere.
    let message = [&error["message"], error, &value["message"], &value["detail"]].into_iter().find_map(Value::as_str);
    let message: String = hide(message.unwrap_or(body)).trim().chars().take(MAX_MESSAGE_CHARS).collect();
    let quota = [&error["code"], &error["type"]].into_iter().any(|name| name == "insufficient_quota");
    Trouble { message: if message.is_empty() { "no message".to_owned() } else { message }, quota }
}
