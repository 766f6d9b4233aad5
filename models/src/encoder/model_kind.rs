//! Kinds of embedding models, recognized by the `model_type` of `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::family::EncoderFamily;
use super::json_file::parse;
use crate::ModelError;

/// Name of the file with the settings.
pub(super) const CONFIG: &str = "config.json";

/// Model type of decoders that embed, and their name in IDs.
pub(super) const DECODER: &str = "qwen3";

/// Kind of a model that embeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelKind {
    Encoder(EncoderFamily),
    /// Qwen3 as an embedder (Zhang et al. 2025), a decoder whose last piece has read the text: see `causal`.
    Decoder,
}

#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
}

/// Reads the `model_type` of the model in `dir`. Empty if its file states none.
fn model_type(dir: &Path) -> Result<String, ModelError> {
    let ModelType { model_type } = parse(&dir.join(CONFIG))?;
    Ok(model_type.unwrap_or_default())
}

/// Error for a model type that is not among the `expected` ones.
fn unknown(dir: &Path, model_type: &str, expected: &str) -> ModelError {
    ModelError::Unsupported { path: dir.join(CONFIG), what: format!("model_type {model_type:?}: expected {expected}") }
}

impl ModelKind {
    fn of(model_type: &str) -> Option<Self> {
        if model_type == DECODER { Some(Self::Decoder) } else { EncoderFamily::of(model_type).map(Self::Encoder) }
    }

    /// Kind of the model in `dir`. `None` if the directory has no `config.json`, or the model type is unknown.
    pub(crate) fn find(dir: &Path) -> Result<Option<Self>, ModelError> {
        if !dir.join(CONFIG).exists() {
            return Ok(None);
        }
        Ok(Self::of(&model_type(dir)?))
    }

    /// Kind of the model in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, ModelError> {
        let found = model_type(dir)?;
        Self::of(&found).ok_or_else(|| unknown(dir, &found, &format!("{DECODER}, {}", EncoderFamily::KNOWN)))
    }
}

impl EncoderFamily {
    /// Family of the encoder in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, ModelError> {
        let found = model_type(dir)?;
        Self::of(&found).ok_or_else(|| unknown(dir, &found, EncoderFamily::KNOWN))
    }
}
