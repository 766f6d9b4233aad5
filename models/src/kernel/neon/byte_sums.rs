//! Sums of products of signed bytes: by `sdot`, four input indices for each of four outputs, or by `smmla` (FEAT_I8MM),
//! eight input indices for two rows and two outputs, which are twice as many products.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Ints;
use super::dot_lanes::dot;
use super::lanes::{WIDTH, registers};
use crate::kernel::layout::PANEL;

/// Number of rows of a tile: for half of a panel, its 24 accumulators leave 8 registers for weights and activations.
const TILE: usize = 6;

/// Returns the smallest and the largest value of a row, or NaN twice if one is NaN.
pub(in crate::kernel) fn range(row: &[f32]) -> (f32, f32) {
    let (vectors, rest) = row.as_chunks::<WIDTH>();
    let mut low = f32::INFINITY;
    let mut high = f32::NEG_INFINITY;
    // SAFETY: part of every AArch64 CPU; a vector has four values. The instructions return NaN if one operand is NaN.
    unsafe {
        let mut least = vdupq_n_f32(low);
        let mut most = vdupq_n_f32(high);
        for values in vectors {
            let values = vld1q_f32(values.as_ptr());
            least = vminq_f32(least, values);
            most = vmaxq_f32(most, values);
        }
        low = vminvq_f32(least);
        high = vmaxvq_f32(most);
    }
    for &value in rest {
        if value.is_nan() || low.is_nan() {
            return (f32::NAN, f32::NAN);
        }
        low = low.min(value);
        high = high.max(value);
    }
    (low, high)
}

/// Rounds a row to bytes `(x - least) · inverse - 128`.
///
/// # Panics
/// If there is no quad for each four values.
pub(in crate::kernel) fn round(row: &[f32], to: &mut [u32], least: f32, inverse: f32) {
    assert!(row.len().div_ceil(WIDTH) == to.len(), "a quad for each four values");
    for (values, to) in row.chunks(WIDTH).zip(to) {
        let mut quad = [least; WIDTH];
        quad[..values.len()].copy_from_slice(values);
        // SAFETY: part of every AArch64 CPU; a quad has four values.
        unsafe {
            let steps = vmulq_n_f32(vsubq_f32(vld1q_f32(quad.as_ptr()), vdupq_n_f32(least)), inverse);
            let bytes = vreinterpretq_s8_s32(vsubq_s32(vcvtnq_s32_f32(steps), vdupq_n_s32(128)));
            // The low bytes of the four lanes.
            let pairs = vuzp1q_s8(bytes, bytes);
            *to = vgetq_lane_u32::<0>(vreinterpretq_u32_s8(vuzp1q_s8(pairs, pairs)));
        }
    }
}

/// Rows of activations and half of a panel, with the sums of their products.
#[derive(Clone, Copy)]
struct ByteTile {
    panel: *const u32,
    quads: usize,
    x: *const u32,
    /// Distance between rows of activations.
    stride: usize,
    sums: *mut i32,
}

/// Calls `$kernel` for all tiles.
macro_rules! tiles {
    ($x:ident, $stride:ident, $panel:ident, $sums:ident, $kernel:ident: $($rows:literal)*) => {{
        let rows = $sums.len() / PANEL;
        let tiles = rows.div_ceil(TILE);
        for tile in 0..tiles {
            let from = rows * tile / tiles;
            let to = rows * (tile + 1) / tiles;
            for offset in [0, 4 * WIDTH] {
                let tile = ByteTile {
                    panel: $panel.as_ptr().add(offset),
                    quads: $panel.len() / PANEL,
                    x: $x.as_ptr().add(from * $stride),
                    stride: $stride,
                    sums: $sums.as_mut_ptr().add(from * PANEL + offset),
                };
                match to - from {
                    $($rows => tile.$kernel::<$rows, { usize::div_ceil($rows, 2) }>(),)*
                    _ => unreachable!("more rows than a tile has"),
                }
            }
        }
    }};
}

/// Multiplies all rows with a panel, by `sdot`.
///
/// # Safety
/// The CPU must support the instruction; `x` must have as many rows as the sums, `stride` apart, each with as many
/// quads as the panel.
#[target_feature(enable = "dotprod")]
pub(in crate::kernel) unsafe fn multiply_dot(x: &[u32], stride: usize, panel: &[u32], sums: &mut [i32]) {
    // SAFETY: the rows of a tile lie inside x and the sums, as the caller guarantees.
    unsafe { tiles!(x, stride, panel, sums, dots: 1 2 3 4 5 6) }
}

/// Multiplies all rows with a panel, by `smmla`.
///
/// # Safety
/// The same as for [`multiply_dot`].
#[target_feature(enable = "i8mm")]
pub(in crate::kernel) unsafe fn multiply_matrices(x: &[u32], stride: usize, panel: &[u32], sums: &mut [i32]) {
    // SAFETY: the rows of a tile lie inside x and the sums, as the caller guarantees.
    unsafe { tiles!(x, stride, panel, sums, matrices: 1 2 3 4 5 6) }
}

