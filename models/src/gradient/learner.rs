//! A decoder that learns: values, gradients, and the passes between them.

use std::fmt;
use std::sync::Arc;

use super::parameter::Table;
use super::processor::Processor;
use super::{Compute, Likeliest, Objective, Pack, Parameter, Score, Tune};
use crate::decoder::DecoderConfig;
use crate::kernel::Team;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// A decoder that learns: its values and gradients are one flat vector each, in `f32`, on the host. Its passes run on the
/// processor, or on a card (`load_on_card`, with the feature `cuda`).
///
/// On one kind of processor results are the same to the last bit whatever the number of threads, and whether layers keep
/// their activations or compute them again. The next pass uses the memory of activations and their gradients again; that
/// of logits and of partial sums is given back after each.
pub struct Learner {
    config: DecoderConfig,
    pub(super) tune: Tune,
    pub(super) parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    compute: Box<dyn Compute>,
}

impl Learner {
    /// Loads a checkpoint and begins what is learnt: a new adapter, or all weights as they are. Everything is computed in
    /// `f32`.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the configuration's or the adapter's numbers do not fit together, [`ModelError::Tensor`]
    /// when a tensor is missing or has the wrong shape, and what [`Weights::tensor`] returns.
    pub fn load(weights: &Weights, team: Arc<Team>, tune: &Tune) -> Result<Self, ModelError> {
        Self::load_with(weights, team, tune, Arithmetic::F32)
    }

    /// As [`load`](Self::load), with an arithmetic for frozen weights.
    ///
    /// # Errors
    /// As for [`load`](Self::load), and [`ModelError::Input`] when all weights are to be learnt in another arithmetic
    /// than `f32`.
    pub fn load_with(
        weights: &Weights,
        team: Arc<Team>,
        tune: &Tune,
        arithmetic: Arithmetic,
    ) -> Result<Self, ModelError> {
        let (processor, table) = Processor::load(weights, team, tune, arithmetic)?;
        Ok(Self::over(Box::new(processor), weights.config().clone(), tune, table))
    }

    /// A learner whose passes run on `compute`, which has taken over the values.
    pub(crate) fn over(compute: Box<dyn Compute>, config: DecoderConfig, tune: &Tune, table: Table) -> Self {
        let Table { parameters, values } = table;
        Self { config, tune: tune.clone(), parameters, gradients: vec![0.0; values.len()], values, compute }
    }

    /// What the decoder is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// What of it is learnt.
    pub fn tune(&self) -> &Tune {
        &self.tune
    }

    /// The tensors that are learnt, in the order of the flat vectors.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The values of all parameters.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Their gradients, summed up since [`zero`](Self::zero).
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// Sets all gradients to zero.
    pub fn zero(&mut self) {
        self.gradients.fill(0.0);
    }

    /// Changes values, given (values, gradients), and makes them count in the next pass.
    pub fn change(&mut self, step: impl FnOnce(&mut [f32], &mut [f32])) {
        step(&mut self.values, &mut self.gradients);
        self.compute.take(&self.values);
    }

    /// Replaces all values.
    ///
    /// # Errors
    /// [`ModelError::Input`] when there are more or fewer than parameters hold.
    pub fn set_values(&mut self, values: &[f32]) -> Result<(), ModelError> {
        if values.len() != self.values.len() {
            let (found, expected) = (values.len(), self.values.len());
            return Err(ModelError::Input(format!("{found} values, the parameters hold {expected}")));
        }
        self.change(|own, _| own.copy_from_slice(values));
        Ok(())
    }

    /// Whether its passes run on a card.
    pub fn on_card(&self) -> bool {
        self.compute.on_card()
    }

