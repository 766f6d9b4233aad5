//! The paged cache of keys and values.

use std::fmt;

use crate::batch::BLOCK;
use crate::kernel::attention::Heads;

/// Values in a cache line.
const LINE: usize = 16;

/// Keys and values of all layers, in blocks of [`BLOCK`] tokens that block tables name.
///
/// Every layer has its own pool; inside it a block holds, head by head, keys transposed and then values
/// (see [`Heads::block_len`]), as the attention kernel wants to read them.
pub struct KvCache {
    heads: Heads,
    layers: Vec<Pool>,
    blocks: usize,
    /// Per block, the last step that wrote to it and the table entry it was named by.
    writers: Vec<(u64, usize)>,
    step: u64,
}

/// One layer's blocks, beginning at a cache line. Untouched parts cost no memory: the system hands out zeroed pages
/// when they are first written.
struct Pool {
    data: Vec<f32>,
    first: usize,
}

/// Where the keys and values of one token go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Position in its sequence.
    pub(crate) position: usize,
    /// Block in the pool.
    pub(crate) block: usize,
}

impl Pool {
    fn new(len: usize) -> Self {
        let data = vec![0.0; len + LINE];
        let first = data.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Self { data, first }
    }
}

impl KvCache {
    pub(crate) fn new(heads: Heads, layers: usize, blocks: usize) -> Self {
        let layers = (0..layers).map(|_| Pool::new(blocks * heads.block_len())).collect();
        Self { heads, layers, blocks, writers: vec![(0, 0); blocks], step: 0 }
    }

    pub(crate) fn heads(&self) -> Heads {
        self.heads
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn layer(&self, index: usize) -> &[f32] {
        let pool = &self.layers[index];
        &pool.data[pool.first..pool.first + self.blocks * self.heads.block_len()]
    }

    pub(crate) fn layer_mut(&mut self, index: usize) -> &mut [f32] {
        let pool = &mut self.layers[index];
        &mut pool.data[pool.first..pool.first + self.blocks * self.heads.block_len()]
    }

    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Notes that the table entry `entry` of the step's batch names `block` for writing; false when another one does too.
    pub(crate) fn claim(&mut self, block: usize, entry: usize) -> bool {
        let writer = &mut self.writers[block];
        let free = writer.0 != self.step || writer.1 == entry;
        *writer = (self.step, entry);
        free
    }
}

impl Place {
    /// Writes one token's keys and values, all heads end to end, into its block, which begins at `to`.
    ///
    /// # Safety
    /// `to` is the start of a block of `keys.len() / dim` heads of width `dim`, and no other thread touches this place.
    pub(crate) unsafe fn store(self, keys: &[f32], values: &[f32], dim: usize, to: *mut f32) {
        let slot = self.position % BLOCK;
        let head_len = 2 * BLOCK * dim;
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            // SAFETY: inside the head's share, (dim, BLOCK) keys and then (BLOCK, dim) values, by the caller's promise.
            // Single values are written, since other threads may write to other slots of the same block.
            unsafe {
                let to = to.add(head * head_len);
                for (d, &key) in key.iter().enumerate() {
                    to.add(d * BLOCK + slot).write(key);
                }
                let to = to.add(BLOCK * dim + slot * dim);
                to.copy_from_nonoverlapping(value.as_ptr(), dim);
            }
        }
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("layers", &self.layers.len())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
