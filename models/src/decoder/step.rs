//! Phases of one decoder step.

use super::Decoder;
use super::cache::{KvCache, LayerMut, TokenSlot};
use super::fused::OutputColumns;
use super::lora::AdapterGroups;
use super::rotation::Rotation;
use super::step_clock::StepPhase;
use crate::ModelError;
use crate::adapter::Site;
use crate::batch::{BLOCK, BatchRow, ForwardBatch, LogitPositions, Logits};
use crate::kernel::attention::Queries;
use crate::kernel::lanes::Stored;
use crate::kernel::{Team, rms_norm, silu_mul};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;

/// Activations of a step, kept so that the next step of the same size allocates nothing. Matrices have shape
/// (tokens, width).
#[derive(Debug, Default)]
pub(super) struct StepScratch {
    places: Vec<TokenSlot>,
    groups: AdapterGroups,
    /// Residual stream.
    stream: Vec<f32>,
    /// Normalized residual stream.
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
}

impl Decoder {
    /// Validates everything that a batch refers to, so that the step itself cannot fail or overwrite another row's
    /// cache.
    pub(super) fn check(&self, batch: &ForwardBatch, kv: &mut KvCache) -> Result<(), ModelError> {
        if kv.heads() != self.heads() || kv.layers() != self.config.layers {
            return Err(ModelError::Input("the KV cache belongs to another decoder".to_owned()));
        }
        if let Some(token) = batch.tokens().iter().find(|&&token| token as usize >= self.config.vocab) {
            return Err(ModelError::Input(format!("token {token} is outside the vocabulary of {}", self.config.vocab)));
        }
        // Every block that this step writes is claimed once, so that two rows cannot overwrite each other.
        kv.begin_step();
        for (index, row) in batch.rows().iter().enumerate() {
            self.check_row(row, batch.table(row), kv)
                .map_err(|reason| ModelError::Input(format!("row {index}: {reason}")))?;
        }
        Ok(())
    }

    fn check_row(&self, row: &BatchRow, table: &[u32], kv: &mut KvCache) -> Result<(), String> {
        let end = row.start + row.tokens.len();
        if row.tokens.is_empty() {
            return Err("no tokens".to_owned());
        }
        if end > self.config.context {
            return Err(format!("{end} tokens, the context is {}", self.config.context));
        }
        let Some(table) = table.get(..end.div_ceil(BLOCK)) else {
            return Err(format!("{} blocks for {end} tokens", table.len()));
        };
        if let Some(block) = table.iter().find(|&&block| block as usize >= kv.blocks()) {
            return Err(format!("block {block} is outside the pool of {}", kv.blocks()));
        }
        if let Some(slot) = row.adapter.filter(|&slot| self.slots.get(slot).is_none()) {
            return Err(format!("no adapter in slot {}", slot.0));
        }
        // Blocks before the first new token are only read and may be shared between rows.
        let mut written = table.iter().enumerate().skip(row.start / BLOCK);
        match written.find(|&(entry, &block)| !kv.claim(block as usize, row.table.start + entry)) {
            Some((_, block)) => Err(format!("block {block} is written twice in one step")),
            None => Ok(()),
        }
    }

    /// Lays out the step and looks up the embeddings.
    pub(super) fn begin(&mut self, batch: &ForwardBatch) {
        let config = &self.config;
        let scratch = &mut self.scratch;
        scratch.places.clear();
        for row in batch.rows() {
            let table = batch.table(row);
            let places = (row.start..row.start + row.tokens.len())
                .map(|position| TokenSlot { position, block: table[position / BLOCK] as usize });
            scratch.places.extend(places);
            // The table must be complete before the threads of the step read it.
            self.rope.reserve(row.start + row.tokens.len());
        }
        scratch.groups.plan(batch);
        self.attention.plan(batch);
        let tokens = batch.tokens().len();
        scratch.stream.resize(tokens * config.hidden, 0.0);
        scratch.normed.resize(tokens * config.hidden, 0.0);
        scratch.qkv.resize(tokens * (config.q_width() + 2 * config.kv_width()), 0.0);
        scratch.attended.resize(tokens * config.q_width(), 0.0);
        scratch.gate_up.resize(tokens * 2 * config.ffn, 0.0);
        scratch.activated.resize(tokens * config.ffn, 0.0);
        for (row, &token) in scratch.stream.chunks_exact_mut(config.hidden).zip(batch.tokens()) {
            self.embedding.row_f32(token as usize, row);
        }
        self.clock.lap(StepPhase::Begin);
    }

