//! Activations rounded to 16-bit integers, with a scale per block of 32 or per two blocks.
//!
//! The rows of a tile are interleaved word by word: a kernel reads its activations forward from one address, instead of
//! from as many addresses as it has rows, which a CPU has not enough registers for.
//!
//! The largest magnitude becomes 32,767, so that a rounding error is at most 1.6e-5 of it: about a hundredth of bf16's.
//! For weights whose products would not fit an `i32` it becomes [`QuantForm::LIMIT`], and the error is up to four times
//! as large.

use super::{GROUPS, PAIRS, QuantForm, STEPS};
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
    /// Sums of its halves.
    half_sums: [f32; 2],
}

/// Number of words of a rounded block.
pub(super) const WORDS: usize = size_of::<RoundedBlock>() / size_of::<u32>();
/// Index of the word with the scale of a block.
pub(super) const SCALE: usize = PAIRS;
/// Index of the word with the sum of a block; the sums of its halves follow.
pub(super) const SUM: usize = SCALE + 1;

/// Rounds the rows of a tile, each of whole blocks. Word `w` of block `b` of row `r` becomes
/// `to[(b · WORDS + w) · rows + r]`.
///
/// # Panics
/// If `x` is not a whole number of rows, or `to` has another size.
#[inline(always)]
pub(super) fn round<W: QuantForm>(x: &[f32], rows: usize, to: &mut [u32]) {
    let blocks = x.len() / BLOCK / rows;
    assert!(x.len() == rows * blocks * BLOCK && to.len() == rows * blocks * WORDS, "rows of whole blocks");
    assert!(blocks.is_multiple_of(W::SHARED), "whole groups of blocks with a scale");
    let x = x.as_chunks::<BLOCK>().0;
    // Block by block, so that the interleaved words of all rows are written while their cache lines are near.
    for (index, to) in to.chunks_exact_mut(WORDS * rows * W::SHARED).enumerate() {
        for row in 0..rows {
            let values = &x[row * blocks + index * W::SHARED..][..W::SHARED];
            let range = Range::of(values, W::LIMIT);
            for (values, to) in values.iter().zip(to.chunks_exact_mut(WORDS * rows)) {
                let rounded = range.round(values);
                let words = bytemuck::cast_ref::<_, [u32; WORDS]>(&rounded);
                to[row..].iter_mut().step_by(rows).zip(words).for_each(|(to, word)| *to = *word);
            }
        }
    }
}

/// Range of activations with a common scale.
#[derive(Clone, Copy)]
struct Range {
    /// Value of an integer step. Not a number if an activation is infinite or no number.
    scale: f32,
    inverse: f32,
}

impl Range {
    #[inline(always)]
    fn of(blocks: &[[f32; BLOCK]], limit: i16) -> Self {
        let mut largest = [0.0f32; 8];
        // Not a number for infinite values and those that are not numbers, which rounding would hide.
        let mut poison = [0.0f32; 8];
        for values in blocks.as_flattened().as_chunks::<8>().0 {
            for ((largest, poison), value) in largest.iter_mut().zip(&mut poison).zip(values) {
                let magnitude = value.abs();
                *largest = if magnitude > *largest { magnitude } else { *largest };
                *poison += value * 0.0;
            }
        }
        let largest = largest.into_iter().fold(0.0f32, |a, b| if a > b { a } else { b });
        let poison: f32 = poison.into_iter().sum();
        let limit = f32::from(limit);
        // Below this bound the reciprocal overflows; such values count as zero.
        let inverse = if largest > 1e-33 { limit / largest } else { 0.0 };
        Self { scale: largest / limit + poison, inverse }
    }

    #[inline(always)]
    fn round(self, values: &[f32; BLOCK]) -> RoundedBlock {
        let mut numbers = [0i32; BLOCK];
        for (number, value) in numbers.iter_mut().zip(values) {
            *number = nearest(value * self.inverse);
        }
        let mut pairs = [0; PAIRS];
        for group in 0..GROUPS {
            for step in 0..STEPS {
                let [first, second] = [numbers[group * 8 + step], numbers[group * 8 + step + 4]];
                pairs[group * STEPS + step] = first as u32 & 0xffff | (second as u32) << 16;
            }
        }
        let sums = [&numbers[..16], &numbers[16..]].map(|half| half.iter().sum::<i32>());
        RoundedBlock {
            pairs,
            scale: self.scale,
            sum: (sums[0] + sums[1]) as f32 * self.scale,
            half_sums: sums.map(|sum| sum as f32 * self.scale),
        }
    }
}

/// Nearest integer of a magnitude up to 2^22; zero for values that are not numbers.
#[inline(always)]
fn nearest(value: f32) -> i32 {
    // Adding 1.5 · 2^23 leaves the integer in the lower bits, without a library call or a saturating conversion.
    const MAGIC: f32 = 12_582_912.0;
    (value + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::q4_k::Q4K;
    use super::super::q6_k::Q6K;

    fn block(values: &[f32; BLOCK]) -> RoundedBlock {
        Range::of(&[*values], i16::MAX).round(values)
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
        let (rows, blocks) = (3, 4);
        let x: Vec<f32> = (0..rows * blocks * BLOCK).map(|i| (i as f32 * 0.3).cos() * i as f32).collect();
        let mut to = vec![0; rows * blocks * WORDS];
        round::<W>(&x, rows, &mut to);
        let x = x.as_chunks().0;
        for row in 0..rows {
            for index in 0..blocks {
                let range = Range::of(&x[row * blocks + index / 2 * 2..][..2], W::LIMIT);
                let expected = range.round(&x[row * blocks + index]);
                let word = |word: usize| to[(index * WORDS + word) * rows + row];
                assert!((0..PAIRS).all(|pair| word(pair) == expected.pairs[pair]));
                assert_eq!(f32::from_bits(word(SCALE)), expected.scale);
                assert_eq!(f32::from_bits(word(SUM)), expected.sum);
                assert_eq!([1, 2].map(|half| f32::from_bits(word(SUM + half))), expected.half_sums);
            }
        }
    }
}
