//! A decoder that learns: values, gradients, and the passes between them.

use std::fmt;
use std::sync::Arc;

use super::attention::Plan;
use super::layer::Pass;
use super::load::Loader;
use super::network::Network;
use super::projection::Rows;
use super::tape::{Scratch, Tape};
use super::{Objective, Pack, Parameter, Score, Tune};
use crate::decoder::DecoderConfig;
use crate::kernel::Team;
use crate::kernel::attention::Heads;
use crate::kernel::rope::Rope;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// A decoder that learns: its values and gradients are one flat vector each, in `f32`.
///
/// On one kind of processor results are the same to the last bit whatever the number of threads, and whether layers keep
/// their activations or compute them again. The next pass uses the memory of activations and their gradients again; that
/// of logits and of partial sums is given back after each.
pub struct Learner {
    pub(super) config: DecoderConfig,
    team: Arc<Team>,
    pub(super) tune: Tune,
    pub(super) network: Network,
    rope: Rope,
    pub(super) parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    pub(super) tape: Tape,
    pub(super) scratch: Scratch,
    positions: Vec<usize>,
    pub(super) limit: Option<usize>,
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
        let config = weights.config().clone();
        config.check()?;
        let (mut network, table) = Loader::new(weights, tune, arithmetic)?.load()?;
        network.repack(&team, &table.values);
        Ok(Self {
            rope: Rope::new(config.head_dim, config.rope_base, &config.rope_scaling),
            tune: tune.clone(),
            network,
            gradients: vec![0.0; table.values.len()],
            values: table.values,
            parameters: table.parameters,
            tape: Tape::default(),
            scratch: Scratch::default(),
            positions: Vec::new(),
            limit: None,
            config,
            team,
        })
    }

    /// What the decoder is configured by.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// What is learnt, in the order of the flat vectors.
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
        self.network.repack(&self.team, &self.values);
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

    /// Scores of all targets, in the order of the pack, without gradients. `base` leaves the adapter out.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence longer than the context, `base` is asked of
    /// a learner without adapter, or the pass does not fit into the [limit](Self::set_limit).
    pub fn score(&mut self, pack: &Pack, base: bool) -> Result<Vec<Score>, ModelError> {
        if base && self.tune == Tune::Full {
            return Err(ModelError::Input("all weights are learnt: there is no base without the adapter".to_owned()));
        }
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        let plan = self.plan(pack);
        self.ready_to_score(pack)?;
        let Self { config, team, network, rope, tape, scratch, positions, .. } = self;
        let rows = Rows { team, count: pack.tokens().len(), adapted: !base };
        let pass = Pass { config, rope, plan: &plan, positions, rows };
        Ok(network.score(&pass, pack, &mut tape.kept[0], scratch))
    }

    /// Forward and backward: adds ∂loss/∂value to the gradients.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence longer than the context, or the pass does
    /// not fit into the [limit](Self::set_limit).
    pub fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective) -> Result<(), ModelError> {
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(());
        }
        let plan = self.plan(pack);
        let whole = self.ready(pack, &plan)?;
        let Self { config, team, network, rope, tape, scratch, positions, gradients, .. } = self;
        let rows = Rows { team, count: pack.tokens().len(), adapted: true };
        let pass = Pass { config, rope, plan: &plan, positions, rows };
        network.learn(&pass, pack, (tape, whole), scratch, objective, gradients);
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

    pub(super) fn heads(&self) -> Heads {
        Heads { query: self.config.heads, kv: self.config.kv_heads, dim: self.config.head_dim }
    }

    fn plan(&mut self, pack: &Pack) -> Plan {
        self.positions.clear();
        self.positions.extend(pack.segments().iter().flat_map(|segment| segment.start..segment.end()));
        self.rope.reserve(pack.segments().iter().map(super::Segment::end).max().unwrap_or(0));
        Plan::new(pack, self.heads())
    }
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner")
            .field("tune", &self.tune)
            .field("values", &self.values.len())
            .field("team", &self.team)
            .finish_non_exhaustive()
    }
}
