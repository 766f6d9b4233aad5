//! The commands' view of a running server: its agent route, read event by event, over HTTP or HTTPS.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, RequestBuilder};

use crate::agent::Event;
use crate::api::auth::Secret;

/// Events that wait for whoever shows them; the stream waits then as well.
const WAITING: usize = 64;

/// A server somewhere.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<Secret>,
}

#[derive(Deserialize)]
struct Refusal {
    error: Reason,
}

#[derive(Deserialize)]
struct Reason {
    message: String,
}

impl Client {
    /// A client of the server at `base`, such as `http://127.0.0.1:8080`.
    pub fn new(base: &str) -> Self {
        Self { agent: agent(RootCerts::WebPki), base: base.trim_end_matches('/').to_owned(), key: None }
    }

    /// The same client, with the key that the server may want.
    pub fn with_key(mut self, key: Option<Secret>) -> Self {
        self.key = key;
        self
    }

    /// The same client, which trusts the certificates in `file` (PEM) and no others, where one is named.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub fn trusting(mut self, file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(self) };
        let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let certificates: Vec<_> = parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        ensure!(!certificates.is_empty(), "{}: there is no certificate in it", file.display());
        self.agent = agent(RootCerts::new_with_certs(&certificates));
        Ok(self)
    }

    fn keyed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {}", key.reveal())),
            None => request,
        }
    }

    /// Fetches a text, such as `/metrics`.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let (client, url) = (self.clone(), format!("{}{path}", self.base));
        let fetch = move || -> anyhow::Result<String> {
            let response = client.keyed(client.agent.get(&url)).call();
            Ok(accepted(response.with_context(|| format!("cannot reach {url}"))?)?.body_mut().read_to_string()?)
        };
        spawn_blocking(fetch).await?
    }

    /// Runs one episode and hands every event to `each` as it comes.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or breaks the stream off; or `each` fails.
    pub async fn episode(
        &self,
        request: &serde_json::Value,
        mut each: impl FnMut(Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (sender, mut events) = mpsc::channel(WAITING);
        let (client, body) = (self.clone(), request.to_string());
        let reading = spawn_blocking(move || client.read(body, &sender));
        while let Some(event) = events.recv().await {
            each(event)?;
        }
        reading.await?
    }

    /// Reads the stream of an episode to its end, or until nobody listens any more: a server that is silent pings.
    fn read(&self, body: String, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        let url = format!("{}/v1/agent", self.base);
        let sent = self.keyed(self.agent.post(&url)).content_type("application/json").send(body);
        let response = accepted(sent.with_context(|| format!("cannot reach {url}"))?)?;
        let mut stream = response.into_body().into_reader();
        let (mut buffer, mut chunk) = (Vec::new(), [0; 1 << 14]);
        while !events.is_closed() {
            let read = stream.read(&mut chunk).context("the stream was cut")?;
            if read == 0 {
                break;
            }
            buffer.extend_from_slice(&chunk[..read]);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let message: Vec<u8> = buffer.drain(..end + 2).collect();
                if let Some(event) = parse(&message)? {
                    // Whoever listens no more is noticed above.
                    let _ = events.blocking_send(event);
                }
            }
        }
        Ok(())
    }
}

/// What speaks to servers whose certificates are of `roots`.
fn agent(roots: RootCerts) -> Agent {
    let tls = TlsConfig::builder().root_certs(roots).build();
    Agent::config_builder().http_status_as_error(false).tls_config(tls).build().new_agent()
}

/// Turns a refusal into the error the server gave.
fn accepted(mut response: Response<Body>) -> anyhow::Result<Response<Body>> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.body_mut().read_to_string().unwrap_or_default();
    match serde_json::from_str::<Refusal>(&body) {
        Ok(refusal) => bail!("the server refused ({status}): {}", refusal.error.message),
        Err(_) => bail!("the server answered {status}: {body}"),
    }
}

/// The event in one message of the stream; `None` for comments.
fn parse(message: &[u8]) -> anyhow::Result<Option<Event>> {
    let text = std::str::from_utf8(message).context("the stream is not UTF-8")?;
    let data: String = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start).collect();
    if data.is_empty() || data == "[DONE]" {
        return Ok(None);
    }
    if let Ok(refusal) = serde_json::from_str::<Refusal>(&data) {
        bail!("the server broke the episode off: {}", refusal.error.message);
    }
    serde_json::from_str(&data).map(Some).with_context(|| format!("an event this version does not know: {data}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn comments_are_skipped_and_errors_reported() {
        assert!(parse(b": ping\n\n").unwrap().is_none());
        let event = parse(b"event: turn_started\ndata: {\"type\":\"turn_started\",\"turn\":2}\n\n").unwrap();
        assert_eq!(event, Some(Event::TurnStarted { turn: 2 }));
        let error = parse(b"data: {\"error\":{\"message\":\"draining\"}}\n\n").unwrap_err();
        assert!(error.to_string().contains("draining"));
    }
}
