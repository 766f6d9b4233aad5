//! Layout of a step's inputs in one buffer, which is copied to the GPU.
//!
//! Each part has a fixed offset and room for the largest step, so captured graphs stay valid; only the used pieces
//! of it are copied ([`StepLayout::pieces`]). Rows with one new token come before the others, as decoding attention
//! requires; logits keep the order of the batch.

mod adjustments;
mod writer;

use crate::batch::BLOCK;
use crate::cuda::kernel::{LoraTile, SampleRow, prefill_tiles};
use crate::cuda::plan::{Placement, PlacementAllocator, StepLimits};
use crate::decoder::DecoderConfig;

pub use writer::{StepShape, StepWriter};

/// Placements of the parts of a step's inputs. Their meaning is documented at [`BatchView`](super::kernel::BatchView)
/// and at the kernels that read them.
#[derive(Debug, Clone, Copy)]
pub struct StepLayout {
    /// Token ids, per token.
    pub tokens: Placement<u32>,
    /// Positions, per token.
    pub positions: Placement<u32>,
    /// Row indices, per token.
    pub rows: Placement<u32>,
    /// Index of the first token, per row.
    pub first: Placement<u32>,
    /// Context length, per row.
    pub context: Placement<u32>,
    /// Index of the token that a row of logits is computed from.
    pub wanted: Placement<u32>,
    /// Sampling settings, per row of logits.
    pub samples: Placement<SampleRow>,
    /// Attention tiles: pairs of a row and a tile index within the row.
    pub tiles: Placement<u32>,
    /// Block tables, `stride` entries per row.
    pub tables: Placement<u32>,
    /// Order of tokens that the LoRA tiles refer to.
    pub order: Placement<u32>,
    /// LoRA tiles.
    pub lora: Placement<LoraTile>,
    /// Masks, and lists of penalized and biased tokens, one after the other, of the rows of logits that have them.
    pub adjustments: Placement<u32>,
    /// Number of entries from one row's table to the next.
    pub stride: usize,
    /// Total bytes.
    pub bytes: usize,
}

/// A rectangle of the layout copied at once: `rows` rows of `width` bytes, `pitch` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRect {
    /// Offset of the first byte.
    pub first: usize,
    /// Bytes per row.
    pub width: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Number of rows; 0 when there is nothing to copy.
    pub rows: usize,
}

/// Number of unused bytes up to which two parts are copied together: copying them takes less time than issuing a second
/// copy.
const TOGETHER: usize = 32 << 10;

impl StepLayout {
    /// Returns the pieces to copy for a step: the used entries of each part, and unused ones between them where that
    /// takes less time than another copy.
    pub fn pieces(&self, step: &StepShape) -> Vec<CopyRect> {
        let span = |first: usize, end: usize| CopyRect { first, width: end - first, pitch: end - first, rows: 1 };
        let mut pieces = Vec::with_capacity(5);
        // The three parts per token are equally far apart.
        let apart = self.positions.first() - self.tokens.first();
        let used = step.tokens * size_of::<u32>();
        let mut first = 0;
        if 2 * apart.saturating_sub(used) > TOGETHER {
            pieces.push(CopyRect { first: self.tokens.first(), width: used, pitch: apart, rows: 3 });
            first = self.first.first();
        }
        let pitch = self.stride * size_of::<u32>();
        // Sixteen entries are copied as quickly as one.
        let width = (step.width.next_multiple_of(16) * size_of::<u32>()).min(pitch);
        let tables = CopyRect { first: self.tables.first(), width, pitch, rows: step.rows };
        if step.rows * pitch <= TOGETHER || width == pitch {
            pieces.push(span(first, tables.first + step.rows * pitch));
        } else {
            pieces.push(span(first, self.tiles.part(0, 2 * step.tiles).end()));
            pieces.push(tables);
        }
        // A step of padding is captured with adapters, too.
        if step.lora > 0 || step.rows == 0 {
            let tiles = if step.decode { step.tokens } else { step.lora };
            pieces.push(span(self.order.first(), self.lora.part(0, tiles).end()));
        }
        if step.adjusted > 0 {
            pieces.push(span(self.adjustments.first(), self.adjustments.part(0, step.adjusted).end()));
        }
        pieces
    }

    /// Creates the layout for steps within `limits`.
    pub fn new(config: &DecoderConfig, limits: &StepLimits) -> Self {
        let tokens = limits.tokens;
        let rows = limits.rows;
        let stride = limits.context.div_ceil(BLOCK);
        let mut allocator = PlacementAllocator::default();
        Self {
            tokens: allocator.place(tokens),
            positions: allocator.place(tokens),
            rows: allocator.place(tokens),
            first: allocator.place(rows),
            context: allocator.place(rows),
            wanted: allocator.place(rows),
            samples: allocator.place(rows),
            tiles: allocator.place(2 * most_tiles(config, limits)),
            tables: allocator.place(rows * stride),
            order: allocator.place(tokens),
            lora: allocator.place(tokens),
            adjustments: allocator.place(rows * adjustments::most_words(config.vocab)),
            stride,
            bytes: allocator.bytes(),
        }
    }
}

/// Returns the maximum number of prefill attention tiles: the last tile of each row may be nearly empty.
fn most_tiles(config: &DecoderConfig, limits: &StepLimits) -> usize {
    let whole = prefill_tiles(limits.tokens as u32, config.heads as u32, config.kv_heads as u32);
    whole as usize + limits.rows
}

#[cfg(test)]
mod tests;
