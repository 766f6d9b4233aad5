//! A decoder that learns: values, gradients, and the passes between them.

use std::fmt;
use std::sync::Arc;

use super::attention::Plan;
use super::layer::Pass;
use super::load::Loader;
use super::network::Network;
use super::projection::Rows;
use super::tape::{Kept, Scratch, Tape};
use super::{Objective, Pack, Parameter, Score, Tune};
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::kernel::Team;
use crate::kernel::attention::Heads;
use crate::kernel::rope::Rope;
use crate::weights::Weights;

/// A decoder that learns: its values and gradients are one flat vector each, in `f32`.
///
/// Results are the same to the last bit whatever the number of threads, and whether layers keep their activations or
/// compute them again. All memory of a pass is used again by the next.
pub struct Learner {
    pub(super) config: DecoderConfig,
    team: Arc<Team>,
    pub(super) tune: Tune,
    network: Network,
    rope: Rope,
    pub(super) parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    tape: Tape,
    scratch: Scratch,
    positions: Vec<usize>,
    limit: Option<usize>,
}

impl Learner {
    /// Loads a checkpoint and begins what is learnt: a new adapter, or all weights as they are.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the configuration's or the adapter's numbers do not fit together, [`ModelError::Tensor`]
    /// when a tensor is missing or has the wrong shape, and what [`Weights::tensor`] returns.
    pub fn load(weights: &Weights, team: Arc<Team>, tune: &Tune) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        config.check()?;
        let (mut network, table) = Loader::new(weights, tune)?.load()?;
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

    /// Bounds the memory of a pass, in bytes as [`bytes`](Self::bytes) counts them: as many layers as fit keep their
    /// activations, the others keep their input and are computed again in the backward pass. The result is the same to
    /// the last bit. `None` keeps everything.
    pub fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Scores of all targets, in the order of the pack, without gradients. `base` leaves the adapter out.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary, a sequence longer than the context, or `base` is
    /// asked of a learner without adapter.
    pub fn score(&mut self, pack: &Pack, base: bool) -> Result<Vec<Score>, ModelError> {
        if base && self.tune == Tune::Full {
            return Err(ModelError::Input("all weights are learnt: there is no base without the adapter".to_owned()));
        }
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(Vec::new());
        }
        let plan = self.plan(pack);
        let Self { config, team, network, rope, tape, scratch, positions, .. } = self;
        let rows = Rows { team, count: pack.tokens().len(), adapted: !base };
        let pass = Pass { config, rope, plan: &plan, positions, rows };
        if tape.kept.is_empty() {
            tape.kept.push(Kept::default());
        }
        Ok(network.score(&pass, pack, &mut tape.kept[0], scratch))
    }

    /// Forward and backward: adds ∂loss/∂value to the gradients.
    ///
    /// # Errors
    /// [`ModelError::Input`] when a token is outside the vocabulary or a sequence longer than the context.
    pub fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective) -> Result<(), ModelError> {
        self.check(pack)?;
        if pack.targets().is_empty() {
            return Ok(());
        }
        let (plan, whole) = (self.plan(pack), self.whole(pack.tokens().len()));
        let Self { config, team, network, rope, tape, scratch, positions, gradients, .. } = self;
        let rows = Rows { team, count: pack.tokens().len(), adapted: true };
        let pass = Pass { config, rope, plan: &plan, positions, rows };
        network.learn(&pass, pack, (tape, whole), scratch, objective, gradients);
        Ok(())
    }

    /// Bytes of memory with weights, values, gradients and the activations of a pass over `tokens` tokens, for planning.
    pub fn bytes(&self, tokens: usize) -> usize {
        let whole = self.whole(tokens);
        self.fixed(tokens) + whole * self.each(tokens)
    }

    /// Bytes without the layers' own activations, but for one.
    fn fixed(&self, tokens: usize) -> usize {
        let stack = self.config.layers * self.config.hidden + Scratch::width(&self.config) + Kept::width(&self.config);
        // A few values per target: its stream, normalised, and the gradients of both.
        let targets = 4 * self.config.hidden;
        self.network.bytes() + size_of::<f32>() * (2 * self.values.len() + tokens * (stack + targets))
    }

    /// Bytes of one layer's activations.
    fn each(&self, tokens: usize) -> usize {
        size_of::<f32>() * tokens * Kept::width(&self.config)
    }

    /// How many layers keep their activations.
    fn whole(&self, tokens: usize) -> usize {
        let most = self.config.layers - 1;
        match self.limit {
            Some(limit) => (limit.saturating_sub(self.fixed(tokens)) / self.each(tokens).max(1)).min(most),
            None => most,
        }
    }

    fn check(&self, pack: &Pack) -> Result<(), ModelError> {
        let vocab = self.config.vocab;
        if let Some(token) = pack.tokens().iter().find(|&&token| token as usize >= vocab) {
            return Err(ModelError::Input(format!("token {token} is outside the vocabulary of {vocab}")));
        }
        let longest = pack.segments().iter().map(super::Segment::end).max().unwrap_or(0);
        if longest > self.config.context {
            return Err(ModelError::Input(format!("{longest} tokens, the context is {}", self.config.context)));
        }
        Ok(())
    }

    fn plan(&mut self, pack: &Pack) -> Plan {
        self.positions.clear();
        self.positions.extend(pack.segments().iter().flat_map(|segment| segment.start..segment.end()));
        self.rope.reserve(pack.segments().iter().map(super::Segment::end).max().unwrap_or(0));
        let heads = Heads { query: self.config.heads, kv: self.config.kv_heads, dim: self.config.head_dim };
        Plan::new(pack, heads)
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
