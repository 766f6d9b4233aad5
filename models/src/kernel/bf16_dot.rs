//! Dot products of bf16 values, a panel at a time, pair by pair of input indices. Uses the CPU's instruction for
//! pairs (AVX512-BF16), which is defined to add the product of the odd index before that of the even one, or the
//! kernels for plain floats, where the even index comes first. With AMX, the products of up to sixteen pairs are summed
//! first, even and odd indices apart.

use bytemuck::Pod;

#[cfg(target_arch = "x86_64")]
use super::amx::{PanelProduct, TileDot, TileSupport};
use super::elementwise::versions;
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;
use super::layout::PANEL;
use super::panel::panel_product;

/// Maximum number of input index pairs multiplied at once: 24 KiB of a panel, which fits the first-level cache.
pub(super) const CHUNK: usize = 192;

/// Method for products of bf16 values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DotMethod {
    /// Uses the CPU's instruction for pairs.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has the instruction"))]
    Bf16Pairs(Bf16Support),
    /// Uses plain floats.
    PlainFloats,
}

/// Proof that the CPU has AVX-512 F, AVX-512 BW and AVX512-BF16; only [`Bf16Support::detect`] creates one.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has the instruction"))]
pub(crate) struct Bf16Support {
    /// AMX, which then multiplies whole panels.
    #[cfg(target_arch = "x86_64")]
    tiles: Option<TileSupport>,
}

impl Bf16Support {
    /// Looks for the instructions. Cheap: the standard library caches the feature detection.
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512bw") && has!("avx512bf16") {
                return Some(Self { tiles: TileSupport::detect() });
            }
        }
        None
    }
}

impl DotMethod {
    /// The faster method that this CPU supports.
    pub(crate) fn best() -> Self {
        Bf16Support::detect().map_or(Self::PlainFloats, Self::Bf16Pairs)
    }

    /// Rounds neighboring values to pairs. An odd last value is paired with zero.
    ///
    /// # Panics
    /// If `to` does not have a place for each two values.
    pub(crate) fn pair_neighbors(self, values: &[f32], to: &mut [u32]) {
        assert!(values.len().div_ceil(2) == to.len(), "a pair for each two values");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Bf16Support` proves that the CPU has the instructions; there are as many places as pairs.
            Self::Bf16Pairs(_) => unsafe { x86::round(values, to) },
            _ => pair_neighbors(values, to),
        }
    }

    /// Rounds two rows to pairs of the values at the same index.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn pair_rows(self, even: &[f32], odd: &[f32], to: &mut [u32]) {
        assert!(even.len() == to.len() && odd.len() == to.len(), "a pair for each two values");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Bf16Support` proves that the CPU has the instructions; the lengths are equal.
            Self::Bf16Pairs(_) => unsafe { x86::interleave(even, odd, to) },
            _ => pair_rows(even, odd, to),
        }
    }

    /// All methods that this CPU supports, for tests that force each.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut methods = vec![Self::best()];
        #[cfg(target_arch = "x86_64")]
        if let Self::Bf16Pairs(Bf16Support { tiles: Some(_) }) = methods[0] {
            methods.push(Self::Bf16Pairs(Bf16Support { tiles: None }));
        }
        if matches!(methods[0], Self::Bf16Pairs(_)) {
            methods.push(Self::PlainFloats);
        }
        methods
    }
}

/// Returns `true` if this CPU multiplies bf16 numbers by itself (AVX512-BF16).
pub fn computes_bf16() -> bool {
    Bf16Support::detect().is_some()
}

/// A method with its working memory.
pub(super) trait Dot {
    /// Two rounded activations.
    type Pair: Pod;

    /// Rounds a row of activations. An odd last value is paired with zero.
    fn round(&mut self, row: &[f32], to: &mut [Self::Pair]);

