//! The numbers of a request, each within its bounds.

use super::request::{ChatRequest, Stop};
use crate::agent::Sampling;
use crate::api::error::{ApiError, Code};

/// Answers one request may ask for: each is an episode of its own.
pub(super) const MAX_CHOICES: u32 = 16;

/// Most alternatives per token, as in OpenAI's interface.
const MAX_TOP_LOGPROBS: u32 = 20;

/// Most stop strings, as in OpenAI's interface.
const MAX_STOPS: usize = 4;

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
    match new.or(old) {
        Some(0) => Err(ApiError::invalid(param, format!("`{param}` must be at least 1"))),
        bound => Ok(bound.map(|bound| bound as usize)),
    }
}

/// Whether a trace of it may be kept. What `store: true` promises at OpenAI's is not to be had here.
pub(super) fn store(store: Option<bool>) -> Result<Option<bool>, ApiError> {
    if store == Some(true) {
        return Err(ApiError::new(Code::UnsupportedParameter, "`store` is not supported here").with_param("store"));
    }
    Ok(store)
}

/// How many answers.
pub(super) fn choices(request: &ChatRequest) -> Result<usize, ApiError> {
    within("n", request.n, 1, MAX_CHOICES).map(|n| n.unwrap_or(1) as usize)
}

/// How many alternatives per token are wanted; none when log-probabilities are not.
pub(super) fn top_logprobs(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let top = within("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)?;
    match (request.logprobs.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`")),
    }
}

/// The stop strings.
pub(super) fn stops(stop: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => return Ok(Vec::new()),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Many(stops)) => stops,
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::invalid("stop", format!("`stop` holds {} strings, {MAX_STOPS} at most", stops.len())));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "a stop string must not be empty"));
    }
    Ok(stops)
}

/// The sampling parameters that the request states. `vocab` bounds the ids of `logit_bias`.
pub(super) fn sampling(request: &ChatRequest, vocab: usize) -> Result<Sampling, ApiError> {
    let mut logit_bias = Vec::new();
    for (id, bias) in request.logit_bias.iter().flatten() {
        let id = id.parse::<u32>().ok().filter(|id| (*id as usize) < vocab).ok_or_else(|| {
            ApiError::invalid("logit_bias", format!("`logit_bias`: `{id}` is no token id below {vocab}"))
        })?;
        within("logit_bias", Some(*bias), -100.0, 100.0)?;
        logit_bias.push((id, *bias));
    }
    Ok(Sampling {
        temperature: within("temperature", request.temperature, 0.0, 2.0)?,
        top_p: within("top_p", request.top_p, 0.0, 1.0)?,
        top_k: request.top_k.map(|k| k as usize),
        min_p: within("min_p", request.min_p, 0.0, 1.0)?,
        repetition_penalty: within("repetition_penalty", request.repetition_penalty, 0.01, 10.0)?,
        frequency_penalty: within("frequency_penalty", request.frequency_penalty, -2.0, 2.0)?,
        presence_penalty: within("presence_penalty", request.presence_penalty, -2.0, 2.0)?,
        logit_bias,
    })
}

/// Refuses `stream_options` where nothing is streamed.
pub(super) fn stream(request: &ChatRequest) -> Result<bool, ApiError> {
    let stream = request.stream.unwrap_or(false);
    if request.stream_options.is_some() && !stream {
        return Err(
            ApiError::new(Code::InvalidValue, "`stream_options` needs `stream: true`").with_param("stream_options")
        );
    }
    Ok(stream)
}

fn within<T>(param: &str, value: Option<T>, low: T, high: T) -> Result<Option<T>, ApiError>
where
    T: PartialOrd + Copy + std::fmt::Display,
{
    match value {
        // Written so that NaN, which JSON cannot hold but arithmetic may, is refused as well.
        Some(value) if !(value >= low && value <= high) => {
            Err(ApiError::invalid(param, format!("`{param}` must be from {low} to {high}, not {value}")))
        }
        value => Ok(value),
    }
}
