//! Summary of an embedder's directory, without its layers.

use std::path::Path;

use super::modules::{MODULES, normalizes};
use super::pooling::Pooling;
use super::{DEFAULT_PIECES, EncoderPrompts};
use crate::ModelError;
use crate::encoder::{BodyShape, ModelKind};

/// Settings of an embedder, read from its files without loading its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedderSummary {
    /// Family of the encoder, as in [`Embedder::id`](super::Embedder::id).
    pub family: &'static str,
    /// Number of layers.
    pub layers: usize,
    /// Number of values per embedding.
    pub dims: usize,
    /// Maximum number of word pieces per text.
    pub max_pieces: usize,
    /// Pooling: `mean`, `cls`, `max` or `lasttoken`.
    pub pooling: &'static str,
    /// If `true`, vectors are scaled to length 1.
    pub normalizes: bool,
    /// Texts that the model expects before queries and documents, if its files state them.
    pub prompts: EncoderPrompts,
}

impl EmbedderSummary {
    /// Reads the settings of the model in `dir`. `None` if there is no `config.json`, if its `model_type` is unknown,
    /// or if the model is a decoder without `modules.json`.
    ///
    /// # Errors
    /// The same as for [`Embedder::open`](super::Embedder::open), except those of the weights and the tokenizer.
    pub fn read(dir: &Path) -> Result<Option<Self>, ModelError> {
        let kind = ModelKind::find(dir)?;
        let Some(kind) = kind.filter(|kind| *kind != ModelKind::Decoder || dir.join(MODULES).exists()) else {
            return Ok(None);
        };
        let shape = BodyShape::read(kind, dir, DEFAULT_PIECES)?;
        Ok(Some(EmbedderSummary {
            family: shape.family,
            layers: shape.layers,
            dims: shape.hidden,
            max_pieces: shape.max_pieces,
            pooling: Pooling::read(dir)?.name(),
            normalizes: normalizes(dir)?,
            prompts: EncoderPrompts::read(dir)?,
        }))
    }
}
