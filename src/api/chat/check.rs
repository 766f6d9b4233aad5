//! What a request asks for, each part of it within its bounds.

use super::request::ChatRequest;
use crate::agent::Sampling;
use crate::api::error::ApiError;
use crate::api::knobs::{self, Knobs};

/// The bound on sampled tokens, from its two names.
pub(super) fn max_tokens(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let (new, old) = (request.max_completion_tokens, request.max_tokens);
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        let message = "`max_tokens` and `max_completion_tokens` differ: give one of them";
        return Err(ApiError::invalid("max_tokens", message));
    }
    let param = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    knobs::most_tokens(param, new.or(old))
}

/// Whether a trace of it may be kept. What `store: true` promises at OpenAI's is not to be had here.
pub(super) fn store(store: Option<bool>) -> Result<Option<bool>, ApiError> {
    if store == Some(true) {
        return Err(ApiError::unimplemented("store"));
    }
    Ok(store)
}

/// How many alternatives per token are wanted; none when log-probabilities are not.
pub(super) fn top_logprobs(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let top = knobs::rivals("top_logprobs", request.top_logprobs)?;
    match (request.logprobs.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`")),
    }
}

/// The sampling parameters that the request states.
pub(super) fn sampling(request: &ChatRequest, vocab: usize) -> Result<Sampling, ApiError> {
    let knobs = Knobs {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.as_ref(),
    };
    knobs.sampling(vocab)
}
