//! Client of a running server: reads its agent route event by event over HTTP or HTTPS.

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, RequestBuilder};
use waymark_agent::Event;
use waymark_runtime::trusted_roots::TrustedRoots;

use crate::keys::Secret;

/// Capacity of the event channel; a full channel stops reading from the stream.
const EVENT_CAPACITY: usize = 64;

/// Timeout of a connection, TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the readiness check.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of a silent server, before and within its response. An idle server pings every 15 seconds unless
/// `--ping-seconds` sets another interval.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Timeout of a silent server that answers a message in one piece.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum size of the answer to a message, in bytes.
const MAX_MESSAGE: u64 = 64 << 20;

/// Maximum size of an event in bytes.
const MAX_EVENT: usize = 64 << 20;

/// Client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<Secret>,
}

#[derive(Deserialize)]
struct Refusal {
    error: RefusalReason,
}

#[derive(Deserialize)]
struct RefusalReason {
    message: String,
    code: Option<String>,
}

/// Error response of a server.
#[derive(Debug, thiserror::Error)]
#[error("the server returned {status}: {message}")]
pub(super) struct ServerRefusal {
    status: StatusCode,
    message: String,
    /// Code of the error. `None` if the response was not one of Waymark.
    code: Option<String>,
}

impl ServerRefusal {
    /// Returns `true` if the prompt has more tokens than the model can read.
    pub(super) fn is_too_long(&self) -> bool {
        self.code.as_deref() == Some("context_length_exceeded")
    }
}

impl Client {
    /// Creates a client of the server at `base`, such as `http://127.0.0.1:8080`. Servers on this machine are reached
    /// directly, others through the proxy that the environment names, if any.
    pub fn new(base: &str) -> Self {
        Self {
            agent: agent(base, TrustedRoots::default().ureq_config(), READ_TIMEOUT),
            base: base.trim_end_matches('/').to_owned(),
            key: None,
        }
    }

    /// Creates a client of a server on this machine, whatever its address: without a proxy, without certificate checks,
    /// and without a key.
    pub(crate) fn local(base: &str) -> Self {
        // A certificate names the server's public address, not the local one.
        let unproven = TlsConfig::builder().disable_verification(true).build();
        Self { agent: agent(base, unproven, READ_TIMEOUT), ..Self::new(base) }
    }

    /// Sets the API key.
    pub fn with_key(mut self, key: Option<Secret>) -> Self {
        self.key = key;
        self
    }