    /// Computes `sums[r][o] += Σ_k x[r · stride + k] · panel[k][o]`, with k over the panel's pairs, both products
    /// of which are added.
    ///
    /// # Panics
    /// If `x` is too short, another length is not a multiple of [`PANEL`], or the panel is longer than [`CHUNK`]
    /// pairs.
    fn multiply(&mut self, x: &[Self::Pair], stride: usize, panel: &[u32], sums: &mut [f32]);
}

versions! {
    /// Rounds neighboring values to pairs, without the CPU's instruction for it.
    fn pair_neighbors(values: &[f32], to: &mut [u32]) = pair_neighbors_body;

    /// Rounds two rows to pairs of the values at the same index, without the CPU's instruction for it.
    fn pair_rows(even: &[f32], odd: &[f32], to: &mut [u32]) = pair_rows_body;

    /// Rounds each value to the nearest bf16 value.
    fn round_row(row: &[f32], to: &mut [f32]) = round_row_body;
}

#[inline(always)]
fn pair_neighbors_body<const FUSED: bool>(values: &[f32], to: &mut [u32]) {
    let (pairs, last) = values.as_chunks::<2>();
    for (&[even, odd], to) in pairs.iter().zip(&mut *to) {
        *to = pair(even, odd);
    }
    if let (&[even], Some(to)) = (last, to.last_mut()) {
        *to = pair(even, 0.0);
    }
}

#[inline(always)]
fn pair_rows_body<const FUSED: bool>(even: &[f32], odd: &[f32], to: &mut [u32]) {
    for ((&even, &odd), to) in even.iter().zip(odd).zip(to) {
        *to = pair(even, odd);
    }
}

#[inline(always)]
fn round_row_body<const FUSED: bool>(row: &[f32], to: &mut [f32]) {
    for (&value, to) in row.iter().zip(to) {
        *to = f32::from_bits(nearest(value));
    }
}

/// Bits of the nearest bf16 value as an `f32`: to the even one between two, and quiet if it is no number.
#[inline(always)]
fn nearest(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    (if value.is_nan() { quiet } else { rounded }) & 0xffff_0000
}

/// Two values rounded to the nearest bf16 value, the even one in the lower half.
#[inline(always)]
pub(super) fn pair(even: f32, odd: f32) -> u32 {
    nearest(even) >> 16 | nearest(odd)
}

