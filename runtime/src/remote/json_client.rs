//! Client of one URL that takes and returns JSON.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use waymark_index::CompleteError;

use super::UrlError;
use super::key::EndpointKey;
use super::reply::{Trouble, trouble};
use crate::trusted_roots::TrustedRoots;

/// Maximum size of a reply, in bytes. A larger one is none of those that are asked for.
const MAX_REPLY_BYTES: u64 = 16 << 20;

/// Client of one URL, with its key and timeout.
#[derive(Debug)]
pub(super) struct JsonClient {
    agent: Agent,
    url: String,
    key: Option<EndpointKey>,
    timeout: Duration,
    roots: TrustedRoots,
}

impl JsonClient {
    /// Creates a client of `url`, which trusts the public certificate authorities. Requests fail after `timeout`.
    pub(super) fn new(url: String, key: Option<EndpointKey>, timeout: Duration) -> Self {
        let roots = TrustedRoots::default();
        JsonClient { agent: agent(timeout, &roots), url, key, timeout, roots }
    }

    /// Trusts `roots` instead.
    pub(super) fn trusting(self, roots: TrustedRoots) -> Self {
        JsonClient { agent: agent(self.timeout, &roots), roots, ..self }
    }

    /// URL that requests go to.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Timeout of a request.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends one request and returns its response.
    pub(super) fn post(&self, body: &Value) -> Result<Response<String>, CompleteError> {
        self.post_within(body, self.timeout)
    }

    /// Sends one request, which fails after `timeout`, and returns its response.
    pub(super) fn post_within(&self, body: &Value, timeout: Duration) -> Result<Response<String>, CompleteError> {
        let request = self.agent.post(&self.url).config().timeout_global(Some(timeout)).build();
        let mut request = request.content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let sent = request.send(body.to_string()).and_then(|response| {
            let (parts, mut body) = response.into_parts();
            let text = body.with_config().limit(MAX_REPLY_BYTES).lossy_utf8(true).read_to_string()?;
            Ok(Response::from_parts(parts, text))
        });
        sent.map_err(|error| self.unreachable(&error, timeout))
    }

    fn unreachable(&self, error: &ureq::Error, timeout: Duration) -> CompleteError {
        use ureq::Error::{BadUri, BodyExceedsLimit, HostNotFound, Http, Rustls, Timeout};
        let url = &self.url;
        if let ureq::Error::Io(error) = error
            && let Some(reason) = self.roots.explain(error)
        {
            return CompleteError::Refused(format!("cannot reach {url}: {reason}"));
        }
        match error {
            Timeout(_) => {
                let message = format!("no reply from {url} within {:.1} s", timeout.as_secs_f64());
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

fn agent(timeout: Duration, roots: &TrustedRoots) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        // A redirect could send the key to another host.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .tls_config(roots.ureq_config())
        .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")));
    config.build().new_agent()
}

/// Checks that a URL begins with `http://` or `https://` and a host, and returns it without slashes at its end.
pub(super) fn checked_url(url: &str) -> Result<&str, UrlError> {
    let wrong = || UrlError { url: url.to_owned() };
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or_else(wrong)?;
    if rest.is_empty() || rest.starts_with('/') || rest.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(url.trim_end_matches('/'))
}

/// Returns the wait in the `Retry-After` header. `None` if the header is missing or not a number of seconds.
fn retry_after(response: &Response<String>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    let seconds: f64 = value.trim().parse().ok()?;
    // Negative numbers and NaN parse as `f64`, but are no duration.
    Duration::try_from_secs_f64(seconds).ok()
}
