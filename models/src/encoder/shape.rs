//! Shape that encoders and decoders have in common.

use std::path::Path;

use super::causal::MOST_PIECES;
use super::config::EncoderConfig;
use super::model_kind::{DECODER, ModelKind};
use super::text_length::TextLength;
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::weights::Weights;

/// Shape of the layers, and limits of the texts.
#[derive(Debug, Clone)]
pub(crate) struct BodyShape {
    /// Name of the family in IDs.
    pub(crate) family: &'static str,
    /// Number of layers.
    pub(crate) layers: usize,
    /// Numbers per piece.
    pub(crate) hidden: usize,
    /// Number of word pieces that the model has.
    pub(super) vocab: usize,
    /// Number of segments that the model tells apart; at least 1.
    pub(super) segments: usize,
    /// Maximum number of pieces of a text.
    pub(crate) max_pieces: usize,
    /// If `true`, texts are lower-cased before they are split.
    pub(super) lower_case: bool,
}

impl BodyShape {
    /// Reads the shape of the model in `dir` from its settings alone. Texts have at most `default_pieces` pieces where
    /// no file states a limit.
    pub(crate) fn read(kind: ModelKind, dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        match kind {
            ModelKind::Encoder(family) => Ok(EncoderConfig::read(family, dir, default_pieces)?.shape()),
            ModelKind::Decoder => Self::of_decoder(&Weights::body_config(dir)?, dir, default_pieces),
        }
    }

    /// Shape of a decoder with the limits of the files in `dir`.
    pub(super) fn of_decoder(config: &DecoderConfig, dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        let length = TextLength::read(dir, config.context.min(MOST_PIECES), default_pieces)?;
        Ok(BodyShape {
            family: DECODER,
            layers: config.layers,
            hidden: config.hidden,
            vocab: config.vocab,
            segments: 1,
            max_pieces: length.max_pieces,
            lower_case: length.lower_case,
        })
    }
}
