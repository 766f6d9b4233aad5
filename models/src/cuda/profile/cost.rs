//! Lower bounds of the memory traffic and arithmetic of a step.

use std::ops::Add;

use super::WorkKind;
use crate::batch::ForwardBatch;
use crate::cuda::driver::{MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::kernel::{SkinnyMatMul, SkinnyTarget, SkinnyWeights};
use crate::decoder::DecoderConfig;

/// Bytes per value in `bf16` and in `f32`.
const HALF: usize = 2;
const SINGLE: usize = 4;

/// Minimum memory traffic and arithmetic of some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkCost {
    /// Bytes read and written, counting each value once per direction.
    pub bytes: usize,
    /// Matrix operations, counting a multiply-add as two.
    pub operations: usize,
}

impl WorkCost {
    /// Cost of a matrix multiplication, padding of its rows included.
    pub(in crate::cuda) fn of(product: &MatMul) -> Self {
        let MatMul { operands, target, rows, inner, columns, .. } = *product;
        let values = rows * inner + inner * columns;
        let operands = match operands {
            MatMulOperands::Half(..) => HALF * values,
            MatMulOperands::Single(..) => SINGLE * values,
            MatMulOperands::Fp8(..) => values + SINGLE * (rows + columns),
        };
        let result = match target {
            MatMulTarget::Half(_) => HALF,
            MatMulTarget::Single(_) => SINGLE,
            MatMulTarget::Sum(_) => 2 * SINGLE,
        };
        Self { bytes: operands + result * rows * columns, operations: 2 * rows * inner * columns }
    }
}

impl WorkCost {
    /// Cost of a matrix multiplication of few rows, padding of its rows included.
    pub(super) fn of_few(product: &SkinnyMatMul) -> Self {
        let SkinnyMatMul { rows, inner, columns, .. } = *product;
        // Per row of the matrix.
        let weights = match product.weights {
            SkinnyWeights::Half(_) => HALF * inner,
            SkinnyWeights::Fp8(..) => inner + SINGLE,
        };
        let result = match product.target {
            SkinnyTarget::Half(_) | SkinnyTarget::SiluMul(_) => HALF,
            SkinnyTarget::Single(_) => SINGLE,
            SkinnyTarget::Sum(_) => 2 * SINGLE,
        };
        Self {
            bytes: HALF * rows * inner + weights * product.weight_rows() + result * rows * columns,
            operations: 2 * rows * inner * product.weight_rows(),
        }
    }
}

impl Add for WorkCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, operations: self.operations + other.operations }
    }
}

/// Size of a step, which determines the costs of its kernels.
pub(in crate::cuda) struct StepLoad<'a> {
    config: &'a DecoderConfig,
    /// Number of new tokens.
    tokens: usize,
    /// Number of rows of logits.
    logits: usize,
    /// Number of cache positions that are attended to.
    seen: usize,
    /// Number of pairs of a new token and a position it attends to.
    pairs: usize,
}

impl<'a> StepLoad<'a> {
    /// Size of a step, without its padding.
    pub(in crate::cuda) fn of(config: &'a DecoderConfig, batch: &ForwardBatch) -> Self {
        let rows = || batch.rows().iter().map(|row| (row.start, row.tokens.len()));
        Self {
            config,
            tokens: batch.tokens().len(),
            logits: batch.logit_rows(),
            seen: rows().map(|(start, new)| start + new).sum(),
            // Each token attends to itself and to all tokens before it.
            pairs: rows().map(|(start, new)| new * start + new * (new + 1) / 2).sum(),
        }
    }

    /// Returns the total cost of one kind of work in the step. `None` for LoRA, whose cost depends on the adapters, for
    /// matrix multiplications, which are counted per launch, for conversions to and from `e4m3`, which the model does
    /// not need, and for kernels that only training launches.
    pub(super) fn cost(&self, work: WorkKind) -> Option<WorkCost> {
        let Self { config, tokens, logits, seen, pairs } = *self;
        let layers = config.layers;
        let q = config.q_width();
        let kv = config.kv_width();
        let moved = |bytes: usize| Some(WorkCost { bytes, operations: 0 });
        match work {
            WorkKind::Embedding => moved(tokens * config.hidden * (HALF + SINGLE)),
            WorkKind::Norm => moved((2 * layers * tokens + logits) * config.hidden * (SINGLE + HALF)),
            WorkKind::Rotary => moved(layers * tokens * (q + 2 * kv) * 2 * HALF),
            WorkKind::Attention => Some(WorkCost {
                bytes: layers * (seen * 2 * kv + tokens * 2 * q) * HALF,
                operations: layers * pairs * 4 * q,
            }),
            WorkKind::Activation => moved(layers * tokens * 3 * config.ffn * HALF),
            WorkKind::Sampling => moved(logits * config.vocab * SINGLE),
            WorkKind::MatMul { .. }
            | WorkKind::Dequantization
            | WorkKind::Quantization
            | WorkKind::Adapters
            | WorkKind::Learning => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::batch::LogitPositions;
    use crate::cuda::toy::llama;

    #[test]
    fn costs_count_each_value_once_and_each_pair_of_positions() {
        // Two layers, a residual stream of 128, queries 256 and keys 128 wide.
        let config = llama();
        let mut batch = ForwardBatch::new();
        batch.push(&[1], 9, &[0], None, LogitPositions::Last);
        batch.push(&[1, 2, 3], 2, &[1], None, LogitPositions::Nothing);
        let load = StepLoad::of(&config, &batch);
        assert_eq!((load.tokens, load.logits, load.seen, load.pairs), (4, 1, 10 + 5, 10 + 3 + 4 + 5));
        let cost = |work| load.cost(work).unwrap();
        assert_eq!(cost(WorkKind::Norm), WorkCost { bytes: (4 * 4 + 1) * 128 * 6, operations: 0 });
        let attention = WorkCost { bytes: 2 * (15 * 256 + 4 * 512) * 2, operations: 2 * 22 * 4 * 256 };
        assert_eq!(cost(WorkKind::Attention), attention);
        assert_eq!(cost(WorkKind::Rotary).bytes, 2 * 4 * 512 * 4);
        assert_eq!(cost(WorkKind::Sampling).bytes, 61 * 4);
        assert_eq!(load.cost(WorkKind::Adapters), None);
    }
}
