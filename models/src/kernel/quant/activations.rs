//! Activations rounded to 16-bit integers, with a scale per block of 32 or per two blocks.
//!
//! The rows of a tile are interleaved word by word: a kernel reads its activations forward from one address. With one
//! address per row, the CPU would have too few registers.
//!
//! The largest magnitude becomes 32,767, so a rounding error is at most 1.6e-5 of it: about a hundredth of bf16's.
//! For weights whose products would not fit an `i32`, the largest magnitude becomes [`QuantForm::LIMIT`], and the error
//! is up to four times as large.

#[cfg(target_arch = "x86_64")]
use super::QUADS;
use super::{IntLanes, Lanes, PAIRS, QuantForm, STEPS};
#[cfg(target_arch = "x86_64")]
use crate::kernel::int_lanes::LOW_BYTES;
use crate::kernel::lanes::LANES;
use crate::kernel::layout::BLOCK;

/// A rounded block: sixteen pairs in the order of [`QuantForm::pairs`](super::QuantForm::pairs), and scales.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct RoundedBlock {
    /// Pairs of `i16`, the first one in the lower half.
    pairs: [u32; PAIRS],
    /// Value of an integer step.
    scale: f32,
    /// Sum of the block's rounded values, for the minima of weights.
    sum: f32,
    /// Sums of the block's halves.
    half_sums: [f32; 2],
}

/// Number of words of a rounded block.
pub(super) const WORDS: usize = size_of::<RoundedBlock>() / size_of::<u32>();
/// Index of the word with the scale of a block.
pub(super) const SCALE: usize = PAIRS;
/// Index of the word with the sum of a block; the sums of its halves follow.
pub(super) const SUM: usize = SCALE + 1;

/// Number of words of a block that hold its scale and its sums.
#[cfg(target_arch = "x86_64")]
pub(super) const FIELDS: usize = WORDS - PAIRS;

/// Rounds the rows of a tile, each of whole blocks. Word `w` of block `b` of row `r` becomes
/// `to[(b · WORDS + w) · rows + r]`.
///
/// # Panics
/// If `x` is not a whole number of rows, or `to` has another size.
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[inline(always)]
pub(super) unsafe fn round<L: IntLanes, W: QuantForm>(x: &[f32], rows: usize, to: &mut [u32]) {
    let blocks = x.len() / BLOCK / rows;
    assert!(x.len() == rows * blocks * BLOCK && to.len() == rows * blocks * WORDS, "rows of whole blocks");
    assert!(blocks.is_multiple_of(W::SHARED), "whole groups of blocks with a scale");
    let x = x.as_chunks::<BLOCK>().0;
    // Block by block, so the interleaved words of all rows are written while their cache lines are near.
    for (index, to) in to.chunks_exact_mut(WORDS * rows * W::SHARED).enumerate() {
        for row in 0..rows {
            let values = &x[row * blocks + index * W::SHARED..][..W::SHARED];
            // SAFETY: guaranteed by the caller.
            unsafe {
                let range = Range::of::<L>(values, W::LIMIT);
                for (values, to) in values.iter().zip(to.chunks_exact_mut(WORDS * rows)) {
                    let rounded = range.round::<L>(values);
                    let words = bytemuck::cast_ref::<_, [u32; WORDS]>(&rounded);
                    to[row..].iter_mut().step_by(rows).zip(words).for_each(|(to, word)| *to = *word);
                }
            }
        }
    }
}

