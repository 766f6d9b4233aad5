//! Loading of a decoder's matrices on all threads.

use super::DecoderConfig;
use super::layer::DecoderLayer;
use super::tensor::matrix;
use crate::kernel::{Packed, Team};
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Matrices of a decoder.
#[derive(Debug)]
pub(super) struct LoadedMatrices {
    pub(super) embedding: Packed,
    /// Output projection. `None` if the embedding matrix serves as output projection.
    pub(super) head: Option<Packed>,
    pub(super) layers: Vec<DecoderLayer>,
}

/// Result of one unit of loading work.
enum DecoderPart {
    Vocabulary(Packed),
    Layer(Box<DecoderLayer>),
}

impl LoadedMatrices {
    /// Loads and repacks all matrices. Repacking takes longer than reading, so all threads of `team` take part.
    pub(super) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        team: &Team,
        arithmetic: Arithmetic,
    ) -> Result<Self, ModelError> {
        let mut names = vec!["model.embed_tokens.weight"];
        names.extend((!config.tied_embeddings).then_some("lm_head.weight"));
        // The vocabulary matrices, which may be larger than several layers, come first, so no thread waits for
        // them at the end.
        let parts = team.map(names.len() + config.layers, &|index| {
            let part = match names.get(index) {
                Some(name) => matrix(weights, name, config.vocab, config.hidden).map(DecoderPart::Vocabulary),
                None => DecoderLayer::load(weights, config, arithmetic, index - names.len())
                    .map(|layer| DecoderPart::Layer(Box::new(layer))),
            };
            weights.release();
            part
        });
        let mut vocabularies = Vec::with_capacity(names.len());
        let mut layers = Vec::with_capacity(config.layers);
        for part in parts {
            match part? {
                DecoderPart::Vocabulary(matrix) => vocabularies.push(matrix),
                DecoderPart::Layer(layer) => layers.push(*layer),
            }
        }
        let head = if config.tied_embeddings { None } else { vocabularies.pop() };
        let embedding =
            vocabularies.pop().ok_or_else(|| ModelError::Input("no embedding matrix was loaded".to_owned()))?;
        Ok(Self { embedding, head, layers })
    }
}
