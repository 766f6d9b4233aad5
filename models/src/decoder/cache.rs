//! The paged cache of keys and values.

use std::fmt;
use std::hint::black_box;

use half::f16;

use crate::batch::BLOCK;
use crate::kernel::attention::Heads;
use crate::kernel::lanes::Stored;

/// How keys and values are kept; computation is in `f32` either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvKind {
    /// As computed: logits are those of the whole model in `f32`.
    #[default]
    F32,
    /// In half precision, for half the memory and half the reading, at a relative error of 2⁻¹¹ per value. Values beyond
    /// ±65,504 become infinite.
    F16,
}

impl KvKind {
    /// Bytes per value.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
        }
    }
}

/// Keys and values of all layers, in blocks of [`BLOCK`] tokens that block tables name.
///
/// Every layer has its own pool; inside it a block holds, head by head, keys transposed and then values
/// (see [`Heads::block_len`]), as the attention kernel wants to read them.
pub struct KvCache {
    heads: Heads,
    kind: KvKind,
    layers: Vec<Pool>,
    blocks: usize,
    /// Per block, the last step that wrote to it and the table entry it was named by.
    writers: Vec<(u64, usize)>,
    step: u64,
    /// Blocks that have been written to at least once.
    touched: usize,
}

/// One layer's blocks.
pub(crate) enum LayerMut<'a> {
    /// Of a [`KvKind::F32`] cache.
    F32(&'a mut [f32]),
    /// Of a [`KvKind::F16`] cache.
    F16(&'a mut [f16]),
}

/// Memory that begins at a cache line. Untouched parts cost nothing: the system hands out zeroed pages when they are
/// first written.
struct Pool {
    /// Words of `f32`, whatever is kept in them.
    data: Vec<f32>,
    first: usize,
}

/// Values of `f32` in a cache line.
const LINE: usize = 16;

/// Where the keys and values of one token go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Position in its sequence.
    pub(crate) position: usize,
    /// Block in the pool.
    pub(crate) block: usize,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let data = vec![0.0; bytes / size_of::<f32>() + LINE];
        let first = data.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Self { data, first }
    }

    fn values<S: bytemuck::Pod>(&mut self) -> &mut [S] {
        let len = self.data.len() - LINE;
        bytemuck::cast_slice_mut(&mut self.data[self.first..self.first + len])
    }
}

impl KvCache {
    pub(crate) fn new(kind: KvKind, heads: Heads, layers: usize, blocks: usize) -> Self {
        let layers = (0..layers).map(|_| Pool::new(blocks * heads.block_len() * kind.size())).collect();
        Self { heads, kind, layers, blocks, writers: vec![(0, 0); blocks], step: 0, touched: 0 }
    }

    /// Bytes that the blocks have taken from the system: one has no memory before it is first written.
    pub fn bytes(&self) -> usize {
        self.touched * self.layers.len() * self.heads.block_len() * self.kind.size()
    }

    /// Takes the memory of every block now.
    pub fn reserve(&mut self) {
        for pool in &mut self.layers {
            // What is known to be zero would not have to be written.
            black_box(&mut pool.data).fill(0.0);
        }
        // As if a step had written to all of them.
        self.step += 1;
        self.writers.fill((self.step, 0));
        self.touched = self.blocks;
    }

    /// Blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// How keys and values are kept.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    pub(crate) fn heads(&self) -> Heads {
        self.heads
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn layer_mut(&mut self, index: usize) -> LayerMut<'_> {
        match self.kind {
            KvKind::F32 => LayerMut::F32(self.layers[index].values()),
            KvKind::F16 => LayerMut::F16(self.layers[index].values()),
        }
    }

    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Notes that the table entry `entry` of the step's batch names `block` for writing; false when another one does too.
    pub(crate) fn claim(&mut self, block: usize, entry: usize) -> bool {
        let writer = &mut self.writers[block];
        self.touched += usize::from(writer.0 == 0);
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
    pub(crate) unsafe fn store<S: Stored>(self, keys: &[f32], values: &[f32], dim: usize, to: *mut S) {
        let slot = self.position % BLOCK;
        let head_len = 2 * BLOCK * dim;
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            // SAFETY: inside the head's share, (dim, BLOCK) keys and then (BLOCK, dim) values, by the caller's promise.
            // Single values are written, since other threads may write to other slots of the same block.
            unsafe {
                let to = to.add(head * head_len);
                for (d, &key) in key.iter().enumerate() {
                    to.add(d * BLOCK + slot).write(S::keep(key));
                }
                let to = to.add(BLOCK * dim + slot * dim);
                for (d, &value) in value.iter().enumerate() {
                    to.add(d).write(S::keep(value));
                }
            }
        }
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("kind", &self.kind)
            .field("layers", &self.layers.len())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { query: 4, kv: 2, dim: 16 };

    #[test]
    fn a_block_takes_memory_once_and_reserved_ones_have_theirs() {
        for kind in [KvKind::F32, KvKind::F16] {
            let mut cache = KvCache::new(kind, HEADS, 3, 8);
            // Keys and values of 2 heads of 16 values for 16 tokens in 3 layers.
            let block = 2 * 2 * 16 * 16 * 3 * kind.size();
            assert_eq!(cache.bytes(), 0);
            for (blocks, taken) in [([2, 5], 2), ([5, 2], 2), ([5, 7], 3)] {
                cache.begin_step();
                assert!(blocks.iter().enumerate().all(|(entry, &at)| cache.claim(at, entry)));
                assert_eq!(cache.bytes(), taken * block);
            }
            cache.reserve();
            assert_eq!(cache.bytes(), 8 * block);
            cache.begin_step();
            assert!(cache.claim(0, 0) && cache.claim(2, 1) && !cache.claim(2, 5), "steps are told apart as before");
            assert_eq!(cache.bytes(), 8 * block);
        }
    }
}
