//! A streamed request, read on a thread of its own.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use ureq::Agent;

use super::server_kind::{ServerKind, StreamPart};

/// Capacity of the channel of a stream.
const CAPACITY: usize = 64;

/// Timeout of a silent server. A long queue of prompts before the first token takes minutes.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum length of a line of a stream, in bytes.
const MAX_LINE: usize = 1 << 20;

/// Data of the event that ends a stream of OpenAI's form.
const DONE: &str = "[DONE]";

/// HTTP client of a server. Clones share its connections.
#[derive(Debug, Clone)]
pub(super) struct TokenClient {
    agent: Agent,
    kind: ServerKind,
    url: String,
}

/// Stream of a response: its parts, or its error.
pub(super) type TokenStream = mpsc::Receiver<anyhow::Result<StreamPart>>;

impl TokenClient {
    /// Creates a client of the server at `url`, which is on this machine.
    pub(super) fn new(kind: ServerKind, url: &str) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None);
        // One connection for each of many clients.
        let config = config.max_idle_connections(1024).max_idle_connections_per_host(1024);
        let agent = config.timeout_per_read(Some(READ_TIMEOUT)).build().new_agent();
        Self { agent, kind, url: format!("{url}{}", kind.path()) }
    }

    /// Sends a request of `session`.
    pub(super) fn send(&self, session: &str, body: String) -> TokenStream {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let client = self.clone();
        let session = session.to_owned();
        spawn_blocking(move || {
            if let Err(error) = client.read(&session, body, &sender) {
                // A dropped receiver needs no error.
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn read(
        &self,
        session: &str,
        body: String,
        parts: &mpsc::Sender<anyhow::Result<StreamPart>>,
    ) -> anyhow::Result<()> {
        let request = self.agent.post(&self.url).content_type("application/json").header("x-session-id", session);
        let mut response = request.send(body).with_context(|| format!("cannot reach {}", self.url))?;
        let status = response.status();
        if !status.is_success() {
            let message = response.body_mut().read_to_string().unwrap_or_default();
            anyhow::bail!("{} returned {status}: {message}", self.url);
        }
        let mut stream = BufReader::new(response.into_body().into_reader());
        let mut line = Vec::new();
        // Read to its end, so the connection can be used again.
        while read_line(&mut stream, &mut line)? > 0 {
            let text = std::str::from_utf8(&line).context("the stream is not valid UTF-8")?;
            // An error of llama-server has a field of its own.
            let Some(data) = text.strip_prefix("data:").or_else(|| text.strip_prefix("error:")) else { continue };
            let data = data.trim();
            // Waymark's last event. It is not passed on: the receiver is dropped once the counts before it arrive.
            if data == DONE {
                continue;
            }
            if parts.blocking_send(Ok(self.kind.read(data)?)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Reads a line of limited length. Returns the number of its bytes; 0 at the end of the stream.
fn read_line(stream: &mut impl BufRead, line: &mut Vec<u8>) -> anyhow::Result<usize> {
    line.clear();
    let mut limited = std::io::Read::take(&mut *stream, MAX_LINE as u64);
    let read = limited.read_until(b'\n', line).context("the stream broke off")?;
    ensure!(read < MAX_LINE, "a line of the stream is longer than {MAX_LINE} bytes");
    Ok(read)
}
