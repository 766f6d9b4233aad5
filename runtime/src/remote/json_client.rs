//! Client of one URL that takes and returns JSON.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use waymark_index::CompleteError;

use super::UrlError;
use super::key::EndpointKey;
use super::refused_connection::RefusedConnection;
use super::reply::{Trouble, trouble};
use crate::trusted_roots::TrustedRoots;

/// Maximum size of a reply, in bytes. No expected reply is larger.
const MAX_REPLY_BYTES: u64 = 16 << 20;

/// Client of one URL, with its key and timeout.
#[derive(Debug)]
pub(super) struct JsonClient {
    agent: Agent,
    /// URL without its query, for messages.
    url: String,
    /// Query of the URL with its `?`. It may hold a secret. Empty if there is none.
    query: String,
    key: Option<EndpointKey>,
    timeout: Duration,
    roots: TrustedRoots,
    refused: RefusedConnection,
}

impl JsonClient {
    /// Creates a client of `url`, which trusts `roots`. Requests fail after `timeout`.
    pub(super) fn new(url: &str, key: Option<EndpointKey>, timeout: Duration, roots: TrustedRoots) -> Self {
        let (url, query) = without_query(url);
        JsonClient {
            agent: roots.agent(timeout),
            url: url.to_owned(),
            query: query.to_owned(),
            key,
            timeout,
            roots,
            refused: RefusedConnection::default(),
        }
    }

    /// URL that requests go to, without its query.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Timeout of a request.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the error of the last refused connection. `None` if the endpoint has answered since, or if the refusal
    /// is no longer recent.
    pub(super) fn recently_refused(&self) -> Option<CompleteError> {
        self.refused.recent().map(|message| CompleteError::Transient { message, after: None })
    }

    /// Sends one request and returns its response.
    pub(super) fn post(&self, body: &Value) -> Result<Response<String>, CompleteError> {
        self.post_within(body, self.timeout)
    }

    /// Sends one request, which fails after `timeout`, and returns its response.
    pub(super) fn post_within(&self, body: &Value, timeout: Duration) -> Result<Response<String>, CompleteError> {
        let request =
            self.agent.post(format!("{}{}", self.url, self.query)).config().timeout_global(Some(timeout)).build();
        let mut request = request.content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let sent = request.send(body.to_string()).and_then(|response| {
            let (parts, mut body) = response.into_parts();
            let text = body.with_config().limit(MAX_REPLY_BYTES).lossy_utf8(true).read_to_string()?;
            Ok(Response::from_parts(parts, text))
        });
        sent.inspect(|_| self.refused.forget()).map_err(|error| self.unreachable(&error, timeout))
    }

    fn unreachable(&self, error: &ureq::Error, timeout: Duration) -> CompleteError {
        use ureq::Error::{BadUri, BodyExceedsLimit, HostNotFound, Http, Io, Rustls, Timeout};
        let url = &self.url;
        if let Io(error) = error
            && let Some(reason) = self.roots.explain(error)
        {
            return CompleteError::Refused(format!("cannot reach {url}: {reason}"));
        }
        match error {
            Timeout(_) => {
                let message = format!("no reply from {url} within {:.1} s", timeout.as_secs_f64());
                CompleteError::Transient { message, after: None }
            }
            // A retry cannot help: the address or certificate is wrong. The text of `BadUri` is left out, because it
            // quotes the URL with its query.
            BadUri(_) => CompleteError::Refused(format!("cannot reach {url}: the URL is invalid")),
            Http(_) | HostNotFound | Rustls(_) => CompleteError::Refused(format!("cannot reach {url}: {error}")),
            BodyExceedsLimit(limit) => {
                CompleteError::Rejected(format!("the reply of {url} is longer than {limit} bytes"))
            }
            error => {
                let message = format!("cannot reach {url}: {error}");
                if matches!(error, Io(error) if error.kind() == ErrorKind::ConnectionRefused) {
                    self.refused.note(&message);
                }
                CompleteError::Transient { message, after: None }
            }
        }
    }

    /// Parses an error reply and masks the key if the endpoint's message quotes it.
    pub(super) fn trouble(&self, response: &Response<String>) -> Trouble {
        trouble(response.body(), |message| {
            self.key.as_ref().map_or_else(|| message.to_owned(), |key| key.hide(message))
        })
    }

    /// Maps an error reply to its meaning.
    pub(super) fn failed(&self, response: &Response<String>) -> CompleteError {
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

/// Checks that a URL begins with `http://` or `https://` and a host. Returns it without slashes at its end, and its
/// query with the `?`.
pub(super) fn checked_url(url: &str) -> Result<(&str, &str), UrlError> {
    let (base, query) = without_query(url);
    let wrong = || UrlError { url: base.to_owned() };
    let rest = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://")).ok_or_else(wrong)?;
    if rest.is_empty() || rest.starts_with('/') || url.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok((base.trim_end_matches('/'), query))
}

/// Splits a URL into the part before its query and the query with its `?`, which is empty if there is none.
fn without_query(url: &str) -> (&str, &str) {
    url.split_at(url.find('?').unwrap_or(url.len()))
}

/// Returns the wait in the `Retry-After` header. `None` if the header is missing or not a number of seconds.
fn retry_after(response: &Response<String>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    let seconds: f64 = value.trim().parse().ok()?;
    // Negative numbers and NaN parse as `f64`, but are no duration.
    Duration::try_from_secs_f64(seconds).ok()
}
