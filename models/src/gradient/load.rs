//! Loading of checkpoints for training.

use std::ops::Range;

use super::experts::FrozenExperts;
use super::initial_values::InitialPairs;
use super::layer::{TrainableLayer, TrainableNorms};
use super::network::{EmbeddingMatrix, Network};
use super::norm::Vector;
use super::parameter::Table;
use super::projection::{Projection, ProjectionAdapter, TrainedPart};
use super::unembedding::Unembedding;
use super::{Module, Tune};
use crate::architecture::QkNorm;
use crate::decoder::DecoderConfig;
use crate::decoder::tensor::{pack, view};
use crate::weights::{TensorView, Weights};
use crate::{Arithmetic, ModelError};

/// Shared state for loading all parts of a network.
pub(super) struct Loader<'a> {
    weights: &'a Weights,
    config: &'a DecoderConfig,
    tune: &'a Tune,
    arithmetic: Arithmetic,
    beginning: InitialPairs,
    table: Table,
}

impl<'a> Loader<'a> {
    /// Creates a loader.
    ///
    /// # Errors
    /// [`ModelError::Input`] for an adapter that does not fit the decoder (see `Lora::check`), for a family that cannot
    /// be trained with all weights, for an arithmetic that would round trained weights, and for `Int16`.
    pub(super) fn new(weights: &'a Weights, tune: &'a Tune, arithmetic: Arithmetic) -> Result<Self, ModelError> {
        let family = weights.config().architecture.family();
        if *tune == Tune::Full && weights.config().architecture.experts.is_some() {
            return Err(ModelError::Input(format!(
                "all weights of a model with experts ({}) are not trained: give the recipe an adapter on q_proj, k_proj, \
                 v_proj and o_proj",
                family.model_type
            )));
        }
        if *tune == Tune::Full && (family.fused || family.norm_offset != 0.0) {
            let name = family.model_type;
            return Err(ModelError::Input(format!(
                "all weights of {name} cannot be saved in its layout: give the recipe an adapter"
            )));
        }
        let mut seed = 0;
        if *tune == Tune::Full && arithmetic != Arithmetic::F32 {
            return Err(ModelError::Input(
                "all weights are trained in f32: arithmetic in bf16 needs frozen weights with an adapter".to_owned(),
            ));
        }
        if arithmetic == Arithmetic::Int16 {
            return Err(ModelError::Input("arithmetic in int16 is for serving: train in f32 or bf16".to_owned()));
        }
        if let Tune::Lora(lora) = tune {
            lora.check(weights.config())?;
            seed = lora.seed;
        }
        let beginning = InitialPairs::new(seed);
        let table = Table::default();
        Ok(Self { weights, config: weights.config(), tune, arithmetic, beginning, table })
    }

    /// Loads the network. Parameters follow the order of the checkpoint's layers.
    pub(super) fn load(mut self) -> Result<(Network, Table), ModelError> {
        let config = self.config;
        let vocab = config.vocab;
        let hidden = config.hidden;
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let tied = config.tied_embeddings;
        let embedding = (!tied).then(|| self.embedding(EMBEDDING, vocab, hidden)).transpose()?;
        let head_first = tied.then(|| self.unembedding(EMBEDDING, vocab, hidden)).transpose()?;
        let layers = (0..config.layers).map(|index| self.layer(index)).collect::<Result<Vec<_>, _>>()?;
        let norm = self.vector("model.norm.weight", hidden)?;
        let head = match head_first {
            Some(head) => head,
            None => self.unembedding("lm_head.weight", vocab, hidden)?,
        };
        Ok((Network { embedding, layers, norm, head }, self.table))
    }

