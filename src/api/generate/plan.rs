//! Validation of a request to generate tokens.

use std::sync::Arc;

use axum::http::HeaderMap;
use waymark_agent::Policy;
use waymark_engine::{Generate, SessionOptions, StopSet};

use super::parked_sessions::SessionName;
use super::request::{GenerateParams, GenerateRequest};
use crate::api::auth::Caller;
use crate::api::episodes;
use crate::api::error::{ApiError, Code};
use crate::api::sampling_params::{self, RequestSampling};
use crate::api::state::{AppState, now};
use crate::api::vllm_options::check_stop_tokens;

/// Default of `max_tokens`, as in vLLM.
const MAX_TOKENS: usize = 16;

/// Maximum number of stop strings. It is higher than in OpenAI's interface, because protocols need more.
const MAX_STOPS: usize = 64;

/// Maximum length of `cache_salt`, in bytes.
const MAX_SALT: usize = 256;

/// Validated request.
#[derive(Debug)]
pub(super) struct GeneratePlan {
    pub(super) shown: GenerateHead,
    pub(super) token_ids: Vec<u32>,
    pub(super) spec: Generate,
    pub(super) options: SessionOptions,
    /// Number of alternatives per token of the sequence. `None` scores nothing.
    pub(super) prompt_logprobs: Option<usize>,
    /// Session to continue and to park. `None` parks nothing.
    pub(super) session: Option<SessionName>,
}

/// Fields of the response that are known before the first token.
#[derive(Debug)]
pub(super) struct GenerateHead {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) version: String,
    pub(super) prompt_tokens: usize,
    pub(super) logprobs: bool,
    pub(super) streams: bool,
    pub(super) include_usage: bool,
    /// Stop strings, in the order of the spec.
    pub(super) stops: Vec<String>,
    /// Labels of stop lines, which are numbered after the strings.
    pub(super) lines: Vec<String>,
    pub(super) stop_tokens: Vec<u32>,
    /// Policy whose adapter is used. Held so that the adapter stays loaded. `None` for the base model.
    _policy: Option<Arc<Policy>>,
}

impl GeneratePlan {
    /// Validates everything about a request that does not need the engine.
    pub(super) fn new(
        state: &AppState,
        caller: &Caller,
        headers: &HeaderMap,
        request: GenerateRequest,
    ) -> Result<GeneratePlan, ApiError> {
        let (model, policy) = weights(state, request.model)?;
        let version = match &policy {
            Some(policy) => episodes::fingerprint(state, policy),
            None => episodes::base_fingerprint(state),
        };
        let streams = sampling_params::streams(request.stream, request.stream_options.as_ref())?;
        let params = request.sampling_params;
        let prompt_logprobs = sampling_params::alternatives("sampling_params.prompt_logprobs", params.prompt_logprobs)?;
        if prompt_logprobs.is_some() && streams {
            let message = "`sampling_params.prompt_logprobs` are not streamed: leave out `stream`";
            return Err(
                ApiError::new(Code::UnsupportedParameter, message).with_param("sampling_params.prompt_logprobs")
            );
        }
        let salt = salt(caller.salt, request.cache_salt.as_deref())?;
        let adapter = policy.as_ref().and_then(|policy| policy.adapter());
        let stops = sampling_params::stops("sampling_params.stop", params.stop.clone(), MAX_STOPS)?;
        let lines = lines(params.stop_lines.as_deref().unwrap_or_default())?;
        let stop_tokens = params.stop_token_ids.clone().unwrap_or_default();
        let vocab = state.runtime.engine.spec().vocab;
        check_stop_tokens("sampling_params.stop_token_ids", &stop_tokens, vocab)?;
        let logprobs = sampling_params::alternatives("sampling_params.logprobs", params.logprobs)?;
        let shown = GenerateHead {
            id: caller.request.map_or_else(|| episodes::id("gen"), |id| id.to_string()),
            created: now(),
            model,
            version,
            prompt_tokens: request.token_ids.len(),
            logprobs: logprobs.is_some(),
            streams,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            stops,
            lines,
            stop_tokens,
            _policy: policy,
        };
        let spec = spec(state, params, &shown, logprobs.unwrap_or(0))?;
        Ok(GeneratePlan {
            shown,
            token_ids: request.token_ids,
            spec,
            options: SessionOptions {
                adapter,
                salt,
                tenant: caller.tenant(),
                priority: caller.priority(None),
                request: caller.request,
            },
            prompt_logprobs,
            session: SessionName::of(headers, caller)?,
        })
    }
}

