//! Files of an embedder's layers.

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Encoder;
use super::config::EncoderConfig;
use super::model_kind::ModelKind;
use super::shape::BodyShape;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::kernel::Team;
use crate::weights::{Map, Weights};

/// Settings of an embedder's layers. The settings of a decoder come with its weights, because some of them depend on
/// the weights.
#[derive(Debug)]
pub(crate) enum BodySource {
    Encoder(Box<EncoderConfig>),
    Decoder(Box<Weights>, BodyShape),
}

impl BodySource {
    /// Opens the layers of the model in `dir`. Texts have at most `default_pieces` pieces where no file states a limit.
    pub(crate) fn open(kind: ModelKind, dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        match kind {
            ModelKind::Encoder(family) => {
                Ok(Self::Encoder(Box::new(EncoderConfig::read(family, dir, default_pieces)?)))
            }
            ModelKind::Decoder => {
                let weights = Weights::open_body(dir)?;
                let shape = BodyShape::of_decoder(weights.config(), dir, default_pieces)?;
                Ok(Self::Decoder(Box::new(weights), shape))
            }
        }
    }

    /// Shape of the layers.
    pub(crate) fn shape(&self) -> BodyShape {
        match self {
            Self::Encoder(config) => config.shape(),
            Self::Decoder(_, shape) => shape.clone(),
        }
    }

    /// Loads the layers from `dir`, and adds the weights of an encoder, or the ID of a decoder's weights, to `hash`.
    pub(crate) fn load(self, dir: &Path, team: Arc<Team>, hash: &mut Sha256) -> Result<Encoder, ModelError> {
        match self {
            Self::Encoder(config) => {
                let weights = Map::open(&dir.join("model.safetensors"))?;
                hash.update(weights.bytes());
                Encoder::load(&config, &EncoderTensors::open(&weights, config.family)?, team)
            }
            Self::Decoder(weights, shape) => {
                hash.update(weights.id());
                Encoder::load_decoder(&shape, &weights, team)
            }
        }
    }
}
