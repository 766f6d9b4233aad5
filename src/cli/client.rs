//! The commands' view of a running server: its agent route, read event by event.

use anyhow::{Context, bail};
use futures::StreamExt;
use serde::Deserialize;

use crate::agent::Event;
use crate::api::auth::Secret;

/// A server somewhere, spoken to over HTTP.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
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
        Self { http: reqwest::Client::new(), base: base.trim_end_matches('/').to_owned(), key: None }
    }

    /// The same client, with the key that the server may want.
    pub fn with_key(mut self, key: Option<Secret>) -> Self {
        self.key = key;
        self
    }

    fn keyed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key.reveal()),
            None => request,
        }
    }

    /// Fetches a text, such as `/metrics`.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("{}{path}", self.base);
        let response = self.keyed(self.http.get(&url)).send().await.with_context(|| format!("cannot reach {url}"))?;
        Ok(accepted(response).await?.text().await?)
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
        let url = format!("{}/v1/agent", self.base);
        let sent = self.keyed(self.http.post(&url)).json(request).send().await;
        let response = accepted(sent.with_context(|| format!("cannot reach {url}"))?).await?;
        let mut body = response.bytes_stream();
        let mut buffer = Vec::new();
        while let Some(chunk) = body.next().await {
            buffer.extend_from_slice(&chunk.context("the stream was cut")?);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let message: Vec<u8> = buffer.drain(..end + 2).collect();
                if let Some(event) = parse(&message)? {
                    each(event)?;
                }
            }
        }
        Ok(())
    }
}

/// Turns a refusal into the error the server gave.
async fn accepted(response: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.text().await.unwrap_or_default();
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
