//! Reading what an endpoint answers.

use serde::Deserialize;
use serde_json::Value;
use waymark_index::Completion;

/// Characters of somebody else's message that are passed on.
const LONGEST_MESSAGE: usize = 300;

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    /// `null` where a model says nothing, or refuses.
    #[serde(default)]
    content: Option<String>,
}

/// The first choice of a chat completion.
pub(super) fn completion(body: &str) -> Result<Completion, String> {
    let reply: Reply = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let choice = reply.choices.into_iter().next().ok_or("there is no choice")?;
    let cut = choice.finish_reason.as_deref() == Some("length");
    Ok(Completion { text: choice.message.content.unwrap_or_default(), cut })
}

/// What an endpoint says when it does not do what it was asked.
pub(super) struct Trouble {
    pub(super) message: String,
    /// What was paid for is used up: no later request will fare better.
    pub(super) quota: bool,
}

/// Reads `{"error": {"message", "code"}}` and its like; anything else is quoted as it is. `hide` takes out what nobody
/// may see, before the message is cut: a part of a key is one too.
pub(super) fn trouble(body: &str, hide: impl Fn(&str) -> String) -> Trouble {
    let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let error = &value["error"];
    let message = [&error["message"], error, &value["message"], &value["detail"]].into_iter().find_map(Value::as_str);
    let message: String = hide(message.unwrap_or(body)).trim().chars().take(LONGEST_MESSAGE).collect();
    let quota = [&error["code"], &error["type"]].into_iter().any(|name| name == "insufficient_quota");
    Trouble { message: if message.is_empty() { "nothing more".to_owned() } else { message }, quota }
}