/// Computes `vmmlaq_s32`, which is not stable: adds the products of two rows of eight signed bytes with two others.
#[inline]
#[target_feature(enable = "i8mm")]
fn multiply_rows(sum: int32x4_t, a: uint32x4_t, b: uint32x4_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction only reads and writes the named registers.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl ByteTile {
    /// Computes `R` rows. `PAIRS` is not used: the same macro calls [`matrices`](Self::matrices), which needs it.
    ///
    /// # Safety
    /// The CPU must support the instruction; the pointers must cover `R` rows and half of a panel.
    #[target_feature(enable = "dotprod")]
    unsafe fn dots<const R: usize, const PAIRS: usize>(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut sums = [[vdupq_n_s32(0); 4]; R];
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = registers!(i => vld1q_s32(self.sums.add(row * PANEL + i * WIDTH)));
            }
            for quad in 0..self.quads {
                let weights = self.weights(quad);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = vreinterpretq_s32_u32(vdupq_n_u32(*self.x.add(row * self.stride + quad)));
                    for (sum, weights) in sum.iter_mut().zip(weights) {
                        *sum = dot(*sum, weights, x);
                    }
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                registers!(i => vst1q_s32(self.sums.add(row * PANEL + i * WIDTH), sum[i]));
            }
        }
    }

    /// Computes `R` rows, two at a time. If `R` is odd, the last row is multiplied twice.
    ///
    /// # Safety
    /// The same as for [`dots`](Self::dots), with `PAIRS` half of the rows, rounded up.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[target_feature(enable = "i8mm")]
    unsafe fn matrices<const R: usize, const PAIRS: usize>(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Two rows of two outputs each.
            let mut sums = [[vdupq_n_s32(0); 8]; PAIRS];
            for quad in (0..self.quads).step_by(2) {
                let both = quad + 1 < self.quads;
                let weights = self.weights(quad);
                let next = if both { self.weights(quad + 1) } else { [vdupq_n_s32(0); 4] };
                let x: [uint32x4_t; PAIRS] = std::array::from_fn(|pair| self.activations::<R>(2 * pair, quad, both));
                for i in 0..4 {
                    // Eight input indices of two outputs each.
                    let first = vreinterpretq_u32_s32(vzip1q_s32(weights[i], next[i]));
                    let second = vreinterpretq_u32_s32(vzip2q_s32(weights[i], next[i]));
                    for (sum, x) in sums.iter_mut().zip(x) {
                        sum[2 * i] = multiply_rows(sum[2 * i], x, first);
                        sum[2 * i + 1] = multiply_rows(sum[2 * i + 1], x, second);
                    }
                }
            }
            for row in 0..R {
                for i in 0..4 {
                    let first = vreinterpretq_s64_s32(sums[row / 2][2 * i]);
                    let second = vreinterpretq_s64_s32(sums[row / 2][2 * i + 1]);
                    let joined = if row % 2 == 0 { vtrn1q_s64(first, second) } else { vtrn2q_s64(first, second) };
                    let to = self.sums.add(row * PANEL + i * WIDTH);
                    vst1q_s32(to, vaddq_s32(vld1q_s32(to), vreinterpretq_s32_s64(joined)));
                }
            }
        }
    }

    /// Weights of four input indices and half of a panel's outputs.
    #[inline(always)]
    unsafe fn weights(self, quad: usize) -> Ints {
        // SAFETY: guaranteed by the caller.
        unsafe { registers!(i => vld1q_s32(self.panel.add(quad * PANEL + i * WIDTH).cast())) }
    }

    /// Eight activations of each of two rows. The last four of each are zero unless `both` quads exist.
    #[inline(always)]
    unsafe fn activations<const R: usize>(self, row: usize, quad: usize, both: bool) -> uint32x4_t {
        // SAFETY: guaranteed by the caller; a row beyond the last is replaced by the last.
        unsafe {
            let of = |row: usize| {
                let at = self.x.add(row.min(R - 1) * self.stride + quad);
                if both { vld1_u32(at) } else { vset_lane_u32::<0>(*at, vdup_n_u32(0)) }
            };
            vcombine_u32(of(row), of(row + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_row_is_not_a_number_if_a_value_is_none() {
        for len in [1, 3, 4, 7, 33] {
            let row: Vec<f32> = (0..len).map(|i| (i as f32 - 2.5) * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
            let least = row.iter().copied().fold(f32::INFINITY, f32::min);
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(range(&row), (least, most), "{len} values");
            for at in 0..len {
                let mut row = row.clone();
                row[at] = f32::NAN;
                let (least, most) = range(&row);
                assert!(least.is_nan() && most.is_nan(), "value {at} of {len}");
            }
        }
    }

    #[test]
    fn rows_are_rounded_to_signed_bytes() {
        let row = [0.0, 1.0, 2.0, 254.0, 255.0, 3.5];
        let mut to = [0; 2];
        round(&row, &mut to, 0.0, 1.0);
        let bytes = bytemuck::cast_slice::<u32, i8>(&to);
        assert_eq!(bytes[..6], [-128, -127, -126, 126, 127, -124]);
    }
}
