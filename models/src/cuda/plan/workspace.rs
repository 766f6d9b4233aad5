//! Layout of a step's activations in device memory.

use half::bf16;

use super::{Placement, PlacementAllocator, StepLimits, WeightFormat};
use crate::cuda::kernel::{AttendDecode, LoraFactors, SampleTokens};
use crate::decoder::DecoderConfig;

/// Maximum number of loaded adapters.
pub const MAX_ADAPTERS: usize = 64;
/// Maximum rank of an adapter.
pub const MAX_RANK: usize = 128;
/// Maximum number of projections that share an input.
pub const MAX_STACKED: usize = 3;
/// Number of projection groups per layer that an adapter can modify.
pub const SITES: usize = 4;

/// Maximum number of weights dequantized at a time, unless sixteen rows are more: 32 MiB, which the L2 cache of a large
/// GPU holds until the multiplication reads them.
const DEQUANTIZED: usize = 16 << 20;

/// Activations, results and shared tables of a step. Shapes are (rows, width), for the maximum number of tokens or
/// rows.
#[derive(Debug, Clone, Copy)]
pub struct WorkspaceLayout {
    /// Residual stream.
    pub stream: Placement<f32>,
    /// Normalized residual stream; for the output projection only the rows that want logits.
    pub normed: Placement<bf16>,
    /// Queries, keys and values.
    pub qkv: Placement<bf16>,
    /// Output of attention.
    pub attended: Placement<bf16>,
    /// Outputs of the gate and up projections.
    pub gate_up: Placement<bf16>,
    /// Output of the activation, `silu(gate) · up`.
    pub activated: Placement<bf16>,
    /// Partial results of decoding attention.
    pub partial: Placement<f32>,
    /// Counters of decoding attention, zero between launches.
    pub arrived: Placement<u32>,
    /// Outputs of the adapters' A matrices.
    pub small: Placement<f32>,
    /// Table of LoRA factors by layer, site and slot.
    pub factors: Placement<LoraFactors>,
    /// Part of a matrix that was dequantized for a multiplication of many rows. Empty for weights in `bf16`.
    pub dequantized: Placement<bf16>,
    /// Input of a multiplication of many rows in `e4m3`. Empty for weights in `bf16`.
    pub quantized: Placement<u8>,
    /// Scales of the rows of `quantized`. Empty for weights in `bf16`.
    pub row_scales: Placement<f32>,
    /// Logits of shape (rows that want logits, vocab).
    pub logits: Placement<f32>,
    /// Intermediate results of sampling.
    pub sampling: Placement<u64>,
    /// Results of sampling: ids, log-probabilities, and status, a third each.
    pub results: Placement<u32>,
    /// Total bytes.
    pub bytes: usize,
}

impl WorkspaceLayout {
    /// Lays out the workspace for steps within `limits` on a GPU with `multiprocessors` multiprocessors.
    pub fn new(config: &DecoderConfig, format: WeightFormat, limits: &StepLimits, multiprocessors: u32) -> Self {
        let tokens = limits.tokens;
        let rows = limits.rows;
        let quantized = if format == WeightFormat::Fp8 { tokens } else { 0 };
        let widest = config.hidden.max(config.q_width()).max(config.ffn);
        let mut allocator = PlacementAllocator::default();
        Self {
            stream: allocator.place(tokens * config.hidden),
            normed: allocator.place(tokens.max(rows) * config.hidden),
            qkv: allocator.place(tokens * (config.q_width() + 2 * config.kv_width())),
            attended: allocator.place(tokens * config.q_width()),
            gate_up: allocator.place(tokens * 2 * config.ffn),
            activated: allocator.place(tokens * config.ffn),
            partial: allocator.place(partial(config, limits, multiprocessors)),
            arrived: allocator.place(rows * config.kv_heads),
            // For the largest adapters, so loading one never needs more workspace.
            small: allocator.place(tokens * MAX_STACKED * MAX_RANK),
            factors: allocator.place(config.layers * SITES * MAX_ADAPTERS),
            dequantized: allocator.place(dequantized(config, format)),
            quantized: allocator.place(quantized * widest),
            row_scales: allocator.place(quantized),
            logits: allocator.place(rows * config.vocab),
            sampling: allocator.place(rows * SampleTokens::SCRATCH),
            results: allocator.place(3 * rows),
            bytes: allocator.bytes(),
        }
    }
}

/// Returns the number of splits of decoding attention for this number of rows.
pub fn splits(config: &DecoderConfig, limits: &StepLimits, rows: usize, multiprocessors: u32) -> u32 {
    AttendDecode::splits_for(rows as u32, config.kv_heads as u32, multiprocessors, limits.context as u32)
}

/// Returns the number of weights that are dequantized at a time.
fn dequantized(config: &DecoderConfig, format: WeightFormat) -> usize {
    if format == WeightFormat::Bf16 {
        return 0;
    }
    let q = config.q_width();
    let inputs = [(q + 2 * config.kv_width(), config.hidden), (config.hidden, q)];
    let ffn = [(2 * config.ffn, config.hidden), (config.hidden, config.ffn)];
    // Sixteen rows always fit: columns of the product are computed in multiples of that.
    let sizes = inputs.into_iter().chain(ffn).map(|(out, inn)| (out * inn).min(DEQUANTIZED.max(16 * inn)));
    sizes.max().unwrap_or(0)
}

/// Returns the size of the partial results, maximized over the number of rows.
fn partial(config: &DecoderConfig, limits: &StepLimits, multiprocessors: u32) -> usize {
    let values = |rows: usize| {
        let splits = splits(config, limits, rows, multiprocessors);
        AttendDecode::workspace(rows as u32, splits, config.heads as u32, config.head_dim as u32)
    };
    // The size is not monotonic in the number of rows: fewer rows are split into more parts.
    (1..=limits.rows).map(values).max().unwrap_or(0)
}
