//! Clients of models elsewhere: language models behind any server with OpenAI's `/v1/chat/completions`, embedders and
//! rerankers.

mod embed;
mod embed_reply;
mod json_client;
mod key;
mod refused_connection;
mod reply;
mod request_slots;
mod rerank;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::StatusCode;
use waymark_index::{Complete, CompleteError, ModelMessage, ModelReply};

pub use self::embed::{EmbedEndpoint, MAX_EMBEDDED_BYTES};
use self::json_client::{JsonClient, checked_url};
pub use self::key::{EndpointKey, EndpointKeyError};
use self::reply::completion;
pub use self::rerank::RerankEndpoint;
use crate::trusted_roots::TrustedRoots;

/// A model behind an OpenAI-compatible endpoint.
#[derive(Debug)]
pub struct ChatEndpoint {
    client: JsonClient,
    model: String,
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
    /// Creates a client of the model `model` at `url`, the part of the address before `/chat/completions`. Requests
    /// fail after `timeout`. The client trusts `roots`.
    ///
    /// # Errors
    /// If `url` does not begin with `http://` or `https://` and a host.
    pub fn new(
        url: &str,
        model: &str,
        key: Option<EndpointKey>,
        timeout: Duration,
        roots: TrustedRoots,
    ) -> Result<Self, UrlError> {
        let (base, query) = checked_url(url)?;
        // Users copy either form from their provider's documentation.
        let base = base.strip_suffix("/chat/completions").unwrap_or(base);
        let client = JsonClient::new(&format!("{base}/chat/completions{query}"), key, timeout, roots);
        Ok(Self { client, model: model.to_owned(), renamed_limit: AtomicBool::new(false) })
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
}

impl Complete for ChatEndpoint {
    fn model(&self) -> &str {
        &self.model
    }

    fn complete(&self, messages: &[ModelMessage], max_tokens: u32) -> Result<ModelReply, CompleteError> {
        // Concurrent requests may change the flag meanwhile; the retry depends on the name that this request used.
        let renamed_limit = self.renamed_limit.load(Ordering::Relaxed);
        let mut response = self.client.post(&self.body(messages, max_tokens, renamed_limit))?;
        let wants_renamed_limit = response.status() == StatusCode::BAD_REQUEST
            && self.client.trouble(&response).message.contains("max_completion_tokens");
        if wants_renamed_limit && !renamed_limit {
            self.renamed_limit.store(true, Ordering::Relaxed);
            response = self.client.post(&self.body(messages, max_tokens, true))?;
        }
        if !response.status().is_success() {
            return Err(self.client.failed(&response));
        }
        completion(response.body()).map_err(|problem| CompleteError::Transient {
            message: format!("the reply of {} is not a chat completion: {problem}", self.client.url()),
            after: None,
        })
    }
}

/// Returns `true` if a URL ends in a version, such as `/v1`.
fn is_version(url: &str) -> bool {
    let last = url.rsplit('/').next().and_then(|part| part.strip_prefix('v'));
    last.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests;
