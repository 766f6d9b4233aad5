//! `waymark status`: what a running server serves, and how busy it is.

use std::io::{self, Write};

use anyhow::Context;
use serde_json::{Value, json};
use waymark_runtime::PrintableWriter;

use super::client::Client;
use super::server_args::ServerArgs;

/// Width of the column of names.
const NAME: usize = 10;

/// Shows what a running server serves and how busy it is.
///
/// Without --url, asks the server on this machine, as `waymark health` does. The load needs a key with the scope
/// `admin` if the server has keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark status
  waymark status --url https://host:8080 --json | jq .load.sessions")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,

    /// Print JSON: the answers of `/v1/models` and `/debug/load`.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (url, client) = self.server.client()?;
        // Asked first, so a missing server gives one error instead of several.
        client.text("/health").await?;
        let ready = client.ready().await;
        // Either may be closed to this key, which should not hide the other.
        let models = fetch(&client, "/v1/models").await;
        let load = fetch(&client, "/debug/load").await;
        let mut out = PrintableWriter(io::stdout().lock());
        if self.json {
            let error = |error: &anyhow::Error| format!("{error:#}");
            let status = json!({
                "url": url,
                "ready": ready.is_ok(),
                "reason": ready.as_ref().err().map(error),
                "models": models.as_ref().ok(),
                "load": load.as_ref().ok(),
            });
            writeln!(out, "{status:#}")?;
        } else {
            match &ready {
                Ok(()) => writeln!(out, "{url} is ready")?,
                Err(reason) => writeln!(out, "{url} is not ready: {reason:#}")?,
            }
            if self.server.keeps_key() {
                writeln!(out, "{:NAME$}not sent, because --url names no server", "key")?;
            }
            for (name, value) in lines(models, load) {
                writeln!(out, "{name:NAME$}{value}")?;
            }
        }
        ready
    }
}

async fn fetch(client: &Client, path: &str) -> anyhow::Result<Value> {
    let text = client.text(path).await?;
    serde_json::from_str(&text).with_context(|| format!("{path}: the answer is not JSON"))
}

/// Returns the lines of the report: a name and a value.
fn lines(models: anyhow::Result<Value>, load: anyhow::Result<Value>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match models {
        Ok(models) => lines.extend(served(&models)),
        Err(reason) => lines.push(("models", format!("not shown: {reason:#}"))),
    }
    match load {
        Ok(load) => lines.extend(busy(&load)),
        Err(reason) => lines.push(("load", format!("not shown: {reason:#}"))),
    }
    lines
}

/// Describes the policies and the encoders.
fn served(models: &Value) -> Vec<(&'static str, String)> {
    let data = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let encoder = |protocol: &str| data.iter().find(|model| model["protocol"] == protocol);
    let policies = || data.iter().filter(|model| model["protocol"] != "embedding" && model["protocol"] != "rerank");
    let mut lines = Vec::new();
    if let Some(first) = policies().next() {
        let parameters = first["weights"]["parameters"].as_u64();
        let size = parameters.map_or_else(String::new, |count| format!(", {count} parameters"));
        lines.push(("model", format!("{}{size}", text(&first["parent"]))));
    }
    let named = policies().map(|model| format!("{} ({})", text(&model["id"]), text(&model["protocol"])));
    lines.push(("policies", named.collect::<Vec<_>>().join(", ")));
    lines.extend(encoder("embedding").map(|model| ("embedder", text(&model["id"]))));
    lines.extend(encoder("rerank").map(|model| ("reranker", text(&model["id"]))));
    lines
}

/// Describes the load.
fn busy(load: &Value) -> Vec<(&'static str, String)> {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let Value::Object(_) = &load["sessions"] else { return Vec::new() };
    let sessions = &load["sessions"];
    let blocks = &load["blocks"];
    let totals = &load["totals"];
    let mut lines = vec![
        (
            "phase",
            format!(
                "{}, {:.0} s since the start",
                load["phase"].as_str().unwrap_or("unknown"),
                load["seconds"].as_f64().unwrap_or_default()
            ),
        ),
        ("requests", format!("{} in progress", count(&load["requests"]))),
        (
            "sessions",
            format!(
                "{} running, {} waiting, {} parked, {} stalled",
                count(&sessions["running"]),
                count(&sessions["waiting"]),
                count(&sessions["parked"]),
                count(&sessions["stalled"])
            ),
        ),
        (
            "KV blocks",
            format!(
                "{} used, {} cached, {} free",
                count(&blocks["used"]),
                count(&blocks["cached"]),
                count(&blocks["free"])
            ),
        ),
        (
            "so far",
            format!(
                "{} turns, {} tokens sampled, {} searches",
                count(&totals["turns"]),
                count(&totals["decode_tokens"]),
                count(&totals["searches"]) + count(&totals["client_searches"])
            ),
        ),
    ];
    let index = &load["index"];
    let described = match index["passages"].as_u64() {
        Some(passages) => {
            let stale = if index["stale"] == true { ", a newer one cannot be opened" } else { "" };
            format!("{passages} passages, snapshot {}{stale}", count(&index["snapshot"]))
        }
        None => "none".to_owned(),
    };
    lines.push(("index", described));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, lines: &[(&'static str, String)]) -> String {
        lines.iter().find(|(other, _)| *other == name).map_or_else(String::new, |(_, value)| value.clone())
    }

    #[test]
    fn a_server_is_described_by_its_answers() {
        let models = json!({ "data": [
            { "id": "routerag", "protocol": "routerag", "parent": "small", "weights": { "parameters": 5 } },
            { "id": "minilm", "protocol": "embedding", "parent": "x" },
            { "id": "cross", "protocol": "rerank", "parent": "y" },
        ]});
        let load = json!({
            "phase": "serving", "seconds": 12.4, "requests": 1,
            "sessions": { "running": 1, "waiting": 2, "parked": 3, "stalled": 0 },
            "blocks": { "used": 4, "cached": 5, "free": 6 },
            "totals": { "turns": 7, "decode_tokens": 8, "searches": 9, "client_searches": 1 },
            "index": { "passages": 3, "snapshot": 2, "stale": true },
        });
        let lines = lines(Ok(models), Ok(load));
        for (name, value) in [
            ("model", "small, 5 parameters"),
            ("policies", "routerag (routerag)"),
            ("embedder", "minilm"),
            ("reranker", "cross"),
            ("phase", "serving, 12 s since the start"),
            ("sessions", "1 running, 2 waiting, 3 parked, 0 stalled"),
            ("so far", "7 turns, 8 tokens sampled, 10 searches"),
            ("index", "3 passages, snapshot 2, a newer one cannot be opened"),
        ] {
            assert_eq!(of(name, &lines), value);
        }
    }

    #[test]
    fn what_a_key_may_not_see_is_named() {
        let refused = || anyhow::anyhow!("the server returned 403 Forbidden");
        let lines = lines(Err(refused()), Err(refused()));
        assert!(of("load", &lines).contains("403") && of("models", &lines).contains("403"), "{lines:?}");
    }
}
