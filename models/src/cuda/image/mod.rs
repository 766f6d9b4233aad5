//! One step's layout, written into one piece of memory and copied to the card.
//!
//! Every part has a place that does not depend on the step, so that a recorded graph finds it; block tables come last, each
//! with room for the longest sequence, of which only what a step uses is copied ([`Image::pieces`]). Rows of one new token come first, whatever their place in the batch:
//! they are what decoding attention takes. Logits stay in the batch's order.

mod fill;

use crate::batch::BLOCK;
use crate::cuda::kernel::{LoraTile, SampleRow, prefill_tiles};
use crate::cuda::plan::{Carver, Limits, Place};
use crate::decoder::DecoderConfig;

pub use fill::{Filler, Step};

/// Where the parts of a step's layout lie. What they mean is said at [`BatchView`](super::kernel::BatchView) and at the
/// kernels that read them.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// Per token.
    pub tokens: Place<u32>,
    /// Per token.
    pub positions: Place<u32>,
    /// Per token.
    pub rows: Place<u32>,
    /// Per row.
    pub first: Place<u32>,
    /// Per row.
    pub context: Place<u32>,
    /// Per row of logits: the token whose place in the stream it comes from.
    pub wanted: Place<u32>,
    /// Per row of logits.
    pub samples: Place<SampleRow>,
    /// Pairs of a row and which of its tiles.
    pub tiles: Place<u32>,
    /// Tokens of adapters.
    pub lora: Place<LoraTile>,
    /// The order that those refer to.
    pub order: Place<u32>,
    /// Per row, `stride` entries.
    pub tables: Place<u32>,
    /// Entries from one row's table to the next.
    pub stride: usize,
    /// Bytes of all together.
    pub bytes: usize,
}

/// Bytes of the image that are copied together: `rows` times `width` bytes, each `pitch` bytes behind the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first byte.
    pub first: usize,
    /// Bytes of one row.
    pub width: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Rows; none where there is nothing to copy.
    pub rows: usize,
}

/// Bytes of block tables up to which they are copied together with what is before them, used or not: less than another copy
/// takes to begin.
const TOGETHER: usize = 32 << 10;

impl Image {
    /// What has to be copied for a step: everything up to the tables, and of those as many entries per row as the longest
    /// has.
    pub fn pieces(&self, step: &Step) -> [Piece; 2] {
        let whole = |end: usize| Piece { first: 0, width: end, pitch: end, rows: 1 };
        let (first, pitch) = (self.tables.first(), self.stride * size_of::<u32>());
        // Sixteen entries are as quickly copied as one.
        let width = (step.width.next_multiple_of(16) * size_of::<u32>()).min(pitch);
        let tables = Piece { first, width, pitch, rows: step.rows };
        if step.rows * pitch <= TOGETHER || width == pitch {
            return [whole(first + step.rows * pitch), Piece { rows: 0, ..tables }];
        }
        [whole(first), tables]
    }

    /// For steps within `limits`.
    pub fn new(config: &DecoderConfig, limits: &Limits) -> Self {
        let (tokens, rows, stride) = (limits.tokens, limits.rows, limits.context.div_ceil(BLOCK));
        let mut carver = Carver::default();
        Self {
            tokens: carver.place(tokens),
            positions: carver.place(tokens),
            rows: carver.place(tokens),
            first: carver.place(rows),
            context: carver.place(rows),
            wanted: carver.place(rows),
            samples: carver.place(rows),
            tiles: carver.place(2 * most_tiles(config, limits)),
            lora: carver.place(tokens),
            order: carver.place(tokens),
            tables: carver.place(rows * stride),
            stride,
            bytes: carver.bytes(),
        }
    }
}

/// The most tiles that prefill attention cuts a step into: each row may leave its last one nearly empty.
fn most_tiles(config: &DecoderConfig, limits: &Limits) -> usize {
    let whole = prefill_tiles(limits.tokens as u32, config.heads as u32, config.kv_heads as u32);
    whole as usize + limits.rows
}

#[cfg(test)]
mod tests;
