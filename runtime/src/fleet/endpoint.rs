//! HTTP requests to one engine.

use std::time::Duration;

use reqwest::{Client, Method, Response, StatusCode, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::fault::{Fault, FaultKind};
use crate::config::EngineAddress;
use crate::remote::EndpointKey;

/// Maximum size of a reply that is read whole, in bytes.
const MAX_REPLY: usize = 64 << 20;

/// Maximum size of an error's body that is read, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Time limit of a request that computes nothing, or one token.
const SHORT: Duration = Duration::from_secs(30);

/// HTTP client of one engine.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: EngineAddress,
    client: Client,
    key: Option<EndpointKey>,
}

impl Endpoint {
    /// Creates a client of the engine at `address`.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub(super) fn new(address: EngineAddress, key: Option<EndpointKey>, connect: Duration) -> reqwest::Result<Self> {
        let client = Client::builder()
            .connect_timeout(connect)
            // A redirect could send the key to another host, and a proxy from the environment would see every token.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { address, client, key })
    }

    /// Returns the engine's URL.
    pub(super) fn url(&self) -> &str {
        &self.address.url
    }

    /// Creates a failure of this engine.
    pub(super) fn fault(&self, kind: FaultKind, message: impl Into<String>) -> Fault {
        let message = message.into();
        // Some servers quote the key in their errors.
        let message = self.key.as_ref().map_or_else(|| message.clone(), |key| key.hide(&message));
        Fault::new(self.url(), kind, message)
    }

    /// Sends a request and returns the head of a successful response.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        session: Option<&str>,
    ) -> Result<Response, Fault> {
        let mut request = self.client.request(method, format!("{}{path}", self.url()));
        if !body.is_empty() {
            request = request.header("content-type", "application/json").body(body);
        }
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        if let Some(session) = session {
            request = request.header("x-session-id", session);
        }
        let response = request.send().await.map_err(|error| self.unsent(error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    fn unsent(&self, error: reqwest::Error) -> Fault {
        let kind = if error.is_connect() { FaultKind::Unreachable } else { FaultKind::Broken };
        // Clients see the message, and should not learn the addresses of engines.
        self.fault(kind, causes(&error.without_url()))
    }

    /// Maps an error response to its meaning.
    async fn refusal(&self, response: Response) -> Fault {
        let status = response.status();
        let body = timeout(SHORT, beginning(response, MAX_ERROR)).await.unwrap_or_default();
        let EngineRefusal { message, code } = EngineRefusal::read(&body);
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => FaultKind::Busy,
            // Waymark tells a full queue from a dead engine; elsewhere 503 means no free worker.
            StatusCode::SERVICE_UNAVAILABLE if code == "engine_unavailable" || code == "draining" => FaultKind::Broken,
            StatusCode::SERVICE_UNAVAILABLE => FaultKind::Busy,
            // vLLM answers so for a model or an adapter that it does not have.
            StatusCode::NOT_FOUND => FaultKind::MissingModel,
            status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => FaultKind::Broken,
            _ => FaultKind::Refused,
        };
        let hint = if status == StatusCode::UNAUTHORIZED { " (check the API key of the engines)" } else { "" };
        self.fault(kind, format!("{status}: {message}{hint}"))
    }

    /// Reads a body of at most `most` bytes.
    async fn read(&self, mut response: Response, most: usize) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unsent(error))? {
            if body.len() + chunk.len() > most {
                return Err(self.fault(FaultKind::Broken, format!("the reply is longer than {most} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Sends a request and parses its whole reply. Also returns the size of the reply.
    pub(super) async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<(T, usize), Fault> {
        let exchange = async {
            let response = self.send(method, path, body, None).await?;
            let body = self.read(response, MAX_REPLY).await?;
            let parsed = serde_json::from_slice(&body);
            let parsed =
                parsed.map_err(|error| self.fault(FaultKind::Broken, format!("{path}: invalid reply: {error}")))?;
            Ok::<(T, usize), Fault>((parsed, body.len()))
        };
        let late = |_| self.fault(FaultKind::Broken, format!("{path}: no reply within {} s", within.as_secs_f64()));
        timeout(within, exchange).await.map_err(late)?
    }

    /// Sends a request that takes a moment and parses its reply.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: Option<&Value>) -> Result<T, Fault> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        Ok(self.exchange(method, path, body, SHORT).await?.0)
    }

    /// Sends a request whose reply is a plain text without meaning.
    pub(super) async fn tell(&self, path: &str, body: &Value) -> Result<(), Fault> {
        let sent = self.send(Method::POST, path, body.to_string().into_bytes(), None);
        let late = |_| self.fault(FaultKind::Broken, format!("{path}: no reply within {} s", SHORT.as_secs_f64()));
        timeout(SHORT, sent).await.map_err(late)?.map(drop)
    }
}

/// Error of an engine, in any of the forms in which servers write it.
#[derive(Debug, PartialEq, Eq)]
struct EngineRefusal {
    message: String,
    code: String,
}

impl EngineRefusal {
    fn read(body: &[u8]) -> EngineRefusal {
        let text = String::from_utf8_lossy(body);
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            return EngineRefusal { message: text.chars().take(200).collect(), code: String::new() };
        };
        let error = &value["error"];
        // vLLM writes a wrong key as `{"error": "Unauthorized"}`.
        let message = error["message"].as_str().or_else(|| error.as_str()).or_else(|| value["detail"].as_str());
        let message = message.map_or_else(|| text.chars().take(200).collect(), str::to_owned);
        EngineRefusal { message, code: error["code"].as_str().unwrap_or_default().to_owned() }
    }
}

/// Returns the message of an error with those of its causes, since the outermost one says little.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Reads at most the first `most` bytes of a body. One that breaks off ends there.
async fn beginning(mut response: Response, most: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < most {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_error_is_read() {
        let read = |body: &str| EngineRefusal::read(body.as_bytes());
        let message = |body: &str| read(body).message;
        assert_eq!(message(r#"{"error":"Unauthorized"}"#), "Unauthorized");
        assert_eq!(message(r#"{"error":{"message":"no","code":404}}"#), "no");
        assert_eq!(message(r#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(message("<html>"), "<html>");
        assert_eq!(read(r#"{"error":{"message":"x","code":"queue_full"}}"#).code, "queue_full");
    }
}
