//! Phases of one decoder step.

use std::ops::Range;

use super::Decoder;
use super::cache::{KvCache, LayerMut, TokenSlot};
use super::experts::{ExpertScratch, ExpertStep};
use super::feed_forward::{FeedForward, Gate};
use super::fused::OutputColumns;
use super::lora::AdapterGroups;
use super::rotation::Rotation;
use super::step_clock::StepPhase;
use crate::ModelError;
use crate::adapter::Site;
use crate::architecture::Activation;
use crate::batch::{BLOCK, BatchRow, ForwardBatch, LogitPositions, Logits};
use crate::kernel::attention::Queries;
use crate::kernel::attention::stored::Stored;
use crate::kernel::{Team, add, gelu_tanh_mul, rms_norm, rms_norm_add, scale, silu_mul, soft_cap};

/// Minimum number of tokens per thread that justifies a parallel region.
const GRAIN: usize = 4;

/// Activations of a step, kept so that the next step of the same size allocates nothing. Matrices have shape
/// (tokens, width).
#[derive(Debug, Default)]
pub(super) struct StepScratch {
    places: Vec<TokenSlot>,
    groups: AdapterGroups,
    /// Tokens that get logits, if other tokens of the step get none.
    wanted: ForwardBatch,
    /// Residual stream.
    stream: Vec<f32>,
    /// Normalized residual stream.
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
    experts: ExpertScratch,
}

impl Decoder {
    /// Validates everything that a batch refers to, so the step itself cannot fail or overwrite another row's
    /// cache.
    pub(super) fn check(&self, batch: &ForwardBatch, kv: &mut KvCache) -> Result<(), ModelError> {
        if kv.heads() != self.heads() || kv.layers() != self.config.layers {
            return Err(ModelError::Input("the KV cache belongs to another decoder".to_owned()));
        }
        if let Some(token) = batch.tokens().iter().find(|&&token| token as usize >= self.config.vocab) {
            return Err(ModelError::Input(format!("token {token} is outside the vocabulary of {}", self.config.vocab)));
        }
        // Every block that this step writes is claimed once, so two rows cannot overwrite each other.
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
        if row.start > 0 && !kv.keeps_layers() {
            return Err(format!("{} earlier tokens, of which a cache of one layer keeps nothing", row.start));
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
            // The rotation table must cover all positions before the threads of the step read it.
            self.ropes.reserve(row.start + row.tokens.len());
        }
        scratch.groups.plan(batch);
        self.attention.plan(batch);
        let tokens = batch.tokens().len();
        scratch.stream.resize(tokens * config.hidden, 0.0);
        scratch.normed.resize(tokens * config.hidden, 0.0);
        scratch.qkv.resize(tokens * (config.q_width() + 2 * config.kv_width()), 0.0);
        scratch.attended.resize(tokens * config.q_width(), 0.0);
        scratch.gate_up.resize(tokens * 2 * config.widest_feed_forward(), 0.0);
        scratch.activated.resize(tokens * config.widest_feed_forward(), 0.0);
        if let Some(experts) = &config.architecture.experts {
            scratch.experts.resize(experts, tokens, config.hidden);
        }
        for (row, &token) in scratch.stream.chunks_exact_mut(config.hidden).zip(batch.tokens()) {
            self.embedding.row_f32(token as usize, row);
        }
        scratch.groups.embed(&self.slots, batch.tokens(), config.hidden, &mut scratch.stream);
        if config.architecture.embedding_scale != 1.0 {
            scale(&mut scratch.stream, config.architecture.embedding_scale);
        }
        self.clock.lap(StepPhase::Begin);
    }

    /// Projects all tokens to queries, keys and values of one layer, and stores keys and values in the layer's cache.
    pub(super) fn store_tokens(&mut self, index: usize, kv: &mut KvCache) {
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        let tokens = scratch.places.len();
        let before = layer.attention_norms.before.as_deref();
        let input = block_input(team, &scratch.stream, before, config.rms_eps, &mut scratch.normed);
        clock.lap(StepPhase::Norm);
        layer.qkv.product(team, input, tokens, &mut scratch.qkv);
        clock.lap(StepPhase::Qkv);
        let columns = [0, 1, 2].map(|part| layer.qkv.columns(part, tokens));
        scratch.groups.apply(team, slots, (index, Site::Qkv), input, &mut scratch.qkv, &|part| columns[part]);
        clock.lap(StepPhase::Adapters);
        match kv.layer_mut(index) {
            // The precision is matched once per layer, so the inner loops are compiled for one type.
            LayerMut::F32(cache) => self.rotate_into(index, cache),
            LayerMut::F16(cache) => self.rotate_into(index, cache),
            LayerMut::Int8(cache) => self.rotate_into(index, cache),
        }
    }

