//! Range checks of the parameters of a chat request.

use waymark_agent::Sampling;

use super::request::{ChatMessage, ChatRequest};
use crate::api::error::ApiError;
use crate::api::sampling_params::{self, RequestSampling};

/// Returns the limit on sampled tokens, which has two names in a request.
pub(super) fn max_tokens(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let new = request.max_completion_tokens;
    let old = request.max_tokens;
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        let message = "`max_tokens` and `max_completion_tokens` differ: give one of them";
        return Err(ApiError::invalid("max_tokens", message));
    }
    let param = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    sampling_params::most_tokens(param, new.or(old))
}

/// Checks the `store` option. `false` keeps no trace. `true` is a hint, because completions are never stored here,
/// unlike in OpenAI's interface. `strict` refuses hints.
pub(super) fn store(store: Option<bool>, strict: bool) -> Result<Option<bool>, ApiError> {
    if strict && store == Some(true) {
        return Err(ApiError::unimplemented("store"));
    }
    Ok(store)
}

/// Maximum length of a speaker's name, in characters.
const MAX_NAME: usize = 512;

/// Checks the names of speakers: hints, since no chat template shows them. `strict` refuses hints.
pub(super) fn speakers(messages: &[ChatMessage], strict: bool) -> Result<(), ApiError> {
    for (at, message) in messages.iter().enumerate() {
        let Some(name) = &message.name else { continue };
        let param = format!("messages[{at}].name");
        if strict {
            return Err(ApiError::unimplemented(&param));
        }
        if name.chars().count() > MAX_NAME {
            return Err(ApiError::invalid(&param, format!("`{param}` is longer than {MAX_NAME} characters")));
        }
    }
    Ok(())
}

/// Returns the number of alternatives per token. `None` if no log-probabilities are requested.
pub(super) fn top_logprobs(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let top = sampling_params::alternatives("top_logprobs", request.top_logprobs)?;
    match (request.logprobs.unwrap_or(false), top) {
        // `logprobs: true` alone returns the log-probabilities of the sampled tokens, without alternatives.
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`")),
    }
}

/// Returns the sampling parameters of the request.
pub(super) fn sampling(request: &ChatRequest, vocab: usize) -> Result<Sampling, ApiError> {
    let params = RequestSampling {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.as_ref(),
    };
    params.sampling(vocab)
}
