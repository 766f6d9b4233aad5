//! `waymark mcp`: the Model Context Protocol over standard input and output, for hosts that start their servers.

use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, spawn_blocking};

use super::client::Client;
use super::server_args::ServerArgs;

/// Maximum length of a message in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Maximum number of messages that wait for their responses.
const CONCURRENT: usize = 16;

/// Code of JSON-RPC for text that is not JSON.
const PARSE_ERROR: i64 = -32700;

/// Code of JSON-RPC for a failure of the server.
const INTERNAL_ERROR: i64 = -32603;

/// Passes messages of the Model Context Protocol from standard input to a running server, and its responses to standard
/// output.
///
/// Every line is one message. Hosts such as desktop assistants start this command as a server of their own; the tools
/// are those of the server's `/mcp`. Without --url, asks the server on this machine, as `waymark health` does. Ends at
/// the end of the input.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark mcp
  waymark mcp --url https://host:8080

In the configuration of a host:
  {\"mcpServers\": {\"waymark\": {
    \"command\": \"waymark\", \"args\": [\"mcp\", \"--url\", \"http://127.0.0.1:8080\"]}}}")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (_, client) = self.server.client()?;
        relay(client).await
    }
}

/// Passes on all messages of standard input, until it ends and all responses are written.
async fn relay(client: Client) -> anyhow::Result<()> {
    let bridge = Arc::new(McpBridge { client, revision: Mutex::default(), out: Mutex::new(io::stdout()) });
    let (sender, mut lines) = mpsc::channel(CONCURRENT);
    let reading = spawn_blocking(move || read_lines(io::stdin().lock(), &sender));
    let places = Arc::new(Semaphore::new(CONCURRENT));
    let mut running = JoinSet::new();
    while let Some(line) = lines.recv().await {
        let place = Arc::clone(&places).acquire_owned().await?;
        let opens = is_initialize(&line);
        let bridge = Arc::clone(&bridge);
        running.spawn_blocking(move || {
            let _held = place;
            bridge.pass(&line)
        });
        // Every later message names the revision that the first one negotiates.
        let wait = if opens { running.join_next().await } else { running.try_join_next() };
        if let Some(done) = wait {
            done??;
        }
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    reading.await?
}

/// Reads lines until the input ends or the receiver is gone. Blank lines are left out.
fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).context("cannot read standard input")?;
        if read == 0 {
            return Ok(());
        }
        ensure!(line.ends_with(b"\n") || (read as u64) < MAX_LINE, "a message has more than {MAX_LINE} bytes");
        if !line.trim_ascii().is_empty() && lines.blocking_send(line).is_err() {
            return Ok(());
        }
    }
}

fn is_initialize(line: &[u8]) -> bool {
    serde_json::from_slice::<Value>(line).is_ok_and(|message| message["method"] == "initialize")
}

/// Connection between standard input and output and a server.
struct McpBridge {
    client: Client,
    /// Revision of the protocol that was negotiated.
    revision: Mutex<Option<String>>,
    out: Mutex<io::Stdout>,
}

impl McpBridge {
    /// Passes one message to the server and writes the response, if there is one.
    fn pass(&self, line: &[u8]) -> anyhow::Result<()> {
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => {
                return self.write(&fault(&Value::Null, PARSE_ERROR, &format!("not a JSON message: {error}")));
            }
        };
        let revision = self.revision.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = self.client.message("/mcp", message.to_string(), revision.as_deref());
        match answer.and_then(|text| response(&text)) {
            Ok(None) => Ok(()),
            Ok(Some(response)) => {
                if let Some(revision) = response["result"]["protocolVersion"].as_str() {
                    *self.revision.lock().unwrap_or_else(PoisonError::into_inner) = Some(revision.to_owned());
                }
                self.write(&response)
            }
            Err(error) => match message.get("id") {
                Some(id) => self.write(&fault(id, INTERNAL_ERROR, &format!("{error:#}"))),
                // A notification has no response, not even for a failure.
                None => {
                    tracing::warn!(error = format!("{error:#}"), "a notification was lost");
                    Ok(())
                }
            },
        }
    }

    /// Writes a response as one line.
    fn write(&self, response: &Value) -> anyhow::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(out, "{response}").and_then(|()| out.flush()).context("cannot write to standard output")
    }
}

/// Parses the body of a response. `None` if it is empty, as after a notification.
fn response(text: &str) -> anyhow::Result<Option<Value>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let response: Value = serde_json::from_str(text).context("the server's response is not JSON")?;
    if response.get("jsonrpc").is_none() {
        let reason = response["error"]["message"].as_str().unwrap_or("the response is no message of the protocol");
        anyhow::bail!("the server refused the message: {reason}");
    }
    Ok(Some(response))
}

/// Creates the error response to the request `id`.
fn fault(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_read_to_the_end_of_the_input() {
        let (sender, mut lines) = mpsc::channel(8);
        read_lines(&b"{\"a\":1}\n\n  \n{\"b\":2}"[..], &sender).unwrap();
        drop(sender);
        assert_eq!(lines.blocking_recv().unwrap(), b"{\"a\":1}\n");
        assert_eq!(lines.blocking_recv().unwrap(), b"{\"b\":2}");
        assert!(lines.blocking_recv().is_none());
    }

    #[test]
    fn a_refusal_outside_the_protocol_is_an_error() {
        assert!(response(" ").unwrap().is_none());
        assert!(response("{\"jsonrpc\": \"2.0\", \"id\": 1, \"result\": {}}").unwrap().is_some());
        let refused = response("{\"error\": {\"message\": \"no key\"}}").unwrap_err();
        assert!(refused.to_string().contains("no key"));
        assert!(response("<html>").is_err() && response("[]").is_err());
        assert!(is_initialize(b"{\"method\": \"initialize\"}") && !is_initialize(b"[]") && !is_initialize(b"{"));
    }
}