    /// Computes the attention of one layer, whose cache holds the batch's own keys and values, and adds it to the
    /// residual stream.
    pub(super) fn attend(&mut self, index: usize, batch: &ForwardBatch, kv: &mut KvCache) {
        match kv.layer_mut(index) {
            LayerMut::F32(cache) => self.attend_to_cache(index, batch, cache),
            LayerMut::F16(cache) => self.attend_to_cache(index, batch, cache),
            LayerMut::Int8(cache) => self.attend_to_cache(index, batch, cache),
        }
        self.add_block(index, Site::O);
    }

    /// Computes the attention of the last layer like [`attend`](Self::attend), but only for the tokens that get logits.
    /// The step continues with these tokens alone.
    pub(super) fn attend_wanted(&mut self, index: usize, batch: &ForwardBatch, kv: &mut KvCache) {
        // Taken out of the scratch, because the attention needs the whole decoder.
        let mut wanted = std::mem::take(&mut self.scratch.wanted);
        select_wanted(batch, &mut wanted);
        self.narrow(index, batch, &wanted);
        self.attend(index, &wanted, kv);
        self.scratch.wanted = wanted;
    }

    /// Reduces the step to the tokens in `wanted`: their rows of the residual stream, and their queries in layer
    /// `index`.
    fn narrow(&mut self, index: usize, batch: &ForwardBatch, wanted: &ForwardBatch) {
        let Self { config, layers, attention, scratch, clock, .. } = self;
        let hidden = config.hidden;
        let tokens = wanted.tokens().len();
        let queries = layers[index].qkv.columns(0, scratch.places.len());
        // Rows move to the front in ascending order, so no row is overwritten before it has moved.
        for (to, from) in batch.rows().iter().flat_map(wanted_tokens).enumerate() {
            scratch.places[to] = scratch.places[from];
            scratch.stream.copy_within(from * hidden..(from + 1) * hidden, to * hidden);
            scratch.qkv.copy_within(queries.row(from), queries.row(to).start);
        }
        scratch.places.truncate(tokens);
        scratch.stream.truncate(tokens * hidden);
        scratch.normed.truncate(tokens * hidden);
        scratch.attended.truncate(tokens * config.q_width());
        if let Some(experts) = &config.architecture.experts {
            scratch.experts.resize(experts, tokens, hidden);
        }
        scratch.groups.plan(wanted);
        attention.plan(wanted);
        clock.lap(StepPhase::Begin);
    }

    /// Projects the output of attention or of a dense feed-forward block, and adds the result to the residual stream.
    /// Applies the layer's norm and residual factor, if any.
    fn add_block(&mut self, index: usize, site: Site) {
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        let tokens = scratch.places.len();
        let (matrix, norms, inner, phase) = match (site, &layer.feed_forward) {
            (Site::Down, FeedForward::Dense(block)) => {
                let activated = &mut scratch.activated[..tokens * block.width()];
                (&block.down, &layer.ffn_norms, activated, StepPhase::Down)
            }
            // `add_experts` adds the output of experts, so a layer with experts calls this function for attention only.
            (_, FeedForward::Dense(_) | FeedForward::Experts(_)) => {
                (&layer.o, &layer.attention_norms, scratch.attended.as_mut_slice(), StepPhase::Output)
            }
        };
        if config.architecture.residual_scale != 1.0 {
            // The projection and its adapters are linear: a factor on their input is one on their output.
            scale(inner, config.architecture.residual_scale);
        }
        let whole = OutputColumns::all(config.hidden);
        let Some(norm) = &norms.after else {
            if scratch.groups.rescales(slots, (index, site)) {
                // The adapter's factors apply to the projection alone, so it is computed in a buffer of its own first.
                matrix.matmul(team, inner, tokens, &mut scratch.normed);
                scratch.groups.rescale(slots, (index, site), &mut scratch.normed, &|_| whole);
                add(&mut scratch.stream, &scratch.normed);
            } else {
                matrix.matmul_add(team, inner, tokens, &mut scratch.stream);
            }
            clock.lap(phase);
            scratch.groups.add(team, slots, (index, site), inner, &mut scratch.stream, &|_| whole);
            clock.lap(StepPhase::Adapters);
            return;
        };
        // The input of the block is no longer needed, so its buffer can hold the output.
        let output = &mut scratch.normed;
        matrix.matmul(team, inner, tokens, output);
        clock.lap(phase);
        scratch.groups.apply(team, slots, (index, site), inner, output, &|_| whole);
        clock.lap(StepPhase::Adapters);
        add_normalized(team, output, norm, config.rms_eps, &mut scratch.stream);
        clock.lap(StepPhase::Norm);
    }

