//! Identity check of an engine: the same tokenizer, the same weights, a known context length.

use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use waymark_models::chat::TextSegment;
use waymark_models::tokenizer::Tokenizer;

use super::endpoint::Endpoint;
use super::engine::EngineFacts;
use super::fault::{Fault, FaultKind};
use super::reply::TokenReply;
use super::request::Dialect;
use super::scoring::ScoreRequest;
use crate::config::EngineKind;

/// Text that must have the same tokens at the engine as here: tags of protocols, digits, accents, and scripts without
/// spaces.
pub(crate) const PROBE: &str =
    "Where was <search> Mozart\nborn?</search> In 1756, à Salzbourg; 莫扎特 🎼 <information>(Title: \"a_b\")";

/// Maximum number of tokens of the probe that are scored.
const SCORED: usize = 32;

/// Maximum difference of a score between two engines with the same weights, because kernels and batches differ.
const TOLERANCE: f32 = 0.5;

/// Maximum mean difference of the scores.
const MEAN_TOLERANCE: f32 = 0.05;

/// Time limit of scoring the probe.
const SCORING: Duration = Duration::from_secs(60);

/// Result of an identity check.
#[derive(Debug, Clone)]
pub(super) struct EngineIdentity {
    pub(super) facts: EngineFacts,
    /// Maximum length of a sequence, in tokens.
    pub(super) context: usize,
    /// Log-probabilities of the probe's tokens.
    pub(super) scores: Vec<f32>,
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ListedModel>,
}

#[derive(Deserialize)]
struct ListedModel {
    id: String,
    #[serde(default)]
    parent: Option<String>,
    /// Protocol of the entry at Waymark, which also lists its embedder and reranker as models. `None` at vLLM.
    #[serde(default)]
    protocol: Option<String>,
}

#[derive(Deserialize)]
struct TokenList {
    tokens: Vec<u32>,
    max_model_len: usize,
}

/// Checks an engine. `wanted` is the model's name there, if the user gave one.
///
/// # Errors
/// [`FaultKind::Unfit`] with a description of the difference, and any failure of a request.
pub(super) async fn identify(
    endpoint: &Endpoint,
    wanted: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<EngineIdentity, Fault> {
    let model = model(endpoint, wanted).await?;
    let unfit = |message: String| endpoint.fault(FaultKind::Unfit, message);
    let probe = TextSegment { text: PROBE.to_owned(), trusted: false };
    let ours = tokenizer.encode_prompt(&[probe]).map_err(|error| unfit(error.to_string()))?;
    let mut ask = json!({"prompt": PROBE, "add_special_tokens": false});
    if endpoint.address.kind == EngineKind::Vllm {
        ask["model"] = Value::from(model.as_str());
    }
    let TokenList { tokens, max_model_len: context } = endpoint.ask("/tokenize", Some(&ask)).await?;
    if let Some(at) = (0..ours.len().max(tokens.len())).find(|&at| ours.get(at) != tokens.get(at)) {
        let shown = |ids: &[u32]| ids.get(at).map_or_else(|| "nothing".to_owned(), u32::to_string);
        return Err(unfit(format!(
            "its tokenizer differs from the one of --model: token {at} of a probe is {} there and {} here",
            shown(&tokens),
            shown(&ours)
        )));
    }
    let ids = &ours[..ours.len().min(SCORED)];
    let (dialect, reply) = score(endpoint, &model, ids).await?;
    let steps = reply.scores(&ids[1..], 0).map_err(unfit)?;
    let version = reply.choices.first().and_then(|choice| choice.versions().next()).map(str::to_owned);
    let scores = steps.iter().map(|step| step.logprob).collect();
    Ok(EngineIdentity { facts: EngineFacts { dialect, model, version }, context, scores })
}

/// Returns the name of the model to ask for.
async fn model(endpoint: &Endpoint, wanted: Option<&str>) -> Result<String, Fault> {
    let ModelList { data } = endpoint.ask("/v1/models", None).await?;
    let models = data.into_iter().filter(|model| !matches!(model.protocol.as_deref(), Some("embedding" | "rerank")));
    // An adapter names its base as its parent, and so does a policy.
    let mut bases: Vec<String> = models.map(|model| model.parent.unwrap_or(model.id)).collect();
    bases.sort_unstable();
    bases.dedup();
    let names = bases.join(", ");
    let unfit = |message: String| Err(endpoint.fault(FaultKind::Unfit, message));
    match (wanted, bases.as_slice()) {
        (Some(wanted), _) if bases.iter().any(|base| base == wanted) => Ok(wanted.to_owned()),
        (Some(wanted), _) => unfit(format!("it does not serve the model {wanted}, but {names}: set --engine-model")),
        (None, [only]) => Ok(only.clone()),
        (None, []) => unfit("it serves no model".to_owned()),
        (None, _) => unfit(format!("it serves several models: set --engine-model to one of {names}")),
    }
}

/// Scores a sequence, over the first route that the engine has.
pub(super) async fn score(endpoint: &Endpoint, model: &str, ids: &[u32]) -> Result<(Dialect, TokenReply), Fault> {
    match score_over(Dialect::Generate, endpoint, model, ids).await {
        // The model was listed, so it is the route that is missing.
        Err(fault) if fault.kind == FaultKind::MissingModel && endpoint.address.kind == EngineKind::Vllm => {
            Ok((Dialect::Completions, score_over(Dialect::Completions, endpoint, model, ids).await?))
        }
        reply => Ok((Dialect::Generate, reply?)),
    }
}

async fn score_over(dialect: Dialect, endpoint: &Endpoint, model: &str, ids: &[u32]) -> Result<TokenReply, Fault> {
    let score = ScoreRequest { model, ids, scored: ids.len(), top: 0, salt: 0 };
    let body = score.body(endpoint.address.kind, dialect);
    let body = body.map_err(|error| endpoint.fault(FaultKind::Refused, error.to_string()))?;
    Ok(endpoint.exchange(Method::POST, dialect.path(), body, SCORING).await?.0)
}

/// Compares the scores of an engine with those of the first one.
///
/// # Errors
/// A description of the difference.
pub(super) fn compare(reference: &[f32], scores: &[f32]) -> Result<(), String> {
    let differences: Vec<f32> = reference.iter().zip(scores).map(|(a, b)| (a - b).abs()).collect();
    let most = differences.iter().copied().fold(0.0, f32::max);
    let mean = differences.iter().sum::<f32>() / differences.len().max(1) as f32;
    // NaN must not pass, so the condition is written for success: every comparison with NaN is false.
    if reference.len() == scores.len() && most <= TOLERANCE && mean <= MEAN_TOLERANCE {
        return Ok(());
    }
    Err(format!(
        "its weights differ: log-probabilities of a probe differ from those of the first engine by up to {most:.3}, \
         {mean:.3} on average"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_no_difference_and_other_weights_are() {
        let scores = [-1.0, -2.0, -30.0];
        assert!(compare(&scores, &[-1.01, -2.02, -30.05]).is_ok());
        for other in [vec![-1.0, -2.0, -29.0], vec![-1.2, -2.2, -30.2], vec![-1.0, f32::NAN, -30.0], vec![-1.0, -2.0]] {
            assert!(compare(&scores, &other).is_err(), "{other:?}");
        }
    }
}