    /// Trusts the certificates in `file` (PEM) and no others. `None` keeps the trust of the client.
    ///
    /// # Errors
    /// If the file cannot be read, or holds no certificate.
    pub fn trusting(mut self, file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(self) };
        self.agent = agent(&self.base, TrustedRoots::of_flag("--ca", Some(file))?.ureq_config(), READ_TIMEOUT);
        Ok(self)
    }

    fn keyed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {}", key.reveal())),
            None => request,
        }
    }

    /// Checks that the server is ready (`/ready`, which needs no key) within two seconds.
    ///
    /// # Errors
    /// If the server cannot be reached, does not respond in time, or is not ready.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        let agent = self.agent.clone();
        let url = format!("{}/ready", self.base);
        let ask = move || -> anyhow::Result<()> {
            let asked = agent.get(&url).config().timeout_global(Some(READY_TIMEOUT)).build().call();
            accepted(asked.map_err(|error| unreachable(&url, error))?).map(drop)
        };
        spawn_blocking(ask).await?
    }

    /// Fetches a text, such as `/metrics`.
    ///
    /// # Errors
    /// If the server cannot be reached or returns an error.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let client = self.clone();
        let url = format!("{}{path}", self.base);
        let fetch = move || -> anyhow::Result<String> {
            let response = client.keyed(client.agent.get(&url)).call();
            Ok(accepted(response.map_err(|error| unreachable(&url, error))?)?.body_mut().read_to_string()?)
        };
        spawn_blocking(fetch).await?
    }

    /// Sends a message of the Model Context Protocol of the negotiated `revision`. Returns the body of the response,
    /// also of a refusal. Blocks.
    ///
    /// # Errors
    /// If the server cannot be reached, or is silent for an hour.
    pub(super) fn message(&self, path: &str, body: String, revision: Option<&str>) -> anyhow::Result<String> {
        let url = format!("{}{path}", self.base);
        let request = self.keyed(self.agent.post(&url)).content_type("application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let request = match revision {
            Some(revision) => request.header("mcp-protocol-version", revision),
            None => request,
        };
        // The response is one document, so nothing arrives while an episode runs.
        let request = request.config().timeout_per_read(Some(MESSAGE_TIMEOUT)).build();
        let mut response = request.send(body).map_err(|error| unreachable(&url, error))?;
        Ok(response.body_mut().with_config().limit(MAX_MESSAGE).read_to_string()?)
    }

    /// Runs one episode and passes every event to `each` as it arrives.
    ///
    /// # Errors
    /// If the server cannot be reached, returns an error, breaks off the stream, or is silent for two minutes; or if
    /// `each` fails.
    pub async fn episode(
        &self,
        request: &serde_json::Value,
        mut each: impl FnMut(Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // The HTTP client blocks, so it reads on a thread of its own, which a slow receiver slows down.
        let (sender, mut events) = mpsc::channel(EVENT_CAPACITY);
        let client = self.clone();
        let body = request.to_string();
        let reading = spawn_blocking(move || client.read(body, &sender));
        while let Some(event) = events.recv().await {
            // An error drops the receiver, which ends the reading thread.
            each(event)?;
        }
        reading.await?
    }

    /// Reads the stream of an episode to its end, or until the receiver is dropped. Pings bound the wait.
    fn read(&self, body: String, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        let url = format!("{}/v1/agent", self.base);
        let sent = self.keyed(self.agent.post(&url)).content_type("application/json").send(body);
        let response = accepted(sent.map_err(|error| unreachable(&url, error))?)?;
        let mut stream = response.into_body().into_reader();
        let mut buffer = Vec::new();
        let mut searched = 0;
        let mut chunk = [0; 1 << 14];
        while !events.is_closed() {
            let read = stream.read(&mut chunk).context("the stream broke off")?;
            if read == 0 {
                break;
            }
            buffer.extend_from_slice(&chunk[..read]);
            while let Some(place) = buffer[searched..].windows(2).position(|pair| pair == b"\n\n") {
                let message: Vec<u8> = buffer.drain(..searched + place + 2).collect();
                searched = 0;
                if let Some(event) = parse(&message)? {
                    // A dropped receiver ends the loop above.
                    let _ = events.blocking_send(event);
                }
            }
            anyhow::ensure!(buffer.len() <= MAX_EVENT, "{url}: an event is longer than {MAX_EVENT} bytes");
            // The end of an event may lie between two chunks.
            searched = buffer.len().saturating_sub(1);
        }
        Ok(())
    }
}

/// Parses the URL of a server, as the flag `--url` takes it.
///
/// # Errors
/// If it has no scheme, or names no host. The message proposes the URL that was probably meant.
pub(super) fn server_url(text: &str) -> Result<String, String> {
    let parsed = text.parse::<Uri>().ok().filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
    match parsed {
        Some(_) => Ok(text.to_owned()),
        None if text.is_empty() => Err("expected a URL such as http://127.0.0.1:8080".to_owned()),
        None if text.contains("://") => Err("expected http:// or https:// and a host".to_owned()),
        None => Err(format!("the scheme is missing: write http://{text}, or https://{text} if the server uses TLS")),
    }
}

/// Describes a request that got no response.
fn unreachable(url: &str, error: ureq::Error) -> anyhow::Error {
    let refused = matches!(&error, ureq::Error::Io(cause) if cause.kind() == std::io::ErrorKind::ConnectionRefused);
    let about = if refused {
        format!("cannot reach {url}: no server listens there; start one by `waymark serve`, or name another by --url")
    } else {
        format!("cannot reach {url}")
    };
    anyhow::Error::new(error).context(about)
}