    /// Rotates queries and keys, and stores the keys and values in the layer's cache.
    fn rotate_into<S: Stored>(&mut self, index: usize, cache: &mut [S]) {
        let heads = self.heads();
        let Self { config, team, layers, ropes, scratch, clock, .. } = self;
        let layer = &layers[index];
        let columns = [0, 1, 2].map(|part| layer.qkv.columns(part, scratch.places.len()));
        let rotation = Rotation { layer, rope: ropes.of(layer.rotary), columns, heads, eps: config.rms_eps };
        rotation.run(team, &scratch.places, &mut scratch.qkv, cache);
        clock.lap(StepPhase::Rotate);
    }

    /// Computes attention over the whole cache of a layer.
    fn attend_to_cache<S: Stored>(&mut self, index: usize, batch: &ForwardBatch, cache: &[S]) {
        let Self { team, layers, attention, scratch, clock, .. } = self;
        let layer = &layers[index];
        let columns = layer.qkv.columns(0, scratch.places.len());
        let queries = Queries { data: &scratch.qkv[columns.start..], stride: columns.stride };
        attention.run(team, batch, cache, queries, layer.rule, &mut scratch.attended);
        clock.lap(StepPhase::Attention);
    }

    /// Computes the feed-forward block of one layer and adds it to the residual stream.
    pub(super) fn feed_forward(&mut self, index: usize) {
        let Self { config, team, layers, slots, scratch, clock, .. } = self;
        let layer = &layers[index];
        let tokens = scratch.places.len();
        let before = layer.ffn_norms.before.as_deref();
        let input = block_input(team, &scratch.stream, before, config.rms_eps, &mut scratch.normed);
        clock.lap(StepPhase::Norm);
        let activation = gate(config.architecture.activation);
        match &layer.feed_forward {
            FeedForward::Dense(block) => {
                let gate_up = &mut scratch.gate_up[..tokens * block.gate_up.width()];
                block.gate_up.product(team, input, tokens, gate_up);
                clock.lap(StepPhase::GateUp);
                let columns = [0, 1].map(|part| block.gate_up.columns(part, tokens));
                scratch.groups.apply(team, slots, (index, Site::GateUp), input, gate_up, &|part| columns[part]);
                clock.lap(StepPhase::Adapters);
                let activated = &mut scratch.activated[..tokens * block.width()];
                block.activate(team, activation, tokens, gate_up, activated);
                clock.lap(StepPhase::Activation);
                self.add_block(index, Site::Down);
            }
            FeedForward::Experts(experts) => {
                let StepScratch { gate_up, activated, experts: buffers, .. } = scratch;
                let mut step = ExpertStep { team, activation, clock, gate_up, activated };
                experts.run(&mut step, input, buffers);
                self.add_experts();
            }
        }
    }

    /// Adds the output of the experts to the residual stream. Layers with experts have no norm or factor on this
    /// output.
    fn add_experts(&mut self) {
        let Self { config, team, scratch, clock, .. } = self;
        let StepScratch { stream, experts: ExpertScratch { output, .. }, .. } = scratch;
        team.rows(stream, config.hidden, GRAIN, &|first, share| {
            add(share, &output[first * config.hidden..][..share.len()]);
        });
        clock.lap(StepPhase::Routing);
    }

    /// Computes the final norm for every token of the residual stream.
    pub(super) fn normalize_stream(&mut self) -> &[f32] {
        let Self { config, team, norm, scratch, clock, .. } = self;
        block_input(team, &scratch.stream, Some(norm), config.rms_eps, &mut scratch.normed);
        clock.lap(StepPhase::Head);
        &scratch.normed
    }

