//! Trainable decoder: parameter values, their gradients, and the passes that compute them.

use std::fmt;
use std::sync::Arc;

use super::cpu_passes::CpuPasses;
use super::parameter::Table;
use super::{Compute, Likeliest, Objective, Pack, Parameter, Score, Tune};
use crate::decoder::DecoderConfig;
use crate::kernel::Team;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Model that a [`Learner`] scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoredModel {
    /// Model with the learner's values: those of the adapter, or of all weights.
    Adapted,
    /// Base model, without the adapter.
    Base,
}

/// A trainable decoder. Values and gradients are one flat `f32` vector each, in host memory. Passes run on the CPU, or
/// on a GPU (`load_on_gpu`, with the feature `cuda`).
///
/// On a given CPU type, results are bit-for-bit independent of the number of threads and of whether layers keep or
/// recompute their activations. Memory of activations and their gradients is reused by the next pass; memory of logits
/// and partial sums is freed after each pass.
pub struct Learner {
    config: DecoderConfig,
    pub(super) tune: Tune,
    pub(super) parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    compute: Box<dyn Compute>,
}

impl Learner {
    /// Loads a checkpoint for training: a new adapter, or all weights from their current values. Everything is
    /// computed in `f32`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the configuration or the adapter is inconsistent, [`ModelError::Tensor`] when a
    /// tensor is missing or has the wrong shape, and the errors of [`Weights::tensor`].
    pub fn load(weights: &Weights, team: Arc<Team>, tune: &Tune) -> Result<Self, ModelError> {
        Self::load_with(weights, team, tune, Arithmetic::F32)
    }

    /// Loads a checkpoint like [`load`](Self::load), with an arithmetic for frozen weights.
    ///
    /// # Errors
    /// The same as for [`load`](Self::load), and [`ModelError::Input`] when all weights are trained in another
    /// arithmetic than `f32`.
    pub fn load_with(
        weights: &Weights,
        team: Arc<Team>,
        tune: &Tune,
        arithmetic: Arithmetic,
    ) -> Result<Self, ModelError> {
        let (passes, table) = CpuPasses::load(weights, team, tune, arithmetic)?;
        Ok(Self::over(Box::new(passes), weights.config().clone(), tune, table))
    }

    /// Creates a learner whose passes run on `compute`, which already holds the values.
    pub(crate) fn over(compute: Box<dyn Compute>, config: DecoderConfig, tune: &Tune, table: Table) -> Self {
        let Table { parameters, values } = table;
        Self { config, tune: tune.clone(), parameters, gradients: vec![0.0; values.len()], values, compute }
    }

    /// Configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Choice of trained parameters.
    pub fn tune(&self) -> &Tune {
        &self.tune
    }

    /// Trained tensors, in the order of the flat vectors.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Values of all parameters.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Gradients of all parameters, accumulated since the last call of [`zero`](Self::zero).
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// Sets all gradients to zero.
    pub fn zero(&mut self) {
        self.gradients.fill(0.0);
    }

    /// Calls `step` with (values, gradients) to change them, and applies the new values to the next pass.
    pub fn change(&mut self, step: impl FnOnce(&mut [f32], &mut [f32])) {
        step(&mut self.values, &mut self.gradients);
        self.compute.take(&self.values);
    }

    /// Replaces all values.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the number of values is wrong.
    pub fn set_values(&mut self, values: &[f32]) -> Result<(), ModelError> {
        if values.len() != self.values.len() {
            let found = values.len();
            let expected = self.values.len();
            return Err(ModelError::Input(format!("{found} values: the parameters need {expected}")));
        }
        self.change(|own, _| own.copy_from_slice(values));
        Ok(())
    }

    /// Returns `true` if the passes run on a GPU.
    pub fn on_gpu(&self) -> bool {
        self.compute.on_gpu()
    }

