//! Paged cache of keys and values.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use half::f16;

use super::DecoderConfig;
use crate::Arithmetic;
use crate::kernel::attention::HeadLayout;

/// Storage precision of keys and values. Computation is in `f32` in all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvKind {
    /// Single precision: logits equal those of a computation without a cache.
    #[default]
    F32,
    /// Half precision: half the memory and memory traffic, at a relative error of 2⁻¹¹ per value. Values beyond ±65,504
    /// are clamped to ±65,504.
    F16,
    /// Bytes with a half-precision scale per token, head, and key or value: about a quarter of the memory and memory
    /// traffic (25.8 % with heads of 64). The error is at most 1/220 of the largest magnitude in a head's value, or in
    /// its key after rotation. Values beyond ±65,504 are clamped to ±65,504.
    Int8,
}

impl KvKind {
    /// Precision that rounds no more than the arithmetic does: half precision for arithmetic that rounds its operands,
    /// single precision for `f32`.
    pub fn suited_to(arithmetic: Arithmetic) -> Self {
        match arithmetic {
            Arithmetic::F32 => Self::F32,
            Arithmetic::Bf16 | Arithmetic::Int16 => Self::F16,
        }
    }

    /// Number of bytes in one layer's share of a block.
    pub(crate) fn block_bytes(self, heads: HeadLayout) -> usize {
        match self {
            Self::F32 => heads.block_len::<f32>() * size_of::<f32>(),
            Self::F16 => heads.block_len::<f16>() * size_of::<f16>(),
            Self::Int8 => heads.block_len::<i8>(),
        }
    }
}

impl fmt::Display for KvKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for KvKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "int8" => Ok(Self::Int8),
            _ => Err("`f32`, `f16` or `int8`"),
        }
    }
}

/// Keys and values of all layers, in blocks of [`BLOCK`](crate::BLOCK) tokens referenced by block tables.
///
/// Every layer has its own pool, or all layers share one in turn. A block stores, head by head, transposed keys
/// followed by values and their scales (see `HeadLayout::block_len`), in the order that the attention kernel reads
/// them.
pub struct KvCache {
    heads: HeadLayout,
    kind: KvKind,
    /// Number of layers.
    layers: usize,
    /// Pool of each layer, or a single pool for all layers.
    pools: Vec<Pool>,
    blocks: usize,
    /// Last step that wrote to each block, with the index of the table entry that named the block. Step 0 stands for a
    /// block that was never written to.
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
    /// Blocks of a [`KvKind::Int8`] cache.
    Int8(&'a mut [i8]),
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
        let pools = (0..layers).map(|_| Pool::new(blocks * kind.block_bytes(heads))).collect();
        Self { heads, kind, layers, pools, blocks, writers: vec![(0, 0); blocks], step: 0, touched: 0 }
    }

    /// Creates an `f32` cache that holds one layer at a time, for steps whose rows all begin at position 0. No later
    /// step finds the keys and values of the earlier layers.
    pub(crate) fn single_layer(config: &DecoderConfig, blocks: usize) -> Self {
        Self { layers: config.layers, ..Self::new(KvKind::F32, config.head_layout(), 1, blocks) }
    }

    /// Memory of a cache created by [`single_layer`](Self::single_layer), in bytes.
    pub(crate) fn single_layer_bytes(config: &DecoderConfig, blocks: usize) -> usize {
        blocks * KvKind::F32.block_bytes(config.head_layout())
    }

    /// Returns `true` if later steps find the keys and values of all layers.
    pub(crate) fn keeps_layers(&self) -> bool {
        self.pools.len() == self.layers
    }

    /// Physical memory of the blocks, in bytes. A block has none before its first write.
    pub fn bytes(&self) -> usize {
        self.touched * self.pools.len() * self.block_bytes()
    }

