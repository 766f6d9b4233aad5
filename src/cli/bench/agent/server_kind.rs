//! Requests and streams of the two servers: token IDs in, token IDs out.

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

/// Kind of a server, with its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// `/inference/v1/generate` of Waymark.
    Waymark,
    /// `/completion` of llama.cpp's `llama-server`.
    Llama,
}

/// Request for a fixed number of tokens after a sequence.
#[derive(Debug)]
pub(super) struct TokenRequest<'a> {
    /// Token IDs of the whole sequence.
    pub(super) ids: &'a [u32],
    /// Number of tokens to sample.
    pub(super) tokens: usize,
    /// Slot of the client at `llama-server`.
    pub(super) slot: usize,
    /// Tokens that are never sampled, as JSON of [`ServerKind::bans`].
    pub(super) bans: &'a str,
}

/// Event of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamPart {
    /// Sampled tokens.
    pub(super) tokens: Vec<u32>,
    /// Number of tokens of the sequence that the server computed. `None` before the end of the stream.
    pub(super) computed: Option<usize>,
}

#[derive(Deserialize)]
struct WaymarkChunk {
    #[serde(default)]
    choices: Vec<WaymarkChoice>,
    #[serde(default)]
    usage: Option<WaymarkUsage>,
}

#[derive(Deserialize)]
struct WaymarkChoice {
    token_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct WaymarkUsage {
    prompt_tokens: usize,
    prompt_tokens_details: WaymarkPromptDetails,
}

#[derive(Deserialize)]
struct WaymarkPromptDetails {
    cached_tokens: usize,
}

#[derive(Deserialize)]
struct LlamaChunk {
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    timings: Option<LlamaTimings>,
}

#[derive(Deserialize)]
struct LlamaTimings {
    prompt_n: usize,
}

impl ServerKind {
    /// Returns the name of the server.
    pub(super) fn name(self) -> &'static str {
        match self {
            ServerKind::Waymark => "waymark",
            ServerKind::Llama => "llama-server",
        }
    }

    /// Returns the path that answers with success once the server is ready.
    pub(super) fn ready_path(self) -> &'static str {
        match self {
            ServerKind::Waymark => "/ready",
            ServerKind::Llama => "/health",
        }
    }

    /// Returns the path of the route.
    pub(super) fn path(self) -> &'static str {
        match self {
            ServerKind::Waymark => "/inference/v1/generate",
            ServerKind::Llama => "/completion",
        }
    }

    /// Returns the tokens that are never sampled as JSON, for all requests.
    pub(super) fn bans(self, ids: &[u32]) -> String {
        let entry = |id: &u32| match self {
            ServerKind::Waymark => format!("\"{id}\":-100"),
            ServerKind::Llama => format!("[{id},false]"),
        };
        let entries = ids.iter().map(entry).collect::<Vec<_>>().join(",");
        match self {
            ServerKind::Waymark => format!("{{{entries}}}"),
            ServerKind::Llama => format!("[{entries}]"),
        }
    }

    /// Returns the body of a request, which samples greedily and ends at no token.
    pub(super) fn body(self, request: &TokenRequest<'_>) -> serde_json::Result<String> {
        let TokenRequest { tokens, slot, bans, .. } = request;
        let ids = serde_json::to_string(request.ids)?;
        Ok(match self {
            ServerKind::Waymark => format!(
                r#"{{"token_ids":{ids},"sampling_params":{{"max_tokens":{tokens},"temperature":0,"ignore_eos":true,"logit_bias":{bans}}},"stream":true,"stream_options":{{"include_usage":true}}}}"#
            ),
            // The cheapest greedy sampler that it has: its default chain looks at the whole vocabulary several times.
            ServerKind::Llama => format!(
                r#"{{"prompt":{ids},"n_predict":{tokens},"cache_prompt":true,"id_slot":{slot},"samplers":["top_k"],"top_k":1,"temperature":0,"ignore_eos":true,"logit_bias":{bans},"stream":true}}"#
            ),
        })
    }

    /// Reads the data of one event.
    ///
    /// # Errors
    /// The server's error, or a description of an event that is not of this protocol.
    pub(super) fn read(self, data: &str) -> anyhow::Result<StreamPart> {
        let value: Value = serde_json::from_str(data).with_context(|| format!("invalid event: {data}"))?;
        if let Some(error) = value.get("error") {
            bail!("{}", error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned));
        }
        let unknown = || format!("unknown event: {data}");
        Ok(match self {
            ServerKind::Waymark => {
                let chunk: WaymarkChunk = serde_json::from_value(value).with_context(unknown)?;
                let cached = |usage: WaymarkUsage| usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens;
                let tokens = chunk.choices.into_iter().flat_map(|choice| choice.token_ids).collect();
                StreamPart { tokens, computed: chunk.usage.map(cached) }
            }
            ServerKind::Llama => {
                let chunk: LlamaChunk = serde_json::from_value(value).with_context(unknown)?;
                let computed = chunk.timings.filter(|_| chunk.stop).map(|timings| timings.prompt_n);
                StreamPart { tokens: chunk.tokens, computed }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn body(kind: ServerKind) -> Value {
        let bans = kind.bans(&[7, 9]);
        let request = TokenRequest { ids: &[1, 2, 3], tokens: 4, slot: 5, bans: &bans };
        serde_json::from_str(&kind.body(&request).unwrap()).unwrap()
    }

    #[test]
    fn both_servers_are_asked_for_the_same_tokens() {
        let ours = body(ServerKind::Waymark);
        assert_eq!((&ours["token_ids"], &ours["sampling_params"]["max_tokens"]), (&json!([1, 2, 3]), &json!(4)));
        assert_eq!(ours["sampling_params"]["logit_bias"], json!({"7": -100, "9": -100}));
        let theirs = body(ServerKind::Llama);
        assert_eq!((&theirs["prompt"], &theirs["n_predict"]), (&json!([1, 2, 3]), &json!(4)));
        assert_eq!((&theirs["id_slot"], &theirs["cache_prompt"]), (&json!(5), &json!(true)));
        assert_eq!(theirs["logit_bias"], json!([[7, false], [9, false]]));
    }

    #[test]
    fn tokens_and_counts_are_read_from_both_streams() {
        let part = |tokens: &[u32], computed| StreamPart { tokens: tokens.to_vec(), computed };
        let ours = |data: &str| ServerKind::Waymark.read(data).unwrap();
        assert_eq!(ours(r#"{"usage":null,"choices":[{"index":0,"token_ids":[3,4]}]}"#), part(&[3, 4], None));
        let usage = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}},"choices":[]}"#;
        assert_eq!(ours(usage), part(&[], Some(2)));
        let theirs = |data: &str| ServerKind::Llama.read(data).unwrap();
        assert_eq!(theirs(r#"{"content":"a","tokens":[5],"stop":false}"#), part(&[5], None));
        let end = r#"{"content":"","tokens":[],"stop":true,"timings":{"cache_n":7,"prompt_n":2}}"#;
        assert_eq!(theirs(end), part(&[], Some(2)));
    }

    #[test]
    fn an_error_in_a_stream_is_reported() {
        for kind in [ServerKind::Waymark, ServerKind::Llama] {
            let error = kind.read(r#"{"error":{"code":500,"message":"no room"}}"#).unwrap_err();
            assert_eq!(error.to_string(), "no room");
            assert!(kind.read("{").is_err());
        }
    }
}
