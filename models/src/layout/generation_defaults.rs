//! Sampling parameters in a checkpoint's `generation_config.json`.

use std::path::Path;

use serde::Deserialize;

/// Sampling parameters that a checkpoint recommends. Fields that its file omits are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
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
    /// Reads the file in `dir`. Returns no parameters if the file is missing or not valid JSON, because the parameters
    /// are only recommendations.
    pub fn read(dir: &Path) -> GenerationDefaults {
        let json = std::fs::read(dir.join("generation_config.json")).ok();
        json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
    }
}
