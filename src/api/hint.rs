//! Hints: fields of the OpenAI interface that can change no answer of this server. They are accepted, since many
//! clients send them by default, and returned where OpenAI returns them. `serve --strict` refuses them by name instead.

use serde_json::Value;

use super::error::ApiError;

/// Maximum number of pairs in `metadata`, as in OpenAI's interface.
const MAX_PAIRS: usize = 16;

/// Maximum length of a name in `metadata`, in characters, as in OpenAI's interface.
const MAX_NAME: usize = 64;

/// Maximum length of a text, in characters, as in OpenAI's interface.
const MAX_TEXT: usize = 512;

/// Reasoning efforts of OpenAI's interface. A policy's reasoning is part of its training.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Classes of service of OpenAI's interface.
const TIERS: &[&str] = &["auto", "default", "flex", "priority", "scale", "fast", "ultrafast"];

/// Field that is accepted without effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hint {
    /// Dotted path of the field.
    pub(crate) path: &'static str,
    /// Values that the field can have.
    values: HintValues,
}

/// Values that a hint can have. Others are refused, so a client's mistake does not go unseen.
#[derive(Debug, Clone, Copy)]
enum HintValues {
    /// A text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// An object of texts.
    Pairs,
}

impl Hint {
    /// Pairs that a client stores with a completion.
    pub(crate) const METADATA: Hint = Hint { path: "metadata", values: HintValues::Pairs };
    /// Name under which prefixes are cached: here prefixes are recognized by their tokens.
    pub(crate) const CACHE_KEY: Hint = Hint { path: "prompt_cache_key", values: HintValues::Text };
    /// Time for which prefixes are cached: here as long as memory lasts.
    pub(crate) const CACHE_RETENTION: Hint =
        Hint { path: "prompt_cache_retention", values: HintValues::OneOf(&["in-memory", "in_memory", "24h"]) };
    /// Reasoning effort.
    pub(crate) const EFFORT: Hint = Hint { path: "reasoning_effort", values: HintValues::OneOf(EFFORTS) };
    /// Reasoning effort, as `/v1/responses` spells it.
    pub(crate) const NESTED_EFFORT: Hint = Hint { path: "reasoning.effort", values: HintValues::OneOf(EFFORTS) };
    /// Class of service: here there is one.
    pub(crate) const TIER: Hint = Hint { path: "service_tier", values: HintValues::OneOf(TIERS) };
    /// Length of answers.
    pub(crate) const VERBOSITY: Hint =
        Hint { path: "verbosity", values: HintValues::OneOf(&["low", "medium", "high"]) };
    /// Length of answers, as `/v1/responses` spells it.
    pub(crate) const NESTED_VERBOSITY: Hint =
        Hint { path: "text.verbosity", values: HintValues::OneOf(&["low", "medium", "high"]) };

    /// Checks a value that a request gives to this field.
    ///
    /// # Errors
    /// Names the field, or the pair, that is invalid.
    pub(crate) fn check(self, value: &Value) -> Result<(), ApiError> {
        let path = self.path;
        match (self.values, value) {
            (_, Value::Null) => Ok(()),
            (HintValues::Text, Value::String(text)) => check_text(path, text),
            (HintValues::OneOf(values), Value::String(text)) if values.contains(&text.as_str()) => Ok(()),
            (HintValues::OneOf(values), _) => {
                let message = format!("`{path}` must be one of {}, not {value}", values.join(", "));
                Err(ApiError::invalid(path, message))
            }
            (HintValues::Pairs, Value::Object(pairs)) if pairs.len() <= MAX_PAIRS => {
                pairs.iter().try_for_each(|(name, value)| check_pair(path, name, value))
            }
            (HintValues::Pairs, Value::Object(pairs)) => {
                let message = format!("`{path}` has {} pairs; the maximum is {MAX_PAIRS}", pairs.len());
                Err(ApiError::invalid(path, message))
            }
            (HintValues::Pairs, _) => Err(ApiError::invalid(path, format!("`{path}` must be an object of strings"))),
            (HintValues::Text, _) => Err(ApiError::invalid(path, format!("`{path}` must be a string"))),
        }
    }
}

fn check_pair(path: &str, name: &str, value: &Value) -> Result<(), ApiError> {
    if name.chars().count() > MAX_NAME {
        let message = format!("`{path}` has a name of more than {MAX_NAME} characters");
        return Err(ApiError::invalid(path, message));
    }
    match value {
        Value::String(text) => check_text(&format!("{path}.{name}"), text),
        _ => Err(ApiError::invalid(&format!("{path}.{name}"), format!("`{path}.{name}` must be a string"))),
    }
}

fn check_text(path: &str, text: &str) -> Result<(), ApiError> {
    if text.chars().count() > MAX_TEXT {
        let message = format!("`{path}` is longer than {MAX_TEXT} characters");
        return Err(ApiError::invalid(path, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn refused(hint: Hint, value: &Value) -> String {
        hint.check(value).unwrap_err().param.unwrap()
    }

    #[test]
    fn values_of_the_interface_pass_and_others_are_refused_by_name() {
        for (hint, good, bad) in [
            (Hint::EFFORT, json!("high"), json!("enormous")),
            (Hint::EFFORT, json!("max"), json!("maximum")),
            (Hint::NESTED_EFFORT, json!("max"), json!(["max"])),
            (Hint::TIER, json!("priority"), json!(1)),
            (Hint::TIER, json!("fast"), json!("faster")),
            (Hint::TIER, json!("ultrafast"), json!("ultra")),
            (Hint::CACHE_KEY, json!("tenant-7"), json!(["x"])),
            (Hint::METADATA, json!({"a": "b"}), json!("a=b")),
        ] {
            hint.check(&good).unwrap();
            hint.check(&Value::Null).unwrap();
            assert_eq!(refused(hint, &bad), hint.path);
        }
    }

    #[test]
    fn metadata_has_bounds() {
        let pairs = |number: usize| Value::Object((0..number).map(|at| (at.to_string(), json!("x"))).collect());
        Hint::METADATA.check(&pairs(16)).unwrap();
        assert_eq!(refused(Hint::METADATA, &pairs(17)), "metadata");
        assert_eq!(refused(Hint::METADATA, &json!({"a": 1})), "metadata.a");
        assert_eq!(refused(Hint::METADATA, &json!({"a": "x".repeat(513)})), "metadata.a");
        assert_eq!(refused(Hint::METADATA, &json!({"n".repeat(65): "x"})), "metadata");
    }
}