    /// Computes the attention of one layer and adds it to the residual stream.
    pub(super) fn attend(&mut self, index: usize, batch: &ForwardBatch, kv: &mut KvCache) {
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        let tokens = scratch.places.len();
        normalize(team, &scratch.stream, &layer.attention_norm, config.rms_eps, &mut scratch.normed);
        clock.lap(StepPhase::Norm);
        layer.qkv.product(team, &scratch.normed, tokens, &mut scratch.qkv);
        clock.lap(StepPhase::Qkv);
        let columns = [0, 1, 2].map(|part| layer.qkv.columns(part, tokens));
        scratch.groups.add(team, slots, (index, Site::Qkv), &scratch.normed, &mut scratch.qkv, &|part| columns[part]);
        clock.lap(StepPhase::Adapters);
        match kv.layer_mut(index) {
            // The precision is matched once per layer, so that the inner loops are compiled for one type.
            LayerMut::F32(cache) => self.attend_to_cache(index, batch, cache),
            LayerMut::F16(cache) => self.attend_to_cache(index, batch, cache),
        }
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        layer.o.matmul_add(team, &scratch.attended, tokens, &mut scratch.stream);
        clock.lap(StepPhase::Output);
        let whole = OutputColumns::all(config.hidden);
        scratch.groups.add(team, slots, (index, Site::O), &scratch.attended, &mut scratch.stream, &|_| whole);
        clock.lap(StepPhase::Adapters);
    }

    /// Stores the new keys and values in the layer's cache and computes attention over the whole cache.
    fn attend_to_cache<S: Stored>(&mut self, index: usize, batch: &ForwardBatch, cache: &mut [S]) {
        let heads = self.heads();
        let Self { config, team, layers, rope, attention, scratch, clock, .. } = self;
        let layer = &layers[index];
        let columns = [0, 1, 2].map(|part| layer.qkv.columns(part, scratch.places.len()));
        let rotation = Rotation { layer, rope, columns, heads, eps: config.rms_eps };
        rotation.run(team, &scratch.places, &mut scratch.qkv, cache);
        clock.lap(StepPhase::Rotate);
        let queries = Queries { data: &scratch.qkv[columns[0].start..], stride: columns[0].stride };
        attention.run(team, batch, cache, queries, &mut scratch.attended);
        clock.lap(StepPhase::Attention);
    }

    /// Computes the feed-forward block of one layer, `down(silu(gate(x)) · up(x))`, and adds it to the residual
    /// stream.
    pub(super) fn feed_forward(&mut self, index: usize) {
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        let tokens = scratch.places.len();
        normalize(team, &scratch.stream, &layer.ffn_norm, config.rms_eps, &mut scratch.normed);
        clock.lap(StepPhase::Norm);
        layer.gate_up.product(team, &scratch.normed, tokens, &mut scratch.gate_up);
        clock.lap(StepPhase::GateUp);
        let columns = [0, 1].map(|part| layer.gate_up.columns(part, tokens));
        scratch
            .groups
            .add(team, slots, (index, Site::GateUp), &scratch.normed, &mut scratch.gate_up, &|part| columns[part]);
        clock.lap(StepPhase::Adapters);
        let gate_up = &scratch.gate_up;
        team.rows(&mut scratch.activated, config.ffn, GRAIN, &|first, share| {
            for (token, gate) in share.chunks_exact_mut(config.ffn).enumerate() {
                gate.copy_from_slice(&gate_up[columns[0].row(first + token)]);
                silu_mul(gate, &gate_up[columns[1].row(first + token)]);
            }
        });
        clock.lap(StepPhase::Activation);
        layer.down.matmul_add(team, &scratch.activated, tokens, &mut scratch.stream);
        clock.lap(StepPhase::Down);
        let whole = OutputColumns::all(config.hidden);
        scratch.groups.add(team, slots, (index, Site::Down), &scratch.activated, &mut scratch.stream, &|_| whole);
        clock.lap(StepPhase::Adapters);
    }

    /// Computes final norm and vocabulary projection for the requested positions.
    pub(super) fn project_logits(&mut self, batch: &ForwardBatch, logits: &mut Logits) {
        let Self { config, team, scratch, clock, arithmetic, .. } = self;
        let rows = logits.rows();
        let wanted = batch.rows().iter().flat_map(|row| match row.want {
            // An empty range keeps the order of rows: each logit row belongs to the next wanted position.
            LogitPositions::Nothing => row.tokens.end..row.tokens.end,
            LogitPositions::Last => row.tokens.end - 1..row.tokens.end,
            LogitPositions::All => row.tokens.clone(),
        });
        for (token, to) in wanted.zip(scratch.normed.chunks_exact_mut(config.hidden)) {
            rms_norm(&scratch.stream[token * config.hidden..][..config.hidden], &self.norm, config.rms_eps, to);
        }
        // A tied model stores one matrix, which was packed for lookups and multiplications alike.
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        arithmetic.project(team, &scratch.normed[..rows * config.hidden], rows, head, logits.as_mut_slice());
        clock.lap(StepPhase::Head);
    }
}

/// Applies the RMS norm to every row.
fn normalize(team: &Team, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    team.rows(out, width, GRAIN, &|first, share| rms_norm(&x[first * width..][..share.len()], weight, eps, share));
}