/// Creates the HTTP agent for the server at `base` with the certificate checks of `tls`; it gives up after `silence`
/// without data.
fn agent(base: &str, tls: TlsConfig, silence: Duration) -> Agent {
    // A proxy from the environment does not lead back to this machine.
    let direct = tls.disable_verification() || is_here(base);
    let config = Agent::config_builder().http_status_as_error(false).tls_config(tls);
    // The timeout applies to each read separately, so a response may take any time while comments keep arriving.
    let config = config.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_per_read(Some(silence));
    let config = if direct { config.proxy(None) } else { config };
    config.build().new_agent()
}

/// Returns `true` for a URL of this machine, whose servers no proxy can reach.
fn is_here(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Converts an error response to the error that the server gave.
fn accepted(mut response: Response<Body>) -> anyhow::Result<Response<Body>> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.body_mut().read_to_string().unwrap_or_default();
    let (message, code) = match serde_json::from_str::<Refusal>(&body) {
        Ok(Refusal { error }) => (error.message, error.code),
        Err(_) => (body, None),
    };
    Err(ServerRefusal { status, message, code }.into())
}

/// Parses one message of the stream. `None` for comments.
fn parse(message: &[u8]) -> anyhow::Result<Option<Event>> {
    let text = std::str::from_utf8(message).context("the stream is not valid UTF-8")?;
    let data: String = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start).collect();
    if data.is_empty() || data == "[DONE]" {
        return Ok(None);
    }
    // Errors in a stream have the form of error responses, not of events.
    if let Ok(refusal) = serde_json::from_str::<Refusal>(&data) {
        bail!("the server ended the episode with an error: {}", refusal.error.message);
    }
    serde_json::from_str(&data).map(Some).with_context(|| format!("unknown event, perhaps from a newer server: {data}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// Starts a server for one connection that sends each of `words` after a pause and never closes.
    fn saying(words: Vec<&'static str>, pause: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            for word in words {
                std::thread::sleep(pause);
                let _ = socket.write_all(word.as_bytes());
            }
            std::thread::sleep(Duration::from_secs(600));
        });
        base
    }

    #[tokio::test]
    async fn a_silent_server_times_out_and_one_that_pings_does_not() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
        const PING: &str = ": ping\n\n";
        const EVENT: &str = "data: {\"type\":\"turn_started\",\"turn\":2}\n\n";
        // The pings take longer than that together, and each leaves a busy machine one and a half seconds.
        let silence = Duration::from_secs(2);
        for (words, told) in [(vec![], 0), (vec![HEAD, PING, PING, PING, PING, EVENT], 1)] {
            let base = saying(words, silence / 4);
            let client =
                Client { agent: agent(&base, TrustedRoots::default().ureq_config(), silence), base, key: None };
            let mut events = 0;
            let request = serde_json::json!({});
            let asked = client.episode(&request, |_| {
                events += 1;
                Ok(())
            });
            let error = tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap().unwrap_err();
            assert!(format!("{error:#}").contains("timeout"), "{error:#}");
            assert_eq!(events, told);
        }
    }

    #[test]
    fn servers_of_this_machine_are_known() {
        for here in ["http://127.0.0.1:8080", "https://LOCALHOST/", "http://[::1]:1", "http://127.9.9.9"] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in ["https://example.org:8080", "http://10.0.0.1", "http://localhost.example.org", "nonsense", ""]
        {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn a_url_without_a_scheme_is_refused_with_the_one_that_was_meant() {
        for url in ["http://127.0.0.1:8080", "https://example.org/", "http://[::1]:1"] {
            assert_eq!(server_url(url).as_deref(), Ok(url));
        }
        for (text, words) in [
            ("localhost:8080", "http://localhost:8080"),
            ("example.org", "http://example.org"),
            ("ftp://example.org", "expected http:// or https://"),
            ("", "such as http://"),
        ] {
            assert!(server_url(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn comments_are_skipped_and_errors_reported() {
        assert!(parse(b": ping\n\n").unwrap().is_none());
        let event = parse(b"event: turn_started\ndata: {\"type\":\"turn_started\",\"turn\":2}\n\n").unwrap();
        assert_eq!(event, Some(Event::TurnStarted { turn: 2 }));
        let error = parse(b"data: {\"error\":{\"message\":\"draining\"}}\n\n").unwrap_err();
        assert!(error.to_string().contains("draining"));
    }
}