    /// Allocates the physical memory of every block now.
    pub fn reserve(&mut self) {
        for pool in &mut self.pools {
            // Without `black_box`, the compiler could skip writing zeros to memory that is already zero.
            black_box(&mut pool.data).fill(0.0);
        }
        // Pretends that a step wrote to every block, so later steps remain distinguishable.
        self.step += 1;
        self.writers.fill((self.step, 0));
        self.touched = self.blocks;
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Copies the keys and values of block `from` to block `to`, in every layer. Returns `false`, and copies nothing,
    /// if the pool lacks either block.
    pub fn copy_block(&mut self, from: usize, to: usize) -> bool {
        if from.max(to) >= self.blocks {
            return false;
        }
        let bytes = self.block_bytes();
        for pool in &mut self.pools {
            pool.values::<u8>().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
        }
        let writer = &mut self.writers[to];
        if writer.0 == 0 {
            self.touched += 1;
            // Step 0 means "never written to", so a copy before the first step counts as step 1.
            self.step = self.step.max(1);
            *writer = (self.step, 0);
        }
        true
    }

    /// Storage precision of keys and values.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// Number of bytes in one layer's share of a block.
    fn block_bytes(&self) -> usize {
        self.kind.block_bytes(self.heads)
    }

    pub(crate) fn heads(&self) -> HeadLayout {
        self.heads
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers
    }

    pub(crate) fn layer_mut(&mut self, index: usize) -> LayerMut<'_> {
        let place = if self.keeps_layers() { index } else { 0 };
        let pool = &mut self.pools[place];
        match self.kind {
            KvKind::F32 => LayerMut::F32(pool.values()),
            KvKind::F16 => LayerMut::F16(pool.values()),
            KvKind::Int8 => LayerMut::Int8(pool.values()),
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

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("kind", &self.kind)
            .field("layers", &self.layers)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: HeadLayout = HeadLayout { query: 4, kv: 2, dim: 16 };
    const KINDS: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Int8];

    #[test]
    fn precisions_are_read_and_written() {
        for (text, kind) in [("f32", KvKind::F32), ("f16", KvKind::F16), ("int8", KvKind::Int8)] {
            assert_eq!(text.parse(), Ok(kind));
            assert_eq!(kind.to_string(), text);
        }
        for text in ["", "F16", "bf16", "q8_0"] {
            assert_eq!(text.parse::<KvKind>(), Err("`f32`, `f16` or `int8`"), "{text}");
        }
    }

    #[test]
    fn a_copied_block_has_the_same_bytes_in_every_layer() {
        for kind in KINDS {
            let mut cache = KvCache::new(kind, HEADS, 2, 4);
            let len = cache.block_bytes();
            let bytes = |cache: &mut KvCache, layer: usize, block: usize| {
                cache.pools[layer].values::<u8>()[block * len..(block + 1) * len].to_vec()
            };
            cache.begin_step();
            assert!(cache.claim(1, 0));
            for layer in 0..2 {
                let own = &mut cache.pools[layer].values::<u8>()[len..2 * len];
                // No part of the block has a length divisible by 251, so each byte must come from its own place.
                own.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251 + layer + 1) as u8);
            }
            let one = cache.bytes();
            assert!(cache.copy_block(1, 3));
            assert_eq!(cache.bytes(), 2 * one);
            for layer in 0..2 {
                assert_eq!(bytes(&mut cache, layer, 3), bytes(&mut cache, layer, 1));
                assert!(bytes(&mut cache, layer, 2).iter().all(|byte| *byte == 0));
            }
            assert!(!cache.copy_block(1, 4) && !cache.copy_block(4, 1));
        }
    }

    #[test]
    fn a_block_that_is_copied_before_the_first_step_takes_memory_once() {
        let mut cache = KvCache::new(KvKind::F32, HEADS, 2, 4);
        assert!(cache.copy_block(0, 1));
        let one = cache.bytes();
        cache.begin_step();
        assert!(one > 0 && cache.claim(1, 3));
        assert_eq!(cache.bytes(), one);
    }

    #[test]
    fn a_block_takes_memory_once_and_reserved_ones_have_theirs() {
        // Keys and values of 2 heads of 16 values, and their scales.
        for (kind, token) in
            [(KvKind::F32, 2 * 2 * 16 * 4), (KvKind::F16, 2 * 2 * 16 * 2), (KvKind::Int8, 2 * 2 * (16 + 2))]
        {
            let mut cache = KvCache::new(kind, HEADS, 3, 8);
            let block = token * 16 * 3;
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
