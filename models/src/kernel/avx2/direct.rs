//! Products of one or two rows with blocks of quants that are unpacked in registers. For so few rows, writing the weights
//! to the scratch and reading them again takes longer than the products.

use std::arch::x86_64::*;

use super::{LANES, byte_weights};
use crate::kernel::layout::{BLOCK, Bits, BlockForm, PANEL};
use crate::kernel::prefetch::prefetch;

/// Maximum number of rows: their sums take 8 of 16 registers.
pub(super) const ROWS: usize = 2;

/// Number of vectors in half a panel.
const HALF: usize = 2;
/// Number of input indices whose nibbles are in one word.
const GROUP: usize = 8;
/// Prefetch distance in bytes; the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 4096;

/// Adjacent blocks of a panel.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) form: BlockForm,
    pub(super) from: *const u8,
    pub(super) count: usize,
}

/// Adds the products of `rows` rows, 1 or [`ROWS`], to the sums `acc`.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C, and the pointers must cover the blocks, the rows of activations, `stride`
/// apart, and the rows of sums.
pub(super) unsafe fn products(blocks: Blocks, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        match rows {
            1 => rows_of::<1>(blocks, x, stride, acc),
            _ => rows_of::<ROWS>(blocks, x, stride, acc),
        }
    }
}

unsafe fn rows_of<const R: usize>(blocks: Blocks, x: *const f32, stride: usize, acc: *mut f32) {
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        match (blocks.form.bits, blocks.form.min) {
            (Bits::Four, false) => nibbles::<false, false, R>(blocks, x, stride, acc),
            (Bits::Four, true) => nibbles::<true, false, R>(blocks, x, stride, acc),
            (Bits::Five, false) => nibbles::<false, true, R>(blocks, x, stride, acc),
            (Bits::Five, true) => nibbles::<true, true, R>(blocks, x, stride, acc),
            (Bits::Eight, _) => bytes::<R>(blocks, x, stride, acc),
        }
    }
}

/// Quants of four bits, or five with `HIGH`. The halves of a panel take turns every eight indices: all scales together do
/// not fit the registers, and the CPU overlaps the chains of both halves' sums.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles<const MIN: bool, const HIGH: bool, const R: usize>(
    blocks: Blocks,
    x: *const f32,
    stride: usize,
    acc: *mut f32,
) {
    let form = const { BlockForm { bits: if HIGH { Bits::Five } else { Bits::Four }, min: MIN } };
    // SAFETY: the parts of a block have the offsets of `layout`; the pointers cover all blocks and rows.
    unsafe {
        let mut sums = [load_sums::<R>(acc), load_sums::<R>(acc.add(HALF * LANES))];
        for block in 0..blocks.count {
            let from = blocks.from.add(block * form.bytes());
            prefetch(from.wrapping_add(AHEAD), form.bytes());
            let scales = block_scales(from);
            // Without minima, adding the offset times the scale gives the same weights to the last bit as subtracting the
            // offset from the quants, because both are exact.
            let offset = _mm256_set1_ps(-(form.offset() as f32));
            let minima = match MIN {
                true => block_scales(from.add(64)),
                false => scales.map(|half| half.map(|scale| _mm256_mul_ps(scale, offset))),
            };
            for group in 0..BLOCK / GROUP {
                let quants = from.add(form.quants() + group * 4 * PANEL);
                let highs = from.add(form.high() + group * 4 * GROUP);
                let x = x.add(block * BLOCK + group * GROUP);
                group_products::<HIGH, R>([quants, highs], (scales[0], minima[0]), x, stride, &mut sums[0]);
                let [quants, highs] = [quants.add(HALF * LANES * 4), highs.add(HALF)];
                group_products::<HIGH, R>([quants, highs], (scales[1], minima[1]), x, stride, &mut sums[1]);
            }
        }
        store_sums(sums[0], acc);
        store_sums(sums[1], acc.add(HALF * LANES));
    }
}

