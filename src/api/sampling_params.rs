//! Sampling parameters of requests and their ranges.

use std::collections::BTreeMap;

use serde::Deserialize;
use utoipa::ToSchema;
use waymark_agent::Sampling;

use super::body::within;
use super::error::ApiError;
use super::text_or::TextOr;

/// Maximum number of answers per request; each is an episode of its own.
const MAX_CHOICES: u32 = 16;

/// Maximum number of alternatives per token, as in OpenAI's chat interface.
const MAX_ALTERNATIVES: u32 = 20;

/// Smallest log-probability sent, standing for a probability of 0, as in OpenAI's interface: JSON has no infinities.
pub(crate) const MIN_LOGPROB: f32 = -9999.0;

/// Maximum number of stop strings, as in OpenAI's interface.
pub(crate) const MAX_STOPS: usize = 4;

/// Maximum number of characters of an end user's name that are logged.
const SHOWN: usize = 64;

/// One stop string or several.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = Stop)]
#[serde(untagged, from = "TextOr<Vec<String>>")]
pub enum StopStrings {
    /// One string.
    One(String),
    /// Up to four strings.
    Many(Vec<String>),
}

impl From<TextOr<Vec<String>>> for StopStrings {
    fn from(stops: TextOr<Vec<String>>) -> StopStrings {
        match stops {
            TextOr::Text(stop) => StopStrings::One(stop),
            TextOr::Other(stops) => StopStrings::Many(stops),
        }
    }
}

/// Sampling parameters of a request, as sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestSampling<'a> {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) logit_bias: Option<&'a BTreeMap<String, f32>>,
}

impl RequestSampling<'_> {
    /// Checks the parameters. `vocab` is the number of token IDs, which bounds the keys of `logit_bias`.
    pub(crate) fn sampling(self, vocab: usize) -> Result<Sampling, ApiError> {
        let mut logit_bias = Vec::new();
        for (id, bias) in self.logit_bias.into_iter().flatten() {
            let id = id.parse::<u32>().ok().filter(|id| (*id as usize) < vocab).ok_or_else(|| {
                ApiError::invalid("logit_bias", format!("`logit_bias`: `{id}` is not a token ID below {vocab}"))
            })?;
            // The range of OpenAI's interface.
            within("logit_bias", Some(*bias), -100.0, 100.0)?;
            logit_bias.push((id, *bias));
        }
        Ok(Sampling {
            temperature: within("temperature", self.temperature, 0.0, 2.0)?,
            // A `top_p` of 0 still keeps the most probable token.
            top_p: within("top_p", self.top_p, 0.0, 1.0)?.map(|mass| mass.max(f32::MIN_POSITIVE)),
            top_k: top_k(self.top_k)?,
            min_p: within("min_p", self.min_p, 0.0, 1.0)?,
            repetition_penalty: within("repetition_penalty", self.repetition_penalty, 0.01, 10.0)?,
            frequency_penalty: within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?,
            presence_penalty: within("presence_penalty", self.presence_penalty, -2.0, 2.0)?,
            logit_bias,
        })
    }
}

/// Checks the number of most probable tokens to keep. 0 keeps all, and so does -1, as in vLLM.
fn top_k(given: Option<i64>) -> Result<Option<usize>, ApiError> {
    let top_k = within("top_k", given, -1, i64::from(u32::MAX))?;
    Ok(top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)))
}

/// Returns the stop strings, of which the request may hold `most`. `param` is their path in the request.
pub(crate) fn stops(param: &str, stop: Option<StopStrings>, most: usize) -> Result<Vec<String>, ApiError> {
    let empty = |param: &str| ApiError::invalid(param, format!("`{param}`: a stop string must not be empty"));
    let stops = match stop {
        None => return Ok(Vec::new()),
        Some(StopStrings::One(stop)) if stop.is_empty() => return Err(empty(param)),
        Some(StopStrings::One(stop)) => return Ok(vec![stop]),
        Some(StopStrings::Many(stops)) => stops,
    };
    if stops.len() > most {
        return Err(ApiError::invalid(param, format!("`{param}` holds {} strings, {most} at most", stops.len())));
    }
    match stops.iter().position(String::is_empty) {
        Some(at) => Err(empty(&format!("{param}[{at}]"))),
        None => Ok(stops),
    }
}

/// Checks the limit on sampled tokens. `param` is its path in the request.
pub(crate) fn most_tokens(param: &str, bound: Option<u32>) -> Result<Option<usize>, ApiError> {
    match bound {
        Some(0) => Err(ApiError::invalid(param, format!("`{param}` must be at least 1"))),
        bound => Ok(bound.map(|bound| bound as usize)),
    }
}

/// Checks the number of alternatives per token. `param` is its path in the request.
pub(crate) fn alternatives(param: &str, top: Option<u32>) -> Result<Option<usize>, ApiError> {
    Ok(within(param, top, 0, MAX_ALTERNATIVES)?.map(|top| top as usize))
}

/// Checks the number of answers.
pub(crate) fn choices(n: Option<u32>) -> Result<usize, ApiError> {
    within("n", n, 1, MAX_CHOICES).map(|n| n.unwrap_or(1) as usize)
}

/// Logs the name of the end user, if given. It is truncated, since it may be as long as a body.
pub(crate) fn note_user(user: Option<&str>) {
    if let Some(user) = user {
        let user: String = user.chars().take(SHOWN).collect();
        tracing::info!(user, "asked by");
    }
}

/// Returns the value of `stream`. Refuses `stream_options` in requests that do not stream.
pub(crate) fn streams<T>(stream: Option<bool>, options: Option<&T>) -> Result<bool, ApiError> {
    let stream = stream.unwrap_or(false);
    if options.is_some() && !stream {
        return Err(ApiError::invalid("stream_options", "`stream_options` needs `stream: true`"));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn all_tokens_are_kept_by_0_and_as_in_vllm_by_minus_1() {
        for (given, kept) in [(None, None), (Some(-1), Some(0)), (Some(0), Some(0)), (Some(7), Some(7))] {
            assert_eq!(top_k(given).unwrap(), kept, "{given:?}");
        }
        for given in [-2, 1 << 32] {
            assert_eq!(top_k(Some(given)).unwrap_err().param.as_deref(), Some("top_k"), "{given}");
        }
    }
}
