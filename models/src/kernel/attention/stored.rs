//! Storage types of keys and values. Attention itself is computed in `f32`.

use half::f16;

use crate::batch::BLOCK;
use crate::kernel::lanes::{LANES, Lanes};

// One vector holds the scales of the tokens of one block.
const _: () = assert!(LANES == BLOCK);

/// Storage type of keys and values.
///
/// A type with scales stores a head's key, or value, as multiples of a step, a fixed fraction of its scale. The scales
/// of a block's keys and of its values, [`BLOCK`] half-precision numbers each, follow them.
pub(crate) trait Stored: Copy + Default + Send + Sync {
    /// Number of elements that the scales of one head take in a block. 0 if the type has none.
    const SCALES: usize;
    /// Step of the stored numbers, as a fraction of the scale.
    const STEP: f32;

    /// Scale of one token's key or value in one head.
    fn scale(values: &[f32]) -> f16;

    /// Converts a number of steps to the nearest finite value of the type. In types without scales, the number of steps
    /// is the value itself.
    fn keep(steps: f32) -> Self;

    /// Loads sixteen stored numbers, in steps.
    ///
    /// # Safety
    /// The same as for [`Lanes::load`].
    unsafe fn load<L: Lanes>(from: *const Self) -> L;

    /// Step of numbers with the given scale.
    fn step(scale: f16) -> f32 {
        scale.to_f32() * Self::STEP
    }

    /// Multiplies numbers that belong to the tokens of a block by the steps of the scales at `scales`.
    ///
    /// # Safety
    /// The instruction set of `L` must be available. If the type has scales, there must be [`BLOCK`] of them.
    #[inline(always)]
    unsafe fn scaled<L: Lanes>(numbers: L, scales: *const f16) -> L {
        if Self::SCALES == 0 {
            return numbers;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { numbers.mul(L::load_half(scales).mul(L::splat(Self::STEP))) }
    }
}

impl Stored for f32 {
    const SCALES: usize = 0;
    const STEP: f32 = 1.0;

    fn scale(_: &[f32]) -> f16 {
        f16::ONE
    }

    fn keep(value: f32) -> Self {
        value
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load(from) }
    }
}

impl Stored for f16 {
    const SCALES: usize = 0;
    const STEP: f32 = 1.0;

    fn scale(_: &[f32]) -> f16 {
        Self::ONE
    }

    fn keep(value: f32) -> Self {
        // An infinite value would turn every sum that includes it into NaN, even with a weight of 0.
        Self::from_f32(value.clamp(Self::MIN.to_f32(), Self::MAX.to_f32()))
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load_half(from) }
    }
}

impl Stored for i8 {
    const SCALES: usize = 2 * BLOCK * size_of::<f16>();
    const STEP: f32 = 1.0 / 127.0;

    fn scale(values: &[f32]) -> f16 {
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        // The scale is the largest value itself: below 8e-3, its 127th part would be a subnormal half-precision number,
        // which is coarse.
        f16::keep(largest)
    }

    fn keep(steps: f32) -> Self {
        // The conversion truncates and saturates, and turns NaN into 0.
        (steps + 0.5f32.copysign(steps)) as Self
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: guaranteed by the caller.
        unsafe { L::load_bytes(from) }
    }
}

/// Location of the scales of a head's keys in the block that begins at `head`; those of its values follow.
#[inline(always)]
pub(crate) fn key_scales<S: Stored>(head: *const S, dim: usize) -> *const f16 {
    head.wrapping_add(2 * BLOCK * dim).cast()
}

/// Writes one token's keys and values, all heads end to end, to slot `slot` of the block that begins at `to`.
///
/// # Safety
/// `to` must be the start of a block of `keys.len() / dim` heads of width `dim`, `slot` must be less than [`BLOCK`],
/// and no other thread may access this slot.
pub(crate) unsafe fn store_token<S: Stored>(slot: usize, keys: &[f32], values: &[f32], dim: usize, to: *mut S) {
    let head_len = 2 * BLOCK * dim + S::SCALES;
    for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
        let scales = [key, value].map(S::scale);
        let [per_key, per_value] = scales.map(|scale| S::step(scale).recip());
        // SAFETY: inside the head's share of (dim, BLOCK) keys, (BLOCK, dim) values and scales, as the caller
        // guarantees. Numbers are written one by one, because other threads may write to other slots of the same block.
        unsafe {
            let to = to.add(head * head_len);
            for (d, &key) in key.iter().enumerate() {
                to.add(d * BLOCK + slot).write(S::keep(key * per_key));
            }
            let values = to.add(BLOCK * dim + slot * dim);
            for (d, &value) in value.iter().enumerate() {
                values.add(d).write(S::keep(value * per_value));
            }
            if S::SCALES > 0 {
                let place = key_scales(to, dim).cast_mut();
                place.add(slot).write_unaligned(scales[0]);
                place.add(BLOCK + slot).write_unaligned(scales[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_holds_no_infinity() {
        assert_eq!([1e9, f32::INFINITY, -1e9, 0.5].map(f16::keep), [f16::MAX, f16::MAX, f16::MIN, f16::from_f32(0.5)]);
    }

    #[test]
    fn bytes_are_nearest_multiples_of_a_scale_whatever_the_values() {
        let stored = |values: &[f32]| {
            let step = i8::step(i8::scale(values));
            (step, values.iter().map(|value| f32::from(i8::keep(value * step.recip())) * step).collect::<Vec<_>>())
        };
        for magnitude in [1e-3, 1.0, 700.0, 6e4] {
            let values: Vec<f32> = (-40i16..=40).map(|i| magnitude * f32::from(i) / 40.0).collect();
            let (step, kept) = stored(&values);
            assert!((step * 127.0 / magnitude - 1.0).abs() < 1e-3);
            for (value, kept) in values.iter().zip(&kept) {
                // The scale is rounded too, by at most 2⁻¹¹ of itself, which is less than 0.07 of a step at the largest
                // value.
                assert!((value - kept).abs() <= 0.57 * step, "{value} became {kept}, step {step}");
            }
        }
        assert_eq!(stored(&[0.0; 3]), (0.0, vec![0.0; 3]));
        for strange in [f32::NAN, f32::INFINITY, -1e30, 1e-30] {
            let (step, kept) = stored(&[1.0, strange, -2.0]);
            assert!(step.is_finite() && kept.iter().all(|kept| kept.is_finite()), "{strange}: {kept:?}");
        }
    }
}