/// Returns the name of the weights, and the policy whose adapter is used.
fn weights(state: &AppState, model: Option<String>) -> Result<(String, Option<Arc<Policy>>), ApiError> {
    let base = &state.runtime.engine.spec().name;
    let Some(model) = model else { return Ok((base.clone(), None)) };
    // A policy takes precedence, as it does on every other route.
    match state.policy(&model) {
        Ok(served) => Ok((model, Some(served.policy.clone()))),
        Err(_) if model == *base || state.base.names.contains(&model) => Ok((model, None)),
        Err(error) => Err(error),
    }
}

fn spec(state: &AppState, params: GenerateParams, head: &GenerateHead, top: usize) -> Result<Generate, ApiError> {
    let max_tokens = sampling_params::most_tokens("sampling_params.max_tokens", params.max_tokens)?;
    let sampling = sampling(&params).sampling(state.runtime.engine.spec().vocab).map_err(nested)?;
    let mut eos = head.stop_tokens.clone();
    if !params.ignore_eos.unwrap_or(false) {
        eos.extend(&state.runtime.eos);
    }
    let min_tokens = params.min_tokens.unwrap_or(0) as usize;
    let max_tokens = max_tokens.unwrap_or(MAX_TOKENS);
    if min_tokens > max_tokens {
        let message = format!(
            "`sampling_params.min_tokens` must be at most `sampling_params.max_tokens`, {max_tokens}, not {min_tokens}"
        );
        return Err(ApiError::invalid("sampling_params.min_tokens", message));
    }
    Ok(Generate {
        min_tokens,
        sampling: sampling.params(episodes::seed(params.seed), top),
        max_tokens,
        stops: Arc::new(StopSet::new(&head.stops).with_lines(&head.lines)),
        eos,
        allow: params.allowed_token_ids.map(|ids| distinct(ids, state.runtime.engine.spec().vocab)),
        ..Generate::default()
    })
}

/// Returns the distinct tokens of the vocabulary among `ids`, because the engine reads the list for every token. If there
/// is none, one of the others stands for them, which the engine refuses.
fn distinct(mut ids: Vec<u32>, vocab: usize) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    let known = ids.partition_point(|&id| (id as usize) < vocab);
    ids.truncate(known.max(1));
    ids
}

fn sampling(params: &GenerateParams) -> RequestSampling<'_> {
    RequestSampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        repetition_penalty: params.repetition_penalty,
        frequency_penalty: params.frequency_penalty,
        presence_penalty: params.presence_penalty,
        logit_bias: params.logit_bias.as_ref(),
    }
}

/// Names a field of the sampling parameters by its path in the request.
fn nested(error: ApiError) -> ApiError {
    let Some(param) = error.param.clone() else { return error };
    let path = format!("sampling_params.{param}");
    error.renamed(&param, &path)
}

/// Checks the labels of stop lines.
fn lines(labels: &[String]) -> Result<Vec<String>, ApiError> {
    let param = "sampling_params.stop_lines";
    if labels.len() > MAX_STOPS {
        return Err(ApiError::invalid(param, format!("`{param}` holds {} labels, {MAX_STOPS} at most", labels.len())));
    }
    if labels.iter().any(|label| label.is_empty() || label.contains('\n')) {
        return Err(ApiError::invalid(param, "a label must be a non-empty text without a line break"));
    }
    Ok(labels.to_vec())
}

/// Returns the salt of the prefix cache: the caller's, narrowed by the request's. A client cannot reach another
/// tenant's cache with it, because the caller's salt is part of the hash.
fn salt(caller: u64, request: Option<&str>) -> Result<u64, ApiError> {
    let Some(request) = request else { return Ok(caller) };
    if request.is_empty() || request.len() > MAX_SALT {
        let message = format!("`cache_salt` must have from 1 to {MAX_SALT} bytes, not {}", request.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let mut hasher = blake3::Hasher::new();
    // Hashed with the caller's salt, so tenants who choose the same salt share no prefixes.
    hasher.update(b"cache_salt").update(&caller.to_le_bytes()).update(request.as_bytes());
    let mut salt = [0; 8];
    hasher.finalize_xof().fill(&mut salt);
    Ok(u64::from_le_bytes(salt))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_salt_narrows_the_callers() {
        assert_eq!(salt(7, None).unwrap(), 7);
        let own = salt(7, Some("a")).unwrap();
        assert_eq!(own, salt(7, Some("a")).unwrap());
        assert!(own != 7 && own != salt(8, Some("a")).unwrap() && own != salt(7, Some("b")).unwrap());
        assert!(salt(7, Some("")).is_err() && salt(7, Some(&"a".repeat(257))).is_err());
    }
}