    /// Bounds the memory of a pass, in bytes as [`bytes_of`](Self::bytes_of) counts them: as many layers as fit keep their
    /// activations, the others keep their input and are computed again in the backward pass. The result is the same to
    /// the last bit. A pass that does not fit even so is refused. `None` keeps everything. On a card all layers are computed
    /// again, whatever the limit, and the memory is the card's.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.compute.set_limit(limit);
    }

    /// Bytes of memory to plan with for passes over up to `tokens` tokens, all of them targets: as
    /// [`bytes_of`](Self::bytes_of), with the most partial sums that attention takes for a pack of that size. On a card
    /// tokens that sequences share count for each of them, and each sequence in whole blocks of [`BLOCK`](crate::BLOCK).
    pub fn bytes(&self, tokens: usize) -> usize {
        self.compute.bytes(tokens)
    }

    /// Bytes of memory while learning from `pack`: weights, values, gradients, activations and what the pass works in,
    /// under the limit where that can be kept, and else as little as can be. Without a limit an earlier, larger pass may
    /// have left more. The pack, positions and their rotations, norms, and what each thread has for a tile of its work are
    /// not counted. On a card the bytes are the card's.
    pub fn bytes_of(&self, pack: &Pack) -> usize {
        self.compute.bytes_of(pack)
    }

    /// Scores of all targets, in the order of the pack, without gradients. `base` leaves the adapter out.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence longer than the context, `base` is asked of
    /// a learner without adapter, or the pass does not fit into the [limit](Self::set_limit); [`ModelError::Card`] from a
    /// card.
    pub fn score(&mut self, pack: &Pack, base: bool) -> Result<Vec<Score>, ModelError> {
        self.check_base(base)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.score(pack, base)
    }

    /// The `count` most probable tokens at each target, in the order of the pack, as a distribution over these alone: what
    /// the model would have had there, whatever the target is. `base` leaves the adapter out.
    ///
    /// # Errors
    /// As for [`score`](Self::score), and [`ModelError::Input`] when no token is asked for; always on a card, which has no
    /// kernel for it.
    pub fn likeliest(&mut self, pack: &Pack, count: usize, base: bool) -> Result<Vec<Likeliest>, ModelError> {
        if count == 0 {
            return Err(ModelError::Input("the 0 most probable tokens are asked for: ask for one at least".to_owned()));
        }
        self.check_base(base)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.likeliest(pack, count, base)
    }

    /// The state that each target is predicted from, in the order of the pack: what the final norm makes of the stream at the
    /// token before it, which the vocabulary's matrix is multiplied by. `base` leaves the adapter out. The targets' own tokens
    /// do not matter.
    ///
    /// # Errors
    /// As for [`score`](Self::score); always on a card, which keeps no states.
    pub fn states(&mut self, pack: &Pack, base: bool) -> Result<Vec<Vec<f32>>, ModelError> {
        self.check_base(base)?;
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        self.compute.states(pack, base)
    }

    /// Forward and backward: adds ∂loss/∂value to the gradients.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence longer than the context, or the pass does
    /// not fit into the [limit](Self::set_limit), or `objective` draws a target to something on a card;
    /// [`ModelError::Card`] from a card.
    pub fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective) -> Result<(), ModelError> {
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(());
        }
        self.compute.learn(pack, objective, &mut self.gradients)
    }

    fn check_base(&self, base: bool) -> Result<(), ModelError> {
        if base && self.tune == Tune::Full {
            return Err(ModelError::Input("all weights are learnt: there is no base without the adapter".to_owned()));
        }
        Ok(())
    }

    fn check(&self, pack: &Pack) -> Result<(), ModelError> {
        let DecoderConfig { vocab, context, .. } = self.config;
        for (number, segment) in pack.segments().iter().enumerate() {
            let tokens = &pack.tokens()[segment.tokens.clone()];
            if let Some(index) = tokens.iter().position(|&token| token as usize >= vocab) {
                let (token, position) = (tokens[index], segment.start + index);
                return Err(ModelError::Input(format!(
                    "segment {number}, position {position}: token {token} is outside the vocabulary of {vocab}; take \
                     this model's tokenizer"
                )));
            }
            if segment.end() > context {
                let end = segment.end();
                return Err(ModelError::Input(format!(
                    "segment {number} ends a sequence of {end} tokens, the context is {context}; shorten the sequence"
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
