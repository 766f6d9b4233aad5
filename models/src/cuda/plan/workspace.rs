//! Where a step's activations lie.

use half::bf16;

use super::{Carver, Limits, Place};
use crate::cuda::kernel::{AttendDecode, Factors};
use crate::decoder::DecoderConfig;

/// Adapters that can be loaded at a time.
pub const ADAPTERS: usize = 64;
/// The largest rank of an adapter.
pub const LARGEST_RANK: usize = 128;
/// Projections that share an input at most.
pub const STACKED: usize = 3;
/// Places in a layer that an adapter may add at.
pub const SITES: usize = 4;

/// Activations of a step, results, and tables that steps share. Shapes are (rows, width), for as many tokens or rows as a
/// step may have.
#[derive(Debug, Clone, Copy)]
pub struct WorkPlaces {
    /// The residual stream.
    pub stream: Place<f32>,
    /// The stream, normalised; for the vocabulary's projection only the rows that want logits.
    pub normed: Place<bf16>,
    /// Queries, keys and values.
    pub qkv: Place<bf16>,
    /// What attention gives.
    pub attended: Place<bf16>,
    /// Gate and up projections.
    pub gate_up: Place<bf16>,
    /// Their product after the activation.
    pub activated: Place<bf16>,
    /// Partial results of decoding attention.
    pub partial: Place<f32>,
    /// Its counters; zero between launches.
    pub arrived: Place<u32>,
    /// What adapters' A matrices give.
    pub small: Place<f32>,
    /// What adapters are made of, by layer, site and slot.
    pub factors: Place<Factors>,
    /// Shape (rows that want logits, vocab).
    pub logits: Place<f32>,
    /// What sampling gives: ids, log-probabilities, status, one after the other, each a third.
    pub results: Place<u32>,
    /// Bytes of all together.
    pub bytes: usize,
}

impl WorkPlaces {
    /// For steps within `limits` on a card of `processors` multiprocessors.
    pub fn new(config: &DecoderConfig, limits: &Limits, processors: u32) -> Self {
        let (tokens, rows) = (limits.tokens, limits.rows);
        let mut carver = Carver::default();
        Self {
            stream: carver.place(tokens * config.hidden),
            normed: carver.place(tokens.max(rows) * config.hidden),
            qkv: carver.place(tokens * (config.q_width() + 2 * config.kv_width())),
            attended: carver.place(tokens * config.q_width()),
            gate_up: carver.place(tokens * 2 * config.ffn),
            activated: carver.place(tokens * config.ffn),
            partial: carver.place(partial(config, limits, processors)),
            arrived: carver.place(rows * config.kv_heads),
            small: carver.place(tokens * STACKED * LARGEST_RANK),
            factors: carver.place(config.layers * SITES * ADAPTERS),
            logits: carver.place(rows * config.vocab),
            results: carver.place(3 * rows),
            bytes: carver.bytes(),
        }
    }
}

/// How many parts decoding attention is split into for this many rows.
pub fn splits(config: &DecoderConfig, limits: &Limits, rows: usize, processors: u32) -> u32 {
    AttendDecode::splits_for(rows as u32, config.kv_heads as u32, processors, limits.context as u32)
}

/// Partial results of the number of rows that has most.
fn partial(config: &DecoderConfig, limits: &Limits, processors: u32) -> usize {
    let values = |rows: usize| {
        let splits = splits(config, limits, rows, processors);
        AttendDecode::workspace(rows as u32, splits, config.heads as u32, config.head_dim as u32)
    };
    (1..=limits.rows).map(values).max().unwrap_or(0)
}
