//! Client of language models behind any server with OpenAI's `/v1/chat/completions`.

mod key;
mod reply;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use waymark_index::{Complete, CompleteError, ModelMessage, ModelReply};

pub use self::key::{EndpointKey, EndpointKeyError};
use self::reply::{Trouble, completion, trouble};

/// Maximum size of a reply, in bytes. A larger one is not a chat completion.
const MAX_REPLY_BYTES: u64 = 16 << 20;

/// A model behind an OpenAI-compatible endpoint.
#[derive(Debug)]
pub struct ChatEndpoint {
    agent: Agent,
    url: String,
    model: String,
    key: Option<EndpointKey>,
    timeout: Duration,
    /// If `true`, the endpoint takes `max_completion_tokens` instead of `max_tokens`.
    renamed_limit: AtomicBool,
}

/// Error returned for an invalid endpoint URL.
#[derive(Debug, thiserror::Error)]
#[error("invalid endpoint URL {url:?}: expected one such as http://127.0.0.1:8080/v1")]
pub struct UrlError {
    url: String,
}

impl ChatEndpoint {
    /// Creates a client of the model `model` at `url`, the part of the address before `/chat/completions`. Requests fail
    /// after `timeout`.
    ///
    /// # Errors
    /// If `url` does not begin with `http://` or `https://` and a host.
    pub fn new(url: &str, model: &str, key: Option<EndpointKey>, timeout: Duration) -> Result<Self, UrlError> {
        let wrong = || UrlError { url: url.to_owned() };
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or_else(wrong)?;
        if rest.is_empty() || rest.starts_with('/') || rest.contains(char::is_whitespace) {
            return Err(wrong());
        }
        let base = url.trim_end_matches('/');
        // Users copy either form from their provider's documentation.
        let base = base.strip_suffix("/chat/completions").unwrap_or(base);
        let agent = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // A redirect could send the key to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let url = format!("{base}/chat/completions");
        let model = model.to_owned();
        Ok(Self { agent, url, model, key, timeout, renamed_limit: AtomicBool::new(false) })
    }

    /// Body of a request; `renamed_limit` selects the name of the token limit.
    fn body(&self, messages: &[ModelMessage], max_tokens: u32, renamed_limit: bool) -> Value {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({"role": message.role.to_string(), "content": message.content}))
            .collect();
        let limit = if renamed_limit { "max_completion_tokens" } else { "max_tokens" };
        // Greedy: extractions and fact filters should not change from run to run.
        json!({"model": self.model, "messages": messages, "temperature": 0, "stream": false, limit: max_tokens})
    }

    /// Sends one request and returns its response.
    fn post(&self, body: &Value) -> Result<Response<String>, CompleteError> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let sent = request.send(body.to_string()).and_then(|response| {
            let (parts, mut body) = response.into_parts();
            let text = body.with_config().limit(MAX_REPLY_BYTES).lossy_utf8(true).read_to_string()?;
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
            // A retry cannot mend these: the address or certificate is wrong.
            BadUri(_) | Http(_) | HostNotFound | Rustls(_) => {
                CompleteError::Refused(format!("cannot reach {url}: {error}"))
            }
            BodyExceedsLimit(limit) => {
                CompleteError::Rejected(format!("the reply of {url} is longer than {limit} bytes"))
            }
            error => CompleteError::Transient { message: format!("cannot reach {url}: {error}"), after: None },
        }
    }

    /// Removes the key from the endpoint's message if the message quotes it.
    fn trouble(&self, response: &Response<String>) -> Trouble {
        trouble(response.body(), |message| {
            self.key.as_ref().map_or_else(|| message.to_owned(), |key| key.hide(message))
        })
    }

    /// Maps an error reply to its meaning.
    fn failed(&self, response: &Response<String>) -> CompleteError {
        let status = response.status();
        let Trouble { message, quota } = self.trouble(response);
        let message = format!("{} returned {status}: {message}", self.url);
        match status {
            // OpenAI reports an exhausted quota with the status of rate limiting, but waiting does not help.
            StatusCode::TOO_MANY_REQUESTS if quota => CompleteError::Refused(message),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => {
                CompleteError::Transient { message, after: retry_after(response) }
            }
            status if status.is_server_error() => CompleteError::Transient { message, after: retry_after(response) },
            StatusCode::UNAUTHORIZED => {
                let hint = if self.key.is_some() { "check the API key" } else { "an API key is required" };
                CompleteError::Refused(format!("{message} ({hint})"))
            }
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => CompleteError::Refused(message),
            // The client follows no redirects, so that a redirect is the final answer.
            status if status.is_redirection() => CompleteError::Refused(message),
            _ => CompleteError::Rejected(message),
        }
    }
}

impl Complete for ChatEndpoint {
    fn model(&self) -> &str {
        &self.model
    }

    fn complete(&self, messages: &[ModelMessage], max_tokens: u32) -> Result<ModelReply, CompleteError> {
        // Concurrent requests may change the flag meanwhile; the retry depends on the name that this request used.
        let renamed_limit = self.renamed_limit.load(Ordering::Relaxed);
        let mut response = self.post(&self.body(messages, max_tokens, renamed_limit))?;
        let wants_renamed_limit = response.status() == StatusCode::BAD_REQUEST
            && self.trouble(&response).message.contains("max_completion_tokens");
        if wants_renamed_limit && !renamed_limit {
            self.renamed_limit.store(true, Ordering::Relaxed);
            response = self.post(&self.body(messages, max_tokens, true))?;
        }
        if !response.status().is_success() {
            return Err(self.failed(&response));
        }
        completion(response.body()).map_err(|problem| CompleteError::Transient {
            message: format!("the reply of {} is not a chat completion: {problem}", self.url),
            after: None,
        })
    }
}

/// Returns the wait in the `Retry-After` header. `None` if the header is missing or not a number of seconds.
fn retry_after(response: &Response<String>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    let seconds: f64 = value.trim().parse().ok()?;
    // Negative numbers and NaN parse as `f64`, but are no duration.
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests;
