//! HTTP requests to one engine.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::connector::{self, ClosedConnections, ConnectError, EngineClient};
use super::fault::{Fault, FaultKind};
use crate::config::EngineAddress;
use crate::remote::EndpointKey;
use crate::trusted_roots::{TrustedRoots, TrustedRootsError};

/// Maximum size of a reply that is read whole, in bytes.
const MAX_REPLY: usize = 64 << 20;

/// Maximum size of an error's body that is read, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Time limit of a request that computes no tokens.
const SHORT: Duration = Duration::from_secs(30);

/// HTTP client of one engine.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: EngineAddress,
    /// Follows no redirects, which could send the key to another host, and uses no proxy, which would see every token.
    client: EngineClient,
    /// Connections that have ended, as all do when the engine is restarted.
    pub(super) closed: ClosedConnections,
    key: Option<EndpointKey>,
}

impl Endpoint {
    /// Creates a client of the engine at `address`, which trusts `roots`. A connection must be made within `connect`.
    ///
    /// # Errors
    /// If the trusted certificates cannot be used.
    pub(super) fn new(
        address: EngineAddress,
        key: Option<EndpointKey>,
        roots: &TrustedRoots,
        connect: Duration,
    ) -> Result<Self, TrustedRootsError> {
        let closed = ClosedConnections::default();
        let client = connector::client(address.url.starts_with("https://"), roots, connect, &closed)?;
        Ok(Self { address, client, closed, key })
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
    ) -> Result<Response<Incoming>, Fault> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url()));
        request = request.header(USER_AGENT, concat!("waymark/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        if let Some(session) = session {
            request = request.header("x-session-id", session);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| self.fault(FaultKind::Refused, error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| self.unsent(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    /// Maps the error of a request that got no response. Clients see the message, which names no address.
    fn unsent(&self, error: &hyper_util::client::legacy::Error) -> Fault {
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            // Waiting does not make a certificate valid.
            if let Some(ConnectError::Handshake(message)) = cause.downcast_ref() {
                return self.fault(FaultKind::Unfit, message);
            }
            source = cause.source();
        }
        let kind = if error.is_connect() { FaultKind::Unreachable } else { FaultKind::Broken };
        self.fault(kind, causes(error))
    }

    /// Maps an error response to its meaning.
    async fn refusal(&self, response: Response<Incoming>) -> Fault {
        let status = response.status();
        let body = timeout(SHORT, beginning(response.into_body(), MAX_ERROR)).await.unwrap_or_default();
        let EngineRefusal { message, code } = EngineRefusal::read(&body);
        let kind = match status {
            // The key is the server's, so that no client's request is at fault.
            StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => FaultKind::Unfit,
            StatusCode::FORBIDDEN => FaultKind::Forbidden,
            StatusCode::TOO_MANY_REQUESTS => FaultKind::Busy,
            // The code of Waymark distinguishes a full queue from a dead engine. From other servers, 503 means that no
            // worker is free.
            StatusCode::SERVICE_UNAVAILABLE if code == "engine_unavailable" || code == "draining" => FaultKind::Broken,
            StatusCode::SERVICE_UNAVAILABLE => FaultKind::Busy,
            // vLLM returns 404 for a model or an adapter that it does not have.
            StatusCode::NOT_FOUND => FaultKind::MissingModel,
            status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => FaultKind::Broken,
            _ => FaultKind::Refused,
        };
        let key = matches!(kind, FaultKind::Unfit | FaultKind::Forbidden);
        let hint = if key { " (check the API key of the engines)" } else { "" };
        self.fault(kind, format!("{status}: {message}{hint}"))
    }

    /// Reads a body of at most `most` bytes.
    async fn read(&self, mut body: Incoming, most: usize) -> Result<Vec<u8>, Fault> {
        let broken = |error: hyper::Error| self.fault(FaultKind::Broken, causes(&error));
        let mut read = Vec::new();
        while let Some(bytes) = chunk(&mut body).await.map_err(broken)? {
            if read.len() + bytes.len() > most {
                return Err(self.fault(FaultKind::Broken, format!("the reply is longer than {most} bytes")));
            }
            read.extend_from_slice(&bytes);
        }
        Ok(read)
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
            let body = self.read(response.into_body(), MAX_REPLY).await?;
            let parsed = serde_json::from_slice(&body);
            let parsed =
                parsed.map_err(|error| self.fault(FaultKind::Broken, format!("{path}: invalid reply: {error}")))?;
            Ok::<(T, usize), Fault>((parsed, body.len()))
        };
        let late = |_| self.fault(FaultKind::Broken, format!("{path}: no reply within {} s", within.as_secs_f64()));
        timeout(within, exchange).await.map_err(late)?
    }

    /// Sends a short request and parses its reply: a GET without `body`, otherwise a POST.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, body: Option<&Value>) -> Result<T, Fault> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        Ok(self.exchange(method, path, body, SHORT).await?.0)
    }

    /// Sends a short request and ignores the content of a successful reply.
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
        // vLLM reports a wrong key as `{"error": "Unauthorized"}`.
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

/// Returns the next bytes of a body. `None` at its end.
pub(super) async fn chunk(body: &mut Incoming) -> hyper::Result<Option<Bytes>> {
    while let Some(frame) = body.frame().await {
        // A frame without data holds trailers, which no engine uses.
        if let Ok(bytes) = frame?.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// Reads at most the first `most` bytes of a body. A body that breaks off ends there.
async fn beginning(mut body: Incoming, most: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < most {
        let Ok(Some(bytes)) = chunk(&mut body).await else { break };
        let room = most - read.len();
        read.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
    read
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
