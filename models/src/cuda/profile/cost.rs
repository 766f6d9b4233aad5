//! What work asks of a card at least.

use std::ops::Add;

use super::Work;
use crate::batch::ForwardBatch;
use crate::cuda::driver::{Operands, Product, Target};
use crate::decoder::DecoderConfig;

/// Bytes of a value in `bf16` and in `f32`.
const HALF: usize = 2;
const SINGLE: usize = 4;

/// What some work asks of a card at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes read and written, each value once.
    pub bytes: usize,
    /// Operations on matrices; a multiplication and an addition are two.
    pub operations: usize,
}

impl Cost {
    /// A product's, padding of its rows included.
    pub(super) fn of(product: &Product) -> Self {
        let Product { operands, target, rows, inner, columns, .. } = *product;
        let operand = match operands {
            Operands::Half(..) => HALF,
            Operands::Single(..) => SINGLE,
        };
        let result = match target {
            Target::Half(_) => HALF,
            Target::Single(_) => SINGLE,
            Target::Sum(_) => 2 * SINGLE,
        };
        Self {
            bytes: operand * (rows * inner + inner * columns) + result * rows * columns,
            operations: 2 * rows * inner * columns,
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, operations: self.operations + other.operations }
    }
}

/// What the costs of a step's kernels depend on.
pub(in crate::cuda) struct Load<'a> {
    config: &'a DecoderConfig,
    /// New tokens.
    tokens: usize,
    /// Rows of logits.
    logits: usize,
    /// Positions of the cache that are looked at.
    seen: usize,
    /// Pairs of a new token and a position it looks at.
    pairs: usize,
}

impl<'a> Load<'a> {
    /// Of a step, without its padding.
    pub(in crate::cuda) fn of(config: &'a DecoderConfig, batch: &ForwardBatch) -> Self {
        let rows = || batch.rows().iter().map(|row| (row.start, row.tokens.len()));
        Self {
            config,
            tokens: batch.tokens().len(),
            logits: batch.logit_rows(),
            seen: rows().map(|(start, new)| start + new).sum(),
            // Each token looks at itself and at those before it.
            pairs: rows().map(|(start, new)| new * start + new * (new + 1) / 2).sum(),
        }
    }

    /// What all the step's work of a kind costs, where that is known from the step alone: not what depends on adapters, and
    /// not products, which say themselves.
    pub(super) fn cost(&self, work: Work) -> Option<Cost> {
        let Self { config, tokens, logits, seen, pairs } = *self;
        let (layers, q, kv) = (config.layers, config.q_width(), config.kv_width());
        let moved = |bytes: usize| Some(Cost { bytes, operations: 0 });
        match work {
            Work::Embedding => moved(tokens * config.hidden * (HALF + SINGLE)),
            Work::Norm => moved((2 * layers * tokens + logits) * config.hidden * (SINGLE + HALF)),
            Work::Rotary => moved(layers * tokens * (q + 2 * kv) * 2 * HALF),
            Work::Attention => Some(Cost {
                bytes: layers * (seen * 2 * kv + tokens * 2 * q) * HALF,
                operations: layers * pairs * 4 * q,
            }),
            Work::Activation => moved(layers * tokens * 3 * config.ffn * HALF),
            Work::Sampling => moved(logits * config.vocab * SINGLE),
            Work::Product { .. } | Work::Adapters | Work::Learning => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::batch::Want;
    use crate::cuda::toy::llama;

    #[test]
    fn costs_count_each_value_once_and_each_pair_of_positions() {
        // Two layers, a stream of 128, queries 256 and keys 128 wide.
        let config = llama();
        let mut batch = ForwardBatch::new();
        batch.push(&[1], 9, &[0], None, Want::Last);
        batch.push(&[1, 2, 3], 2, &[1], None, Want::Nothing);
        let load = Load::of(&config, &batch);
        assert_eq!((load.tokens, load.logits, load.seen, load.pairs), (4, 1, 10 + 5, 10 + 3 + 4 + 5));
        let cost = |work| load.cost(work).unwrap();
        assert_eq!(cost(Work::Norm), Cost { bytes: (4 * 4 + 1) * 128 * 6, operations: 0 });
        let attention = Cost { bytes: 2 * (15 * 256 + 4 * 512) * 2, operations: 2 * 22 * 4 * 256 };
        assert_eq!(cost(Work::Attention), attention);
        assert_eq!(cost(Work::Rotary).bytes, 2 * 4 * 512 * 4);
        assert_eq!(cost(Work::Sampling).bytes, 61 * 4);
        assert_eq!(load.cost(Work::Adapters), None);
    }
}