/// Even and odd value of a pair.
#[inline(always)]
fn parts(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// Method that computes in plain floats.
#[repr(align(64))]
pub(super) struct PlainFloats {
    /// Part of a panel in the layout of [`panel_product`].
    weights: [f32; 2 * CHUNK * PANEL],
}

impl PlainFloats {
    pub(super) fn new() -> Self {
        Self { weights: [0.0; 2 * CHUNK * PANEL] }
    }
}

impl Dot for PlainFloats {
    type Pair = [f32; 2];

    fn round(&mut self, row: &[f32], to: &mut [[f32; 2]]) {
        let (values, padding) = to.as_flattened_mut().split_at_mut(row.len());
        round_row(row, values);
        padding.fill(0.0);
    }

    fn multiply(&mut self, x: &[[f32; 2]], stride: usize, panel: &[u32], sums: &mut [f32]) {
        let weights = &mut self.weights[..2 * panel.len()];
        for (pairs, to) in panel.chunks_exact(PANEL).zip(weights.chunks_exact_mut(2 * PANEL)) {
            let (even, odd) = to.split_at_mut(PANEL);
            for ((&pair, even), odd) in pairs.iter().zip(even).zip(odd) {
                [*even, *odd] = parts(pair);
            }
        }
        panel_product(bytemuck::cast_slice(x), 2 * stride, weights, sums);
    }
}

/// Method that uses the CPU's instruction for pairs.
pub(super) struct Bf16Pairs(Bf16Support);

impl Bf16Pairs {
    pub(super) fn new(present: Bf16Support) -> Self {
        Self(present)
    }
}

impl Dot for Bf16Pairs {
    type Pair = u32;

    fn round(&mut self, row: &[f32], to: &mut [u32]) {
        assert!(row.len().div_ceil(2) == to.len(), "a pair for each two values");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Bf16Support` proves that the CPU has the instructions; there are as many places as pairs.
        unsafe {
            x86::round(row, to);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("only x86-64 has the instruction");
    }

    fn multiply(&mut self, x: &[u32], stride: usize, panel: &[u32], sums: &mut [f32]) {
        let pairs = panel.len() / PANEL;
        let rows = sums.len() / PANEL;
        assert!(panel.len().is_multiple_of(PANEL) && sums.len().is_multiple_of(PANEL), "whole panels");
        assert!(pairs <= CHUNK, "one chunk");
        assert!(rows == 0 || x.len() >= (rows - 1) * stride + pairs, "rows of activations");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Bf16Support` proves that the CPU has the instructions; x, the panel and the sums cover the rows, as
        // asserted.
        unsafe {
            match self.0.tiles {
                Some(tiles) => {
                    PanelProduct::new(x, stride, panel, sums).add(tiles, TileDot::Bf16);
                }
                None => x86::multiply(x, stride, panel, sums),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("only x86-64 has the instruction");
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::PANEL;
    use crate::kernel::with_rows::with_rows;

    /// Number of outputs per vector: a panel is two vectors wide.
    const LANES: usize = 16;
    /// Number of rows of a tile: 24 accumulators leave 8 registers for weights and activations in flight.
    const TILE: usize = 12;

    /// Rounds a row of activations to pairs.
    ///
    /// # Safety
    /// The CPU must support the instructions, and `to` must have a place for each two values.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn round(row: &[f32], to: &mut [u32]) {
        // SAFETY: the pointers are those of arrays with 32 values and 16 places.
        let block = |from: *const f32, to: *mut u32| unsafe {
            let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(LANES)), _mm512_loadu_ps(from));
            _mm512_storeu_si512(to.cast(), transmute::<__m512bh, __m512i>(pairs));
        };
        let (blocks, rest) = row.as_chunks::<{ 2 * LANES }>();
        let (places, last) = to.split_at_mut(blocks.len() * LANES);
        for (from, to) in blocks.iter().zip(places.chunks_exact_mut(LANES)) {
            block(from.as_ptr(), to.as_mut_ptr());
        }
        if !rest.is_empty() {
            let mut from = [0.0; 2 * LANES];
            let mut to = [0; LANES];
            from[..rest.len()].copy_from_slice(rest);
            block(from.as_ptr(), to.as_mut_ptr());
            last.copy_from_slice(&to[..last.len()]);
        }
    }

    /// Rounds two rows to pairs of the values at the same index.
    ///
    /// # Safety
    /// The CPU must support the instructions, and the three slices must have the same length.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn interleave(even: &[f32], odd: &[f32], to: &mut [u32]) {
        let order: [u16; 2 * LANES] = std::array::from_fn(|at| (at / 2 + at % 2 * LANES) as u16);
        // SAFETY: the pointers are those of arrays with 16 values and 16 places; the order has 32 indices.
        let block = |even: *const f32, odd: *const f32, to: *mut u32| unsafe {
            let halves = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(odd), _mm512_loadu_ps(even));
            let order = _mm512_loadu_si512(order.as_ptr().cast());
            let pairs = _mm512_permutexvar_epi16(order, transmute::<__m512bh, __m512i>(halves));
            _mm512_storeu_si512(to.cast(), pairs);
        };
        let (evens, last_even) = even.as_chunks::<LANES>();
        let (odds, last_odd) = odd.as_chunks::<LANES>();
        let (places, last) = to.as_chunks_mut::<LANES>();
        for ((even, odd), to) in evens.iter().zip(odds).zip(places) {
            block(even.as_ptr(), odd.as_ptr(), to.as_mut_ptr());
        }
        if !last.is_empty() {
            let mut from = [[0.0; LANES]; 2];
            let mut to = [0; LANES];
            from[0][..last.len()].copy_from_slice(last_even);
            from[1][..last.len()].copy_from_slice(last_odd);
            block(from[0].as_ptr(), from[1].as_ptr(), to.as_mut_ptr());
            last.copy_from_slice(&to[..last.len()]);
        }
    }

    /// Multiplies all rows with a panel.
    ///
    /// # Safety
    /// The CPU must support the instructions; `x` must have as many rows as the sums, `stride` apart, each with as
    /// many pairs as the panel.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn multiply(x: &[u32], stride: usize, panel: &[u32], sums: &mut [f32]) {
        let pairs = panel.len() / PANEL;
        let rows = sums.len() / PANEL;
        let tiles = rows.div_ceil(TILE);
        for tile in 0..tiles {
            let from = rows * tile / tiles;
            let to = rows * (tile + 1) / tiles;
            // SAFETY: rows `from` to `to` lie inside x and the sums, as the caller guarantees.
            unsafe {
                let source = (panel.as_ptr(), pairs, x.as_ptr().add(from * stride), stride);
                let sums = sums.as_mut_ptr().add(from * PANEL);
                with_rows!(to - from, [1 2 3 4 5 6 7 8 9 10 11], TILE, R => rows_of::<R>(source, sums));
            }
        }
    }

    /// Computes one tile from the panel, its number of pairs, the first row of activations with the distance to the
    /// next row, and the sums.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn rows_of<const R: usize>((panel, pairs, x, stride): (*const u32, usize, *const u32, usize), to: *mut f32) {
        // SAFETY: the sums have R rows of a panel, x R rows of pairs `stride` apart, the panel `pairs` rows.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = [_mm512_loadu_ps(to.add(row * PANEL)), _mm512_loadu_ps(to.add(row * PANEL + LANES))];
            }
            let vector = |pairs: __m512i| transmute::<__m512i, __m512bh>(pairs);
            for k in 0..pairs {
                let at = panel.add(k * PANEL);
                let low = vector(_mm512_loadu_si512(at.cast()));
                let high = vector(_mm512_loadu_si512(at.add(LANES).cast()));
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = vector(_mm512_set1_epi32((*x.add(row * stride + k)).cast_signed()));
                    sum[0] = _mm512_dpbf16_ps(sum[0], x, low);
                    sum[1] = _mm512_dpbf16_ps(sum[1], x, high);
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(to.add(row * PANEL), sum[0]);
                _mm512_storeu_ps(to.add(row * PANEL + LANES), sum[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn plain_rounding_is_that_of_half() {
        let edges = [0x0000_8000, 0x0001_8000, 0x3f80_7fff, 0x3f80_8000, 0x3f80_8001, 0x7f7f_ffff, 0x7f80_0000];
        let noise = (0..20_000u32).map(|at| at.wrapping_mul(0x9e37_79b9));
        let numbers = edges.into_iter().flat_map(|bits| [bits, bits | 1 << 31]).chain(noise);
        let mut values: Vec<f32> = numbers.map(f32::from_bits).filter(|value| !value.is_nan()).collect();
        values.push(1.0);
        let expected: Vec<f32> = values.iter().map(|&value| bf16::from_f32(value).to_f32()).collect();
        let mut rounded = vec![0.0; values.len()];
        round_row(&values, &mut rounded);
        assert_eq!(rounded, expected);
        let mut pairs = vec![0; values.len().div_ceil(2)];
        DotMethod::PlainFloats.pair_neighbors(&values, &mut pairs);
        let found: Vec<f32> = pairs.iter().flat_map(|&pair| parts(pair)).collect();
        assert_eq!(found[..values.len()], expected);
        assert!(
            f32::from_bits(nearest(f32::NAN)).is_nan() && f32::from_bits(nearest(f32::from_bits(0xffff_ffff))).is_nan()
        );
    }
}
