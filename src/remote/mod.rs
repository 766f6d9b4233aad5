//! Language models elsewhere: any server that speaks OpenAI's `/v1/chat/completions`.

mod key;
mod reply;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use waymark_index::{Complete, CompleteError, Completion, Message};

pub use self::key::{Key, KeyError};
use self::reply::{Trouble, completion, trouble};

/// Bytes of a reply at most; one with more is no chat completion.
const LONGEST_REPLY: u64 = 16 << 20;

/// A model behind an OpenAI-compatible endpoint.
#[derive(Debug)]
pub struct ChatEndpoint {
    agent: Agent,
    url: String,
    model: String,
    key: Option<Key>,
    timeout: Duration,
    /// The endpoint wants `max_completion_tokens` where others want `max_tokens`.
    newer: AtomicBool,
}

/// An address that cannot be one of an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not the address of an endpoint: give one such as http://127.0.0.1:8080/v1")]
pub struct UrlError {
    url: String,
}

impl ChatEndpoint {
    /// The model called `model` at `url`, the part of the address before `/chat/completions`. A reply must be there
    /// within `timeout`.
    ///
    /// # Errors
    /// If `url` does not begin with `http://` or `https://` and a host.
    pub fn new(url: &str, model: &str, key: Option<Key>, timeout: Duration) -> Result<Self, UrlError> {
        let wrong = || UrlError { url: url.to_owned() };
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or_else(wrong)?;
        if rest.is_empty() || rest.starts_with('/') || rest.contains(char::is_whitespace) {
            return Err(wrong());
        }
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/chat/completions").unwrap_or(base);
        let agent = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // Whoever asks an endpoint to keep its key does not want it carried elsewhere.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let (url, model) = (format!("{base}/chat/completions"), model.to_owned());
        Ok(Self { agent, url, model, key, timeout, newer: AtomicBool::new(false) })
    }

    /// What is sent; `newer` says which name the limit goes by.
    fn body(&self, messages: &[Message], max_tokens: u32, newer: bool) -> Value {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({"role": message.role.to_string(), "content": message.content}))
            .collect();
        let limit = if newer { "max_completion_tokens" } else { "max_tokens" };
        json!({"model": self.model, "messages": messages, "temperature": 0, "stream": false, limit: max_tokens})
    }

    /// One request; its status, headers and body.
    fn post(&self, body: &Value) -> Result<Response<String>, CompleteError> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let sent = request.send(body.to_string()).and_then(|response| {
            let (parts, mut body) = response.into_parts();
            let text = body.with_config().limit(LONGEST_REPLY).lossy_utf8(true).read_to_string()?;
            Ok(Response::from_parts(parts, text))
        });
        sent.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &ureq::Error) -> CompleteError {
        use ureq::Error::{BadUri, BodyExceedsLimit, HostNotFound, Http, Rustls, Timeout};
        let url = &self.url;
        match error {
            Timeout(_) => {
                let message = format!("no reply from {url} within {} s", self.timeout.as_secs_f64());
                CompleteError::Transient { message, after: None }
            }
            BadUri(_) | Http(_) | HostNotFound | Rustls(_) => {
                CompleteError::Refused(format!("cannot reach {url}: {error}"))
            }
            BodyExceedsLimit(limit) => {
                CompleteError::Rejected(format!("the reply of {url} is longer than {limit} bytes"))
            }
            error => CompleteError::Transient { message: format!("cannot reach {url}: {error}"), after: None },
        }
    }

    /// What the endpoint says, without the key wherever it quotes that.
    fn trouble(&self, response: &Response<String>) -> Trouble {
        trouble(response.body(), |message| {
            self.key.as_ref().map_or_else(|| message.to_owned(), |key| key.hide(message))
        })
    }

    /// What a reply that is no success means.
    fn failed(&self, response: &Response<String>) -> CompleteError {
        let status = response.status();
        let Trouble { message, quota } = self.trouble(response);
        let message = format!("{} answers {status}: {message}", self.url);
        match status {
            StatusCode::TOO_MANY_REQUESTS if quota => CompleteError::Refused(message),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => {
                CompleteError::Transient { message, after: retry_after(response) }
            }
            status if status.is_server_error() => CompleteError::Transient { message, after: retry_after(response) },
            StatusCode::UNAUTHORIZED => {
                let hint = if self.key.is_some() { "is the key right?" } else { "it wants a key" };
                CompleteError::Refused(format!("{message} ({hint})"))
            }
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => CompleteError::Refused(message),
            status if status.is_redirection() => CompleteError::Refused(message),
            _ => CompleteError::Rejected(message),
        }
    }
}

impl Complete for ChatEndpoint {
    fn model(&self) -> &str {
        &self.model
    }

    fn complete(&self, messages: &[Message], max_tokens: u32) -> Result<Completion, CompleteError> {
        // Requests run side by side: which name this one used counts, not what another has learnt since.
        let newer = self.newer.load(Ordering::Relaxed);
        let mut response = self.post(&self.body(messages, max_tokens, newer))?;
        let wants_newer = response.status() == StatusCode::BAD_REQUEST
            && self.trouble(&response).message.contains("max_completion_tokens");
        if wants_newer && !newer {
            self.newer.store(true, Ordering::Relaxed);
            response = self.post(&self.body(messages, max_tokens, true))?;
        }
        if !response.status().is_success() {
            return Err(self.failed(&response));
        }
        completion(response.body()).map_err(|problem| CompleteError::Transient {
            message: format!("{} does not answer with a chat completion: {problem}", self.url),
            after: None,
        })
    }
}

/// The wait that `Retry-After` asks for, where it is a number of seconds.
fn retry_after(response: &Response<String>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    let seconds: f64 = value.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests;
