//! Where keys and values lie in the cache.
//!
//! A layer's cache has shape (blocks, kv heads, 2, [`BLOCK`] · dim) in `bf16`: keys, then values.

use crate::batch::BLOCK;

/// Head widths that kernels exist for.
pub const HEAD_DIMS: [usize; 4] = [64, 80, 96, 128];

/// The most query heads per key and value head that decoding takes: rows of one `mma` tile.
pub const LARGEST_GROUP: usize = 16;

/// Values one block takes in one layer.
pub fn block_len(kv_heads: usize, dim: usize) -> usize {
    kv_heads * 2 * BLOCK * dim
}

/// Place of one value of a key within its head's share of a block: `[token][dim]`.
pub fn key(token: usize, at: usize, dim: usize) -> usize {
    token * dim + at
}

/// Place of one value of a value vector within its head's share of a block.
///
/// In a product of probabilities (16 rows × 16 tokens) with values (16 tokens × 8 dims), lane `4 g + t` of a warp holds
/// of the latter tokens `2t`, `2t + 1`, `2t + 8`, `2t + 9` of dim `g`. Two such products for neighbouring dims make
/// sixteen bytes per lane: `[dim / 16][lane][dim / 8 % 2][token / 8][token % 2]`.
pub fn value(token: usize, at: usize, dim: usize) -> usize {
    let lane = (at % 8) * 4 + token % 8 / 2;
    let slot = token / 8 * 2 + token % 2;
    BLOCK * dim + ((at / 16 * 32 + lane) * 2 + at / 8 % 2) * 4 + slot
}