/// Rounds the rows of a tile like [`round`], for products of byte planes. Each group of blocks with a common scale has, in
/// sequence, the high bytes of every row, the low bytes of every row, and the fields of every row's blocks. The bytes are in
/// the order of [`QuantForm::quads`].
///
/// # Panics
/// On the conditions of [`round`].
///
/// # Safety
/// The CPU must support the instruction set of `L`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn round_planes<L: IntLanes, W: QuantForm>(x: &[f32], rows: usize, to: &mut [u32]) {
    let blocks = x.len() / BLOCK / rows;
    assert!(x.len() == rows * blocks * BLOCK && to.len() == rows * blocks * WORDS, "rows of whole blocks");
    assert!(blocks.is_multiple_of(W::SHARED), "whole groups of blocks with a scale");
    let x = x.as_chunks::<BLOCK>().0;
    for (index, to) in to.chunks_exact_mut(WORDS * rows * W::SHARED).enumerate() {
        let (planes, fields) = to.split_at_mut(2 * QUADS * W::SHARED * rows);
        let (high, low) = planes.split_at_mut(QUADS * W::SHARED * rows);
        for row in 0..rows {
            let values = &x[row * blocks + index * W::SHARED..][..W::SHARED];
            // SAFETY: guaranteed by the caller.
            let range = unsafe { Range::of::<L>(values, W::LIMIT) };
            for (block, values) in values.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                let rounded = unsafe { range.round::<L>(values) };
                let place = (row * W::SHARED + block) * QUADS;
                let places = high[place..place + QUADS].iter_mut().zip(&mut low[place..place + QUADS]);
                for ((high, low), &[pair, next]) in places.zip(rounded.pairs.as_chunks::<2>().0) {
                    *high = pair >> 8 & LOW_BYTES | next & !LOW_BYTES;
                    *low = pair & LOW_BYTES | (next & LOW_BYTES) << 8;
                }
                let own = bytemuck::cast_ref::<_, [u32; WORDS]>(&rounded);
                fields[(row * W::SHARED + block) * FIELDS..][..FIELDS].copy_from_slice(&own[SCALE..]);
            }
        }
    }
}

/// Range of activations with a common scale.
#[derive(Clone, Copy)]
struct Range {
    /// Value of an integer step. NaN if an activation is infinite or NaN.
    scale: f32,
    inverse: f32,
}

impl Range {
    /// Range of `blocks`, whose largest magnitude becomes `limit`.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`.
    #[inline(always)]
    unsafe fn of<L: IntLanes>(blocks: &[[f32; BLOCK]], limit: i16) -> Self {
        // SAFETY: guaranteed by the caller; vectors of whole blocks.
        let (largest, poison) = unsafe {
            let mut largest = L::Floats::splat(0.0);
            // NaN if a value is infinite or NaN, which rounding would hide.
            let mut poison = L::Floats::splat(0.0);
            for values in blocks.as_flattened().as_chunks::<LANES>().0 {
                let values = L::Floats::load(values.as_ptr());
                largest = values.max(values.mul(L::Floats::splat(-1.0))).max(largest);
                poison = values.fma(L::Floats::splat(0.0), poison);
            }
            let mut lanes = [[0.0f32; LANES]; 2];
            largest.store(lanes[0].as_mut_ptr());
            poison.store(lanes[1].as_mut_ptr());
            (joined(lanes[0], |a, b| if a > b { a } else { b }), joined(lanes[1], |a, b| a + b))
        };
        let limit = f32::from(limit);
        // Below this bound the reciprocal overflows; such values count as zero.
        let inverse = if largest > 1e-33 { limit / largest } else { 0.0 };
        Self { scale: largest / limit + poison, inverse }
    }