    /// Limits the memory of a pass, in bytes as counted by [`bytes_of`](Self::bytes_of). As many layers as fit keep
    /// their activations; the others keep their input and are recomputed in the backward pass, with bit-identical
    /// results. A pass that does not fit even then is refused. `None` keeps all activations. On a GPU, all layers
    /// are recomputed regardless of the limit, and the limit applies to GPU memory.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.compute.set_limit(limit);
    }

    /// Memory to plan for passes over up to `tokens` tokens, all of them targets, in bytes. Counts like
    /// [`bytes_of`](Self::bytes_of), with the largest partial sums that attention can need. On a GPU, tokens shared
    /// by sequences count for each sequence, and each sequence is rounded up to blocks of [`BLOCK`](crate::BLOCK)
    /// tokens.
    pub fn bytes(&self, tokens: usize) -> usize {
        self.compute.bytes(tokens)
    }

    /// Memory needed to learn from `pack`, in bytes: weights, values, gradients, activations and working memory,
    /// within the limit if possible and otherwise the minimum. Without a limit, an earlier, larger pass may hold
    /// more. Excludes the pack, positions and rotations, norms, and the tile buffers that threads keep from pass to
    /// pass: some hundred kilobytes each, and up to a few megabytes in bf16. On a GPU, counts GPU memory.
    pub fn bytes_of(&self, pack: &Pack) -> usize {
        self.compute.bytes_of(pack)
    }

    /// Scores all targets under `model`, in the order of the pack, without gradients.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence exceeds the context, `model` is the
    /// base of a learner without an adapter, or the pass exceeds the [limit](Self::set_limit); [`ModelError::Gpu`]
    /// when the GPU fails.
    pub fn score(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Score>, ModelError> {
        self.check_model(model)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.score(pack, model)
    }

    /// The `count` most probable tokens under `model` at each target, in the order of the pack, with probabilities
    /// renormalized over these tokens. Independent of the target's own token.
    ///
    /// # Errors
    /// The same as for [`score`](Self::score), and [`ModelError::Input`] when `count` is 0. Always an error on a
    /// GPU, which has no kernel for this.
    pub fn likeliest(&mut self, pack: &Pack, count: usize, model: ScoredModel) -> Result<Vec<Likeliest>, ModelError> {
        if count == 0 {
            return Err(ModelError::Input("0 most probable tokens requested: request at least 1".to_owned()));
        }
        self.check_model(model)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.likeliest(pack, count, model)
    }

    /// Hidden state of `model` from which each target is predicted, in the order of the pack: the output of the final
    /// norm at the preceding token, which the vocabulary projection reads. Independent of the target's own token.
    ///
    /// # Errors
    /// The same as for [`score`](Self::score). Always an error on a GPU, which keeps no states.
    pub fn states(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Vec<f32>>, ModelError> {
        self.check_model(model)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.states(pack, model)
    }

    /// Runs a forward and a backward pass, and adds ∂loss/∂value to the gradients.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence exceeds the context, the pass
    /// exceeds the [limit](Self::set_limit), or `objective` has a distillation term on a GPU; [`ModelError::Gpu`]
    /// when the GPU fails.
    pub fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective) -> Result<(), ModelError> {
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(());
        }
        self.compute.learn(pack, objective, &mut self.gradients)
    }

    fn check_model(&self, model: ScoredModel) -> Result<(), ModelError> {
        if model == ScoredModel::Base && self.tune == Tune::Full {
            return Err(ModelError::Input(
                "cannot disable the adapter: all weights are trained and there is none".to_owned(),
            ));
        }
        Ok(())
    }

    fn check(&self, pack: &Pack) -> Result<(), ModelError> {
        let DecoderConfig { vocab, context, .. } = self.config;
        for (number, segment) in pack.segments().iter().enumerate() {
            let tokens = &pack.tokens()[segment.tokens.clone()];
            if let Some(index) = tokens.iter().position(|&token| token as usize >= vocab) {
                let token = tokens[index];
                let position = segment.start + index;
                return Err(ModelError::Input(format!(
                    "segment {number}, position {position}: token {token} is outside the vocabulary of {vocab}; take \
                     this model's tokenizer"
                )));
            }
            if segment.end() > context {
                let end = segment.end();
                return Err(ModelError::Input(format!(
                    "segment {number} ends a sequence of {end} tokens, but the context is {context}: shorten the sequence"
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner")
            .field("tune", &self.tune)
            .field("values", &self.values.len())
            .field("compute", &self.compute)
            .finish_non_exhaustive()
    }
}