    /// Computes final norm and vocabulary projection for every token of the residual stream. All of them get logits.
    pub(super) fn project_logits(&mut self, logits: &mut Logits) {
        self.normalize_stream();
        let Self { config, team, slots, scratch, clock, arithmetic, .. } = self;
        let rows = logits.rows();
        let last = scratch.normed.as_mut_slice();
        if config.architecture.logit_scale != 1.0 {
            scale(last, config.architecture.logit_scale);
        }
        // A tied model stores one matrix, which was packed for lookups and multiplications alike.
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        arithmetic.project(team, last, rows, head, logits.as_mut_slice());
        scratch.groups.project(team, slots, last, config.vocab, logits.as_mut_slice());
        if let Some(cap) = config.architecture.logit_cap {
            soft_cap(logits.as_mut_slice(), cap);
        }
        clock.lap(StepPhase::Head);
    }
}

/// Fills `wanted` with the tokens of `batch` that get logits, each at its position in its sequence.
fn select_wanted(batch: &ForwardBatch, wanted: &mut ForwardBatch) {
    wanted.clear();
    for row in batch.rows() {
        let tokens = wanted_tokens(row);
        if tokens.is_empty() {
            continue;
        }
        let start = row.start + tokens.start - row.tokens.start;
        wanted.push(&batch.tokens()[tokens], start, batch.table(row), row.adapter, LogitPositions::All);
    }
}

/// Tokens of a row that get logits.
fn wanted_tokens(row: &BatchRow) -> Range<usize> {
    match row.want {
        LogitPositions::Nothing => row.tokens.end..row.tokens.end,
        LogitPositions::Last => row.tokens.end - 1..row.tokens.end,
        LogitPositions::All => row.tokens.clone(),
    }
}

/// Returns the input of a block: the residual stream, normalized into `normed` if there is a norm.
fn block_input<'a>(team: &Team, stream: &'a [f32], norm: Option<&[f32]>, eps: f32, normed: &'a mut [f32]) -> &'a [f32] {
    let Some(norm) = norm else { return stream };
    let width = norm.len();
    team.rows(normed, width, GRAIN, &|first, share| {
        rms_norm(&stream[first * width..][..share.len()], norm, eps, share)
    });
    normed
}

/// Normalizes every row of `x` by its RMS and adds it to `stream`.
fn add_normalized(team: &Team, x: &[f32], norm: &[f32], eps: f32, stream: &mut [f32]) {
    let width = norm.len();
    team.rows(stream, width, GRAIN, &|first, share| {
        rms_norm_add(&x[first * width..][..share.len()], norm, eps, share);
    });
}

/// Returns the gated activation of a feed-forward block. It combines the gate and up projections and overwrites the
/// gate projection with the result.
fn gate(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => silu_mul,
        Activation::GeluTanh => gelu_tanh_mul,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::weights::Weights;

    #[test]
    fn tokens_without_logits_leave_the_last_layer_early() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/decoder/llama"));
        let mut decoder = Decoder::load(&Weights::open(folder).unwrap(), Arc::new(Team::new(2))).unwrap();
        let mut kv = decoder.kv_cache(8);
        let mut logits = Logits::new();
        let tokens: Vec<u32> = (0..20).collect();
        let mut batch = ForwardBatch::new();
        batch.push(&tokens, 0, &[0, 1], None, LogitPositions::Nothing);
        decoder.forward(&batch, &mut kv, &mut logits).unwrap();
        assert!(decoder.clock.spent(StepPhase::Head).is_zero(), "a step without logits ends before the final norm");
        // Numbers of rows that the last layer projects after attention.
        let mut projected = Vec::new();
        for (tokens, table, want) in [
            (&tokens[..], &[2, 3][..], LogitPositions::Last),
            (&tokens[..3], &[4][..], LogitPositions::All),
            (&tokens[..1], &[5][..], LogitPositions::Last),
        ] {
            batch.push(tokens, 0, table, None, want);
            decoder.forward(&batch, &mut kv, &mut logits).unwrap();
            projected.push(decoder.scratch.attended.len() / decoder.config.q_width());
        }
        assert_eq!(projected, [1, 4, 5]);
    }
}
