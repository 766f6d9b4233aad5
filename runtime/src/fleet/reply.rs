//! Replies of engines that generate tokens, in both dialects.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use waymark_engine::TokenStep;

/// A whole reply, or a chunk of a stream.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenReply {
    #[serde(default)]
    pub(super) choices: Vec<ReplyChoice>,
    #[serde(default)]
    pub(super) usage: Option<ReplyUsage>,
    /// Error in place of a chunk.
    #[serde(default)]
    pub(super) error: Option<Value>,
    #[serde(default)]
    prompt_logprobs: Option<Vec<Option<BTreeMap<String, PromptScore>>>>,
}

/// Generated tokens.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ReplyChoice {
    #[serde(default)]
    pub(super) finish_reason: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<ReplyLogProbs>,
    #[serde(default)]
    weight_versions: Option<Vec<ReplyVersion>>,
    /// Scores of the sequence, in the completions dialect.
    #[serde(default)]
    prompt_logprobs: Option<Vec<Option<BTreeMap<String, PromptScore>>>>,
}

#[derive(Debug, Deserialize)]
struct ReplyVersion {
    version: String,
}

/// Log-probabilities: `content` in one dialect, `token_logprobs` in the other.
#[derive(Debug, Default, Deserialize)]
struct ReplyLogProbs {
    #[serde(default)]
    content: Option<Vec<ReplyLogProb>>,
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f32>>>,
    /// Alternatives in the completions dialect, by `token_id:ID` if they were requested, or else by text.
    #[serde(default)]
    top_logprobs: Option<Vec<Option<BTreeMap<String, f32>>>>,
}

#[derive(Debug, Deserialize)]
struct ReplyLogProb {
    /// Absent if the engine reports tokens as text.
    #[serde(default)]
    token_id: Option<u32>,
    logprob: f32,
    #[serde(default)]
    top_logprobs: Vec<RankedToken>,
}

#[derive(Debug, Deserialize)]
struct RankedToken {
    #[serde(default)]
    token_id: Option<u32>,
    logprob: f32,
    #[serde(default)]
    rank: Option<usize>,
}

/// Score of a token of the sequence.
#[derive(Debug, Clone, Copy, Deserialize)]
struct PromptScore {
    logprob: f32,
    #[serde(default)]
    rank: Option<usize>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct ReplyUsage {
    #[serde(default)]
    pub(super) prompt_tokens: usize,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<usize>,
}

impl ReplyUsage {
    /// Returns the number of tokens that the engine took from its prefix cache. `None` if it does not say.
    pub(super) fn cached(&self) -> Option<usize> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

impl ReplyChoice {
    /// Returns the tokens, each with the `top` most probable ones.
    ///
    /// # Errors
    /// A description of what is missing or contradicts itself.
    pub(super) fn steps(&self, top: usize) -> Result<Vec<TokenStep>, String> {
        let ids = self.token_ids.as_deref().unwrap_or_default();
        // A chunk that only ends the stream has neither tokens nor log-probabilities.
        let Some(logprobs) = &self.logprobs else {
            return if ids.is_empty() {
                Ok(Vec::new())
            } else {
                Err("tokens came without log-probabilities".to_owned())
            };
        };
        let step = |id, logprob, top| TokenStep { id, logprob, top };
        if let Some(content) = &logprobs.content {
            let same = |(id, entry): (&u32, &ReplyLogProb)| entry.token_id.is_none_or(|other| other == *id);
            if content.len() != ids.len() || !ids.iter().zip(content).all(same) {
                return Err("token IDs and log-probabilities are not of the same tokens".to_owned());
            }
            return Ok(ids.iter().zip(content).map(|(id, entry)| step(*id, entry.logprob, entry.best(top))).collect());
        }
        let values = logprobs.token_logprobs.as_deref().unwrap_or_default();
        if values.len() != ids.len() {
            return Err(format!("{} tokens came with {} log-probabilities", ids.len(), values.len()));
        }
        let values = ids.iter().zip(values).enumerate();
        values
            .map(|(at, (id, value))| {
                let value = value.ok_or_else(|| format!("token {id} came without a log-probability"))?;
                Ok(step(*id, value, logprobs.best(at, top)?))
            })
            .collect()
    }

    /// Returns the versions of the weights that computed the tokens.
    pub(super) fn versions(&self) -> impl Iterator<Item = &str> {
        self.weight_versions.iter().flatten().map(|version| version.version.as_str())
    }
}

impl ReplyLogProbs {
    /// Returns the `top` most probable tokens at a position in the completions dialect, best first. The engine may list
    /// the sampled token in addition to them.
    fn best(&self, at: usize, top: usize) -> Result<Vec<(u32, f32)>, String> {
        if top == 0 {
            return Ok(Vec::new());
        }
        let listed = self.top_logprobs.as_ref().and_then(|all| all.get(at)?.as_ref());
        let listed = listed.filter(|listed| !listed.is_empty()).ok_or("a token came without its alternatives")?;
        let parsed = listed.iter().map(|(key, logprob)| {
            let id = key.strip_prefix("token_id:").and_then(|id| id.parse().ok());
            let id = id.ok_or_else(|| format!("the alternative {key:?} is a text instead of a token ID"))?;
            Ok::<(u32, f32), String>((id, *logprob))
        });
        let mut ranked = parsed.collect::<Result<Vec<_>, _>>()?;
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked.truncate(top);
        Ok(ranked)
    }
}

impl ReplyLogProb {
    /// Returns the `top` most probable tokens, best first. The engine may also list the sampled token, which is left
    /// out unless it is one of them.
    fn best(&self, top: usize) -> Vec<(u32, f32)> {
        let ranked = self.top_logprobs.iter().filter_map(|other| Some((other.rank?, other.token_id?, other.logprob)));
        let mut ranked: Vec<_> = ranked.filter(|(rank, ..)| (1..=top).contains(rank)).collect();
        ranked.sort_by_key(|(rank, ..)| *rank);
        ranked.into_iter().map(|(_, id, logprob)| (id, logprob)).collect()
    }
}

impl TokenReply {
    /// Returns the scores of the last `ids.len()` tokens of the sequence, each with the `top` most probable ones.
    ///
    /// # Errors
    /// A description of what is missing.
    pub(super) fn scores(&self, ids: &[u32], top: usize) -> Result<Vec<TokenStep>, String> {
        let in_choice = || self.choices.first().and_then(|choice| choice.prompt_logprobs.as_ref());
        let all = self.prompt_logprobs.as_ref().or_else(in_choice).ok_or("no prompt_logprobs were sent")?;
        // The first token of a sequence has no score, so that callers ask for those at the end.
        let from = all.len().checked_sub(ids.len()).ok_or("too few prompt_logprobs were sent")?;
        ids.iter()
            .zip(&all[from..])
            .map(|(id, entry)| {
                let entry = entry.as_ref().ok_or_else(|| format!("token {id} came without a log-probability"))?;
                // An entry is an object by token ID, in which the token stands beside the most probable ones.
                let own = entry.get(&id.to_string()).ok_or_else(|| format!("the score of token {id} is missing"))?;
                let parsed =
                    entry.iter().filter_map(|(id, score)| Some((score.rank?, id.parse().ok()?, score.logprob)));
                let mut ranked: Vec<(usize, u32, f32)> = parsed.filter(|(rank, ..)| (1..=top).contains(rank)).collect();
                ranked.sort_by_key(|(rank, ..)| *rank);
                let best = ranked.into_iter().map(|(_, id, logprob)| (id, logprob)).collect();
                Ok(TokenStep { id: *id, logprob: own.logprob, top: best })
            })
            .collect()
    }
}
