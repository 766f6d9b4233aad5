//! Sampling parameters in a checkpoint's `generation_config.json`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::sampler::SamplingParams;

/// Sampling parameters that a checkpoint recommends. Fields that its file omits, and those with a value that
/// [`SamplingParams::check`] refuses, are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GenerationDefaults {
    /// If `false`, generation is greedy.
    pub do_sample: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Share of the probability that nucleus sampling keeps.
    pub top_p: Option<f32>,
    /// Number of most probable tokens to keep.
    pub top_k: Option<usize>,
    /// Least probability of a token, relative to the most probable one.
    pub min_p: Option<f32>,
    /// Penalty of tokens that have occurred.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Reads the file in `dir`. Returns no parameters if the file is missing or not valid JSON, and logs each value
    /// that cannot be used, because the parameters are only recommendations.
    pub fn read(dir: &Path) -> GenerationDefaults {
        let json = std::fs::read(dir.join("generation_config.json")).ok();
        let json: Value = json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
        let rest = SamplingParams::default;
        GenerationDefaults {
            do_sample: json.get("do_sample").and_then(Value::as_bool),
            temperature: usable(&json, "temperature", |temperature| SamplingParams { temperature, ..rest() }),
            top_p: usable(&json, "top_p", |top_p| SamplingParams { top_p, ..rest() }),
            top_k: usable(&json, "top_k", |top_k| SamplingParams { top_k, ..rest() }),
            min_p: usable(&json, "min_p", |min_p| SamplingParams { min_p, ..rest() }),
            repetition_penalty: usable(&json, "repetition_penalty", |repetition_penalty| SamplingParams {
                repetition_penalty,
                ..rest()
            }),
        }
    }
}

/// Value of a field. `None` if the field is absent or null, or if sampling with its value, as `sampled` returns it, is
/// refused.
fn usable<T>(json: &Value, name: &str, sampled: impl FnOnce(T) -> SamplingParams) -> Option<T>
where
    T: Copy + DeserializeOwned,
{
    let value = json.get(name).filter(|value| !value.is_null())?;
    let checked = match serde_json::from_value::<T>(value.clone()) {
        Ok(parsed) => sampled(parsed).check().map(|()| parsed).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match checked {
        Ok(parsed) => Some(parsed),
        Err(reason) => {
            tracing::warn!(field = name, %value, reason, "generation_config.json: the recommended value is not used");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_field_counts_unless_its_own_value_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let read = |json: &str| {
            std::fs::write(dir.path().join("generation_config.json"), json).unwrap();
            GenerationDefaults::read(dir.path())
        };
        let none = GenerationDefaults::default();
        let kept = GenerationDefaults { do_sample: Some(true), temperature: Some(0.7), ..none };
        for (field, value) in [
            ("top_k", "-1"),
            ("top_k", "2.5"),
            ("top_p", "0"),
            ("top_p", "\"all\""),
            ("min_p", "2"),
            ("repetition_penalty", "0"),
            ("repetition_penalty", "null"),
        ] {
            let json = format!(r#"{{"do_sample": true, "temperature": 0.7, "{field}": {value}}}"#);
            assert_eq!(read(&json), kept, "{json}");
        }
        assert_eq!(read(r#"{"temperature": -1, "top_k": 20}"#), GenerationDefaults { top_k: Some(20), ..none });
        assert_eq!([read("{"), read("[]")], [none; 2]);
    }
}