/// Adds the products with eight indices of half a panel.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn group_products<const HIGH: bool, const R: usize>(
    [quants, highs]: [*const u8; 2],
    (scales, minima): ([__m256; HALF], [__m256; HALF]),
    x: *const f32,
    stride: usize,
    sums: &mut HalfSums<R>,
) {
    // SAFETY: two vectors of nibbles, a word of high bits per index, R rows of activations.
    unsafe {
        let fifteen = _mm256_set1_epi32(15);
        let mut low = _mm256_load_si256(quants.cast());
        let mut high = _mm256_load_si256(quants.add(LANES * 4).cast());
        for k in 0..GROUP {
            let mut quant = [_mm256_and_si256(low, fifteen), _mm256_and_si256(high, fifteen)];
            if HIGH {
                let fifth = highs.add(4 * k);
                quant = [with_fifth(quant[0], *fifth), with_fifth(quant[1], *fifth.add(1))];
            }
            let weights = [
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(quant[0]), scales[0], minima[0]),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(quant[1]), scales[1], minima[1]),
            ];
            add_products(weights, x.add(k), stride, sums);
            low = _mm256_srli_epi32::<4>(low);
            high = _mm256_srli_epi32::<4>(high);
        }
    }
}

/// Sets the fifth bits of eight quants.
#[inline]
#[target_feature(enable = "avx2")]
fn with_fifth(quants: __m256i, bits: u8) -> __m256i {
    let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let bits = _mm256_and_si256(_mm256_set1_epi32(bits.into()), lanes);
    let set = _mm256_cmpeq_epi32(bits, lanes);
    _mm256_or_si256(quants, _mm256_and_si256(set, _mm256_set1_epi32(16)))
}

/// Quants of eight bits.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bytes<const R: usize>(blocks: Blocks, x: *const f32, stride: usize, acc: *mut f32) {
    let form = const { BlockForm { bits: Bits::Eight, min: false } };
    // SAFETY: as in `nibbles`.
    unsafe {
        let mut sums = [load_sums::<R>(acc), load_sums::<R>(acc.add(HALF * LANES))];
        for block in 0..blocks.count {
            let from = blocks.from.add(block * form.bytes());
            prefetch(from.wrapping_add(AHEAD), form.bytes());
            let [low, high] = block_scales(from);
            for k in 0..BLOCK {
                let quants = from.add(form.quants() + k * PANEL);
                let x = x.add(block * BLOCK + k);
                let weights = [byte_weights(quants, low[0]), byte_weights(quants.add(LANES), low[1])];
                add_products(weights, x, stride, &mut sums[0]);
                let quants = quants.add(HALF * LANES);
                let weights = [byte_weights(quants, high[0]), byte_weights(quants.add(LANES), high[1])];
                add_products(weights, x, stride, &mut sums[1]);
            }
        }
        store_sums(sums[0], acc);
        store_sums(sums[1], acc.add(HALF * LANES));
    }
}

/// Sums of `R` rows and half a panel.
type HalfSums<const R: usize> = [[__m256; HALF]; R];

/// Adds the products of the activations at `x` with the weights of half a panel at one input index.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_products<const R: usize>(weights: [__m256; HALF], x: *const f32, stride: usize, sums: &mut HalfSums<R>) {
    for (row, sum) in sums.iter_mut().enumerate() {
        // SAFETY: `x` has R rows, `stride` apart.
        let x = unsafe { _mm256_set1_ps(*x.add(row * stride)) };
        sum[0] = _mm256_fmadd_ps(x, weights[0], sum[0]);
        sum[1] = _mm256_fmadd_ps(x, weights[1], sum[1]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_sums<const R: usize>(acc: *const f32) -> HalfSums<R> {
    let mut sums = [[_mm256_setzero_ps(); HALF]; R];
    for (row, sum) in sums.iter_mut().enumerate() {
        // SAFETY: `acc` has R rows of sums.
        *sum = unsafe { [_mm256_loadu_ps(acc.add(row * PANEL)), _mm256_loadu_ps(acc.add(row * PANEL + LANES))] };
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_sums<const R: usize>(sums: HalfSums<R>, acc: *mut f32) {
    for (row, sum) in sums.iter().enumerate() {
        // SAFETY: `acc` has R rows of sums.
        unsafe {
            _mm256_storeu_ps(acc.add(row * PANEL), sum[0]);
            _mm256_storeu_ps(acc.add(row * PANEL + LANES), sum[1]);
        }
    }
}

/// Scales or minima of a block, one per output, of both halves of a panel.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn block_scales(from: *const u8) -> [[__m256; HALF]; 2] {
    // SAFETY: `from` has 32 halves, aligned to 16.
    let load = |part: usize| unsafe { _mm256_cvtph_ps(_mm_load_si128(from.add(part * 16).cast())) };
    [[load(0), load(1)], [load(2), load(3)]]
}