    /// Rounds a block to the nearest integer steps.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`.
    #[inline(always)]
    unsafe fn round<L: IntLanes>(self, values: &[f32; BLOCK]) -> RoundedBlock {
        // Adding 1.5 · 2^23 leaves the integer in the lower bits, without a saturating conversion.
        const MAGIC: f32 = 12_582_912.0;
        let mut numbers = [0u32; BLOCK];
        let mut half_sums = [0.0; 2];
        // SAFETY: guaranteed by the caller; vectors of whole blocks.
        unsafe {
            for (half, values) in values.as_chunks::<LANES>().0.iter().enumerate() {
                let to = numbers.as_mut_ptr().add(half * LANES);
                let values = L::Floats::load(values.as_ptr()).mul(L::Floats::splat(self.inverse));
                values.add(L::Floats::splat(MAGIC)).store(to.cast());
                let integers = L::load(to).add(L::splat(MAGIC.to_bits().wrapping_neg()));
                integers.store(to);
                let mut lanes = [0.0; LANES];
                integers.floats().store(lanes.as_mut_ptr());
                half_sums[half] = joined(lanes, |a, b| a + b);
            }
        }
        let mut pairs = [0; PAIRS];
        for (group, pairs) in pairs.as_chunks_mut::<STEPS>().0.iter_mut().enumerate() {
            for (step, pair) in pairs.iter_mut().enumerate() {
                let at = group * 2 * STEPS + step;
                *pair = numbers[at] & 0xffff | numbers[at + STEPS] << 16;
            }
        }
        RoundedBlock {
            pairs,
            scale: self.scale,
            sum: (half_sums[0] + half_sums[1]) * self.scale,
            half_sums: half_sums.map(|sum| sum * self.scale),
        }
    }
}

/// Joins values in pairs, in a tree: in a chain, each step would wait for the previous one.
#[inline(always)]
fn joined(values: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| join(values[i], values[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| join(eight[i], eight[i + 4]));
    join(join(four[0], four[2]), join(four[1], four[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::q4_k::Q4K;
    use super::super::q6_k::Q6K;

    fn block(values: &[f32; BLOCK]) -> RoundedBlock {
        // SAFETY: portable lanes need no instruction set.
        unsafe { Range::of::<[i32; LANES]>(&[*values], i16::MAX).round::<[i32; LANES]>(values) }
    }

    #[test]
    fn rounding_keeps_fifteen_bits_and_reports_what_is_no_number() {
        let values: [f32; BLOCK] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 3.0);
        let rounded = block(&values);
        let largest = values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        for (k, value) in values.iter().enumerate() {
            let word = rounded.pairs[k / 8 * 4 + k % 4];
            let number = if k % 8 < 4 { word as i16 } else { (word >> 16) as i16 };
            assert!((f32::from(number) * rounded.scale - value).abs() <= largest * 1.6e-5);
        }
        assert!((rounded.sum - values.iter().sum::<f32>()).abs() < 1e-3);
        assert!((rounded.half_sums[1] - values[16..].iter().sum::<f32>()).abs() < 1e-3);
        let zero = block(&[0.0; BLOCK]);
        assert_eq!((zero.scale, zero.sum, zero.pairs), (0.0, 0.0, [0; PAIRS]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = values;
            values[17] = bad;
            assert!(block(&values).scale.is_nan(), "{bad}");
        }
    }

    #[test]
    fn rows_of_a_tile_are_interleaved_and_two_blocks_share_a_scale() {
        check::<Q4K>();
        check::<Q6K>();
    }

    fn check<W: QuantForm>() {
        let rows = 3;
        let blocks = 4;
        let x: Vec<f32> = (0..rows * blocks * BLOCK).map(|i| (i as f32 * 0.3).cos() * i as f32).collect();
        let mut to = vec![0; rows * blocks * WORDS];
        // SAFETY: as above.
        unsafe { round::<[i32; LANES], W>(&x, rows, &mut to) };
        let x = x.as_chunks().0;
        for row in 0..rows {
            for index in 0..blocks {
                let both = &x[row * blocks + index / 2 * 2..][..2];
                // SAFETY: as above.
                let expected = unsafe {
                    Range::of::<[i32; LANES]>(both, W::LIMIT).round::<[i32; LANES]>(&x[row * blocks + index])
                };
                let word = |word: usize| to[(index * WORDS + word) * rows + row];
                assert!((0..PAIRS).all(|pair| word(pair) == expected.pairs[pair]));
                assert_eq!(f32::from_bits(word(SCALE)), expected.scale);
                assert_eq!(f32::from_bits(word(SUM)), expected.sum);
                assert_eq!([1, 2].map(|half| f32::from_bits(word(SUM + half))), expected.half_sums);
            }
        }
    }
}
