//! Training passes on the CPU.

use std::fmt;
use std::sync::Arc;

use super::attention::AttentionPlan;
use super::layer::LayerPass;
use super::load::Loader;
use super::network::Network;
use super::parameter::Table;
use super::projection::ActivationRows;
use super::tape::{LayerActivations, PassScratch, Tape};
use super::{Compute, Likeliest, Objective, Pack, PackSegment, Score, ScoredModel, Tune};
use crate::decoder::{DecoderConfig, Ropes};
use crate::kernel::Team;
use crate::kernel::attention::HeadLayout;
use crate::weights::Weights;
use crate::{Arithmetic, ModelError};

/// Weights of a decoder and working memory of its passes, on the CPU.
pub(super) struct CpuPasses {
    pub(super) config: DecoderConfig,
    team: Arc<Team>,
    arithmetic: Arithmetic,
    pub(super) network: Network,
    ropes: Ropes,
    /// Number of trained values.
    pub(super) values: usize,
    pub(super) tape: Tape,
    pub(super) scratch: PassScratch,
    positions: Vec<usize>,
    pub(super) limit: Option<usize>,
}

impl CpuPasses {
    /// Loads a checkpoint and returns it with the initial values of its trained parameters.
    pub(super) fn load(
        weights: &Weights,
        team: Arc<Team>,
        tune: &Tune,
        arithmetic: Arithmetic,
    ) -> Result<(Self, Table), ModelError> {
        let config = weights.config().clone();
        config.check()?;
        let (mut network, table) = Loader::new(weights, tune, arithmetic)?.load()?;
        // The initial values of an adapter are not in the checkpoint, so its matrices are packed here.
        network.repack(&team, &table.values);
        // The smallest tables are part of the loaded learner, so passes over short sequences allocate none.
        let mut ropes = Ropes::new(&config);
        ropes.reserve(1);
        let passes = Self {
            ropes,
            network,
            values: table.values.len(),
            tape: Tape::default(),
            scratch: PassScratch::default(),
            positions: Vec::new(),
            limit: None,
            config,
            team,
            arithmetic,
        };
        Ok((passes, table))
    }

    pub(super) fn heads(&self) -> HeadLayout {
        HeadLayout { query: self.config.heads, kv: self.config.kv_heads, dim: self.config.head_dim }
    }

    fn plan(&mut self, pack: &Pack) -> AttentionPlan {
        self.positions.clear();
        self.positions.extend(pack.segments().iter().flat_map(|segment| segment.start..segment.end()));
        self.ropes.reserve(pack.segments().iter().map(PackSegment::end).max().unwrap_or(0));
        AttentionPlan::with(pack, self.heads(), self.arithmetic)
    }

    /// Prepares a forward pass of `model` over `pack` and calls `run` with it and with buffers of its size.
    fn scoring<T>(
        &mut self,
        pack: &Pack,
        model: ScoredModel,
        run: impl FnOnce(&Network, &LayerPass<'_>, &mut LayerActivations, &mut PassScratch) -> T,
    ) -> Result<T, ModelError> {
        let plan = self.plan(pack);
        self.resize_for_scoring(pack)?;
        let Self { config, team, network, ropes, tape, scratch, positions, .. } = self;
        let rows = ActivationRows { team, count: pack.tokens().len(), adapted: model == ScoredModel::Adapted };
        let pass = LayerPass { config, ropes, plan: &plan, positions, rows };
        Ok(run(network, &pass, &mut tape.activations[0], scratch))
    }
}

impl Compute for CpuPasses {
    fn take(&mut self, values: &[f32]) {
        self.network.repack(&self.team, values);
    }

    fn score(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Score>, ModelError> {
        self.scoring(pack, model, |network, pass, kept, scratch| network.score(pass, pack, kept, scratch))
    }

    fn likeliest(&mut self, pack: &Pack, count: usize, model: ScoredModel) -> Result<Vec<Likeliest>, ModelError> {
        self.scoring(pack, model, |network, pass, kept, scratch| network.likeliest(pass, pack, count, kept, scratch))
    }

    fn states(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Vec<f32>>, ModelError> {
        self.scoring(pack, model, |network, pass, kept, scratch| network.states(pass, pack, kept, scratch))
    }

    fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective, gradients: &mut [f32]) -> Result<(), ModelError> {
        let plan = self.plan(pack);
        let whole = self.resize_for_learning(pack, &plan)?;
        let Self { config, team, network, ropes, tape, scratch, positions, .. } = self;
        let rows = ActivationRows { team, count: pack.tokens().len(), adapted: true };
        let pass = LayerPass { config, ropes, plan: &plan, positions, rows };
        network.learn(&pass, pack, (tape, whole), scratch, objective, gradients);
        Ok(())
    }

    fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    fn on_gpu(&self) -> bool {
        false
    }

    fn bytes(&self, tokens: usize) -> usize {
        self.max_bytes(tokens)
    }

    fn bytes_of(&self, pack: &Pack) -> usize {
        self.bytes_needed(pack)
    }
}

impl fmt::Debug for CpuPasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuPasses").field("team", &self.team).finish_non_exhaustive()
    }
}
