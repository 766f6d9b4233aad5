//! Sampling parameters in a checkpoint's `generation_config.json`.

use std::path::Path;

use serde::Deserialize;

/// Sampling parameters that a checkpoint recommends. `None` where its file says nothing.
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
    /// Reads the file in `dir`. Returns no parameters if there is none, or if it cannot be read as JSON: nothing but these
    /// recommendations depends on it.
    pub fn read(dir: &Path) -> GenerationDefaults {
        let json = std::fs::read(dir.join("generation_config.json")).ok();
        json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
    }
}
