//! Layout of keys and values in the KV cache.
//!
//! The cache of a layer has shape (blocks, kv heads, 2, [`BLOCK`] · dim) in `bf16`: keys, then values.

use crate::batch::BLOCK;

/// Head widths supported by the kernels.
pub const HEAD_DIMS: [usize; 4] = [64, 80, 96, 128];

/// Maximum number of query heads per key/value head: the number of rows of an `mma` tile.
pub const LARGEST_GROUP: usize = 16;

/// Returns the number of values of one block in one layer.
pub fn block_len(kv_heads: usize, dim: usize) -> usize {
    kv_heads * 2 * BLOCK * dim
}

/// Returns the offset of an element of a key within its head's share of a block: `[token][dim]`.
pub fn key(token: usize, at: usize, dim: usize) -> usize {
    token * dim + at
}

/// Returns the offset of an element of a value vector within its head's share of a block.
///
/// In a multiplication of probabilities (16 rows × 16 tokens) by values (16 tokens × 8 dims), lane `4 g + t` of a warp
/// holds the elements of tokens `2t`, `2t + 1`, `2t + 8`, `2t + 9` at dim `g`. Two such multiplications for neighboring
/// dims make sixteen bytes per lane: `[dim / 16][lane][dim / 8 % 2][token / 8][token % 2]`.
pub fn value(token: usize, at: usize, dim: usize) -> usize {
    let lane = (at % 8) * 4 + token % 8 / 2;
    let slot = token / 8 * 2 + token % 2;
    BLOCK * dim + ((at / 16 * 32 + lane) * 2 + at / 8 % 2) * 4 + slot
}