    fn layer(&mut self, index: usize) -> Result<TrainableLayer, ModelError> {
        let config = self.config;
        let name = |rest: &str| format!("model.layers.{index}.{rest}");
        let norms = config.architecture.norms.names();
        let attention_norms = self.block_norms(index, norms.attention_in, norms.attention_out)?;
        let mut projections = Vec::with_capacity(Module::COUNT);
        let experts = config.architecture.experts(index);
        for module in Module::ALL {
            projections.push(match experts {
                Some(_) if module.path().starts_with("mlp.") => Projection::empty(),
                _ => self.projection(index, module)?,
            });
        }
        let experts = experts.map(|experts| {
            let path = format!("model.layers.{index}.mlp");
            FrozenExperts::load(self.weights, experts, self.arithmetic, &path, config.hidden).map(Box::new)
        });
        let Ok(projections) = projections.try_into() else { unreachable!("one projection for each module") };
        let widths = [config.q_width(), config.kv_width(), config.kv_width()];
        let mut biases = None;
        if config.architecture.qkv_bias {
            let mut bias =
                |side: usize| self.vector(&name(&format!("{}.bias", Module::ALL[side].path())), widths[side]);
            biases = Some([bias(0)?, bias(1)?, bias(2)?]);
        }
        let [q, k] = match config.architecture.qk_norm {
            QkNorm::Head => [config.head_dim; 2],
            QkNorm::None | QkNorm::Whole => [config.q_width(), config.kv_width()],
        };
        let mut qk_norms = None;
        if config.architecture.qk_norm != QkNorm::None {
            let mut norm = |side: &str, width| self.vector(&name(&format!("self_attn.{side}_norm.weight")), width);
            qk_norms = Some([norm("q", q)?, norm("k", k)?]);
        }
        let ffn_norms = self.block_norms(index, norms.ffn_in, norms.ffn_out)?;
        let rotary = config.architecture.layer(index).rotary;
        let rule = config.score_rule(index);
        let experts = experts.transpose()?;
        Ok(TrainableLayer { attention_norms, projections, experts, biases, qk_norms, ffn_norms, rotary, rule })
    }

    /// Loads the norms of a block, by their names in the layer.
    fn block_norms(
        &mut self,
        layer: usize,
        before: Option<&str>,
        after: Option<&str>,
    ) -> Result<TrainableNorms, ModelError> {
        let mut norm = |name: Option<&str>| {
            name.map(|name| self.vector(&format!("model.layers.{layer}.{name}"), self.config.hidden)).transpose()
        };
        Ok(TrainableNorms { before: norm(before)?, after: norm(after)? })
    }

    fn projection(&mut self, layer: usize, module: Module) -> Result<Projection, ModelError> {
        let [out, inn] = module.shape(self.config);
        let name = format!("model.layers.{layer}.{}.weight", module.path());
        let view = view(self.weights, &name, &[out, inn])?;
        let trained = match (self.register_trained(&name, &view)?, self.tune) {
            (Some(range), _) => TrainedPart::Weight(range),
            (None, Tune::Lora(lora)) if lora.targets.contains(&module) => {
                let pair = self.beginning.pair(&mut self.table, lora, layer, module, [out, inn]);
                TrainedPart::Adapter(Box::new(ProjectionAdapter::new(lora.rank, lora.scale(), pair)))
            }
            (None, _) => TrainedPart::Nothing,
        };
        Ok(Projection::new(pack(&view)?, trained, self.arithmetic))
    }

    /// Loads the vocabulary projection.
    fn unembedding(&mut self, name: &str, out: usize, inn: usize) -> Result<Unembedding, ModelError> {
        let view = view(self.weights, name, &[out, inn])?;
        let trained = self.register_trained(name, &view)?;
        Ok(Unembedding::new(pack(&view)?, trained, self.arithmetic))
    }

    /// Loads an embedding matrix.
    fn embedding(&mut self, name: &str, out: usize, inn: usize) -> Result<EmbeddingMatrix, ModelError> {
        let view = view(self.weights, name, &[out, inn])?;
        Ok(EmbeddingMatrix { trained: self.register_trained(name, &view)?, rows: pack(&view)? })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vector, ModelError> {
        let view = view(self.weights, name, &[len])?;
        Ok(Vector { trained: self.register_trained(name, &view)?, values: view.to_f32()? })
    }

    /// Registers a tensor as trained if all weights are trained, and returns its range among the values.
    fn register_trained(&mut self, name: &str, view: &TensorView<'_>) -> Result<Option<Range<usize>>, ModelError> {
        Ok(match self.tune {
            Tune::Full => Some(self.table.push(name.to_owned(), &view.shape, view.to_f32()?)),
            Tune::Lora(_) => None,
        })
    }
}
