//! Activations rounded to 16-bit integers, with a scale per block of 32.
//!
//! The largest magnitude of a block becomes 32,767, so that a rounding error is at most 1.6e-5 of it: about a hundredth
//! of bf16's. The largest sum, 32 products of 32,767 and a quant of 8 bits, fits an `i32`.

use super::{GROUPS, PAIRS, STEPS};
use crate::kernel::layout::BLOCK;

/// Largest magnitude of a rounded activation.
const LIMIT: f32 = 32_767.0;

/// A rounded block: sixteen pairs in the order of [`QuantForm::pairs`](super::QuantForm::pairs), and scales.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct RoundedBlock {
    /// Pairs of `i16`, the first one in the lower half.
    pub(super) pairs: [u32; PAIRS],
    /// Value of an integer step.
    pub(super) scale: f32,
    /// Sum of the block's rounded values, for the minima of weights.
    pub(super) sum: f32,
    /// Sums of its halves.
    pub(super) half_sums: [f32; 2],
}

/// Rounds a row of whole blocks.
#[inline(always)]
pub(super) fn round(row: &[f32], to: &mut [RoundedBlock]) {
    for (values, to) in row.as_chunks::<BLOCK>().0.iter().zip(to) {
        *to = block(values);
    }
}

#[inline(always)]
fn block(values: &[f32; BLOCK]) -> RoundedBlock {
    let mut largest = [0.0f32; 8];
    // Not a number for infinite values and those that are not numbers, which rounding would hide.
    let mut poison = [0.0f32; 8];
    for values in values.as_chunks::<8>().0 {
        for ((largest, poison), value) in largest.iter_mut().zip(&mut poison).zip(values) {
            let magnitude = value.abs();
            *largest = if magnitude > *largest { magnitude } else { *largest };
            *poison += value * 0.0;
        }
    }
    let largest = largest.into_iter().fold(0.0f32, |a, b| if a > b { a } else { b });
    let poison: f32 = poison.into_iter().sum();
    // Below this bound the reciprocal overflows; such values count as zero.
    let inverse = if largest > 1e-33 { LIMIT / largest } else { 0.0 };
    let mut numbers = [0i32; BLOCK];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = nearest(value * inverse);
    }
    let mut pairs = [0; PAIRS];
    for group in 0..GROUPS {
        for step in 0..STEPS {
            let [first, second] = [numbers[group * 8 + step], numbers[group * 8 + step + 4]];
            pairs[group * STEPS + step] = first as u32 & 0xffff | (second as u32) << 16;
        }
    }
    let scale = largest / LIMIT + poison;
    let sums = [&numbers[..16], &numbers[16..]].map(|half| half.iter().sum::<i32>());
    RoundedBlock {
        pairs,
        scale,
        sum: (sums[0] + sums[1]) as f32 * scale,
        half_sums: sums.map(|sum| sum as f32 * scale),
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
}
