//! Paged cache of keys and values.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use half::f16;

use crate::batch::BLOCK;
use crate::kernel::attention::HeadLayout;
use crate::kernel::lanes::Stored;

/// Storage precision of keys and values. Computation is in `f32` in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvKind {
    /// Single precision: logits equal those of a computation without a cache.
    #[default]
    F32,
    /// Half precision: half the memory and memory traffic, at a relative error of 2⁻¹¹ per value. Values beyond
    /// ±65,504 are stored as these.
    F16,
}

impl KvKind {
    /// Number of bytes per value.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
        }
    }
}

impl fmt::Display for KvKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for KvKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            _ => Err("`f32` or `f16`"),
        }
    }
}

/// Keys and values of all layers, in blocks of [`BLOCK`] tokens referenced by block tables.
///
/// Every layer has its own pool. A block stores, head by head, transposed keys followed by values (see
/// [`HeadLayout::block_len`]), in the order that the attention kernel reads them.
pub struct KvCache {
    heads: HeadLayout,
    kind: KvKind,
    layers: Vec<Pool>,
    blocks: usize,
    /// Last step that wrote to each block, with the index of the table entry that named the block.
    writers: Vec<(u64, usize)>,
    step: u64,
    /// Number of blocks that have been written to at least once.
    touched: usize,
}

/// Mutable blocks of one layer.
pub(crate) enum LayerMut<'a> {
    /// Blocks of a [`KvKind::F32`] cache.
    F32(&'a mut [f32]),
    /// Blocks of a [`KvKind::F16`] cache.
    F16(&'a mut [f16]),
}

/// Memory aligned to a cache line. Untouched pages take no physical memory: the operating system provides zeroed
/// pages on the first write.
struct Pool {
    /// Storage in words of `f32`, whatever the element type.
    data: Vec<f32>,
    first: usize,
}

/// Number of `f32` values in a cache line.
const LINE: usize = 16;

/// Destination of one token's keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenSlot {
    /// Position in the sequence.
    pub(crate) position: usize,
    /// Index of the block in the pool.
    pub(crate) block: usize,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        // One spare line, because the allocator aligns to the element only.
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
    pub(crate) fn new(kind: KvKind, heads: HeadLayout, layers: usize, blocks: usize) -> Self {
        let layers = (0..layers).map(|_| Pool::new(blocks * heads.block_len() * kind.size())).collect();
        Self { heads, kind, layers, blocks, writers: vec![(0, 0); blocks], step: 0, touched: 0 }
    }

    /// Physical memory of the blocks, in bytes. A block has none before its first write.
    pub fn bytes(&self) -> usize {
        self.touched * self.layers.len() * self.heads.block_len() * self.kind.size()
    }

    /// Allocates the physical memory of every block now.
    pub fn reserve(&mut self) {
        for pool in &mut self.layers {
            // Without `black_box`, the compiler could skip writing zeros to memory that is already zero.
            black_box(&mut pool.data).fill(0.0);
        }
        // Pretends that a step wrote to every block, so that later steps remain distinguishable.
        self.step += 1;
        self.writers.fill((self.step, 0));
        self.touched = self.blocks;
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Copies the keys and values of block `from` to block `to`, in every layer. Returns `false`, and copies nothing, if
    /// the pool lacks one of them.
    pub fn copy_block(&mut self, from: usize, to: usize) -> bool {
        if from.max(to) >= self.blocks {
            return false;
        }
        let len = self.heads.block_len();
        let source = from * len..(from + 1) * len;
        for index in 0..self.layers.len() {
            match self.layer_mut(index) {
                LayerMut::F32(values) => values.copy_within(source.clone(), to * len),
                LayerMut::F16(values) => values.copy_within(source.clone(), to * len),
            }
        }
        let writer = &mut self.writers[to];
        if writer.0 == 0 {
            self.touched += 1;
            *writer = (self.step, 0);
        }
        true
    }

    /// Storage precision of keys and values.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    pub(crate) fn heads(&self) -> HeadLayout {
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

    /// Records that the table entry `entry` of the step's batch names `block` for writing. Returns `false` if
    /// another entry of the same step does too.
    pub(crate) fn claim(&mut self, block: usize, entry: usize) -> bool {
        let writer = &mut self.writers[block];
        self.touched += usize::from(writer.0 == 0);
        let free = writer.0 != self.step || writer.1 == entry;
        *writer = (self.step, entry);
        free
    }
}

impl TokenSlot {
    /// Writes one token's keys and values, all heads end to end, into its block, which begins at `to`.
    ///
    /// # Safety
    /// `to` must be the start of a block of `keys.len() / dim` heads of width `dim`, and no other thread may access
    /// this token's slot.
    pub(crate) unsafe fn store<S: Stored>(self, keys: &[f32], values: &[f32], dim: usize, to: *mut S) {
        let slot = self.position % BLOCK;
        let head_len = 2 * BLOCK * dim;
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            // SAFETY: inside the head's share of (dim, BLOCK) keys followed by (BLOCK, dim) values, as the caller
            // guarantees. Values are written one by one, because other threads may write to other slots of the same
            // block.
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

    const HEADS: HeadLayout = HeadLayout { query: 4, kv: 2, dim: 16 };

    #[test]
    fn precisions_are_read_and_written() {
        for (text, kind) in [("f32", KvKind::F32), ("f16", KvKind::F16)] {
            assert_eq!(text.parse(), Ok(kind));
            assert_eq!(kind.to_string(), text);
        }
        for text in ["", "F16", "bf16", "q8"] {
            assert_eq!(text.parse::<KvKind>(), Err("`f32` or `f16`"), "{text}");
        }
    }

    #[test]
    fn half_precision_holds_no_infinity() {
        assert_eq!([1e9, f32::INFINITY, -1e9, 0.5].map(f16::keep), [f16::MAX, f16::MAX, f16::MIN, f16::from_f32(0.5)]);
    }

    #[test]
    fn a_copied_block_has_the_same_values_in_every_layer() {
        let mut cache = KvCache::new(KvKind::F16, HEADS, 2, 4);
        let len = HEADS.block_len();
        let values = |cache: &mut KvCache, layer: usize, block: usize| match cache.layer_mut(layer) {
            LayerMut::F16(values) => values[block * len..(block + 1) * len].to_vec(),
            LayerMut::F32(_) => Vec::new(),
        };
        cache.begin_step();
        assert!(cache.claim(1, 0));
        for layer in 0..2 {
            if let LayerMut::F16(values) = cache.layer_mut(layer) {
                let own = values[len..2 * len].iter_mut().zip(1u8..=250);
                own.for_each(|(value, number)| *value = f16::from_f32(f32::from(number) + layer as f32));
            }
        }
        let one = cache.bytes();
        assert!(cache.copy_block(1, 3));
        assert_eq!(cache.bytes(), 2 * one);
        for layer in 0..2 {
            assert_eq!(values(&mut cache, layer, 3), values(&mut cache, layer, 1));
            assert!(values(&mut cache, layer, 2).iter().all(|value| *value == f16::ZERO));
        }
        assert!(!cache.copy_block(1, 4) && !cache.copy_block(4, 1));
    }

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
