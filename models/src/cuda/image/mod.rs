//! One step's layout, written into one piece of memory and copied to the card at once.
//!
//! Every part has a place that does not depend on the step, so that a recorded graph finds it; block tables come last, so
//! that only as much as a step's rows need is copied. Rows of one new token come first, whatever their place in the batch:
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

impl Image {
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
