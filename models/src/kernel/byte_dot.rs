//! Dot products of bytes, a panel at a time, four input indices at a time, by the CPU's instructions for them:
//! AMX or AVX512-VNNI, or on AArch64 `sdot` and `smmla` (FEAT_DotProd and FEAT_I8MM).

#[cfg(target_arch = "x86_64")]
use super::amx::{PanelProduct, TileDot, TileSupport};
use super::layout::PANEL;
#[cfg(target_arch = "aarch64")]
use super::neon::byte_sums;

/// Maximum number of quads of input indices multiplied at once: 24 KiB of a panel, which fits the first-level cache.
pub(super) const CHUNK: usize = 192;

/// Number of steps between the smallest and the largest byte.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const STEPS: f32 = 255.0;

/// Instructions that this CPU has; only [`ByteSupport::detect`] and [`ByteSupport::available`] create one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteSupport(ByteMethod);

/// Methods to multiply bytes.
#[derive(Debug, Clone, Copy)]
enum ByteMethod {
    /// AMX, for unsigned activations.
    #[cfg(target_arch = "x86_64")]
    Tiles(TileSupport),
    /// AVX-512 F and AVX512-VNNI, for unsigned activations.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// FEAT_I8MM, for signed activations.
    #[cfg(target_arch = "aarch64")]
    Matrices,
    /// FEAT_DotProd, for signed activations.
    #[cfg(target_arch = "aarch64")]
    Dot,
}

/// Values of the bytes of a row: `zero + step · byte`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ByteScale {
    /// Value that byte 0 stands for: the smallest one of the row where bytes are unsigned.
    pub(super) zero: f32,
    /// Difference between the values of neighboring bytes.
    pub(super) step: f32,
}

impl ByteSupport {
    /// Returns the best instructions if this CPU multiplies bytes. Cheap: the standard library caches the feature
    /// detection.
    pub(crate) fn detect() -> Option<Self> {
        Self::available().next()
    }

    /// All instructions that this CPU has, best first.
    pub(super) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let methods = {
            use std::arch::is_x86_feature_detected as has;
            let tiles = TileSupport::detect().map(ByteMethod::Tiles);
            let vnni = (has!("avx512f") && has!("avx512vnni")).then_some(ByteMethod::Vnni);
            [tiles, vnni]
        };
        #[cfg(target_arch = "aarch64")]
        let methods = {
            use std::arch::is_aarch64_feature_detected as has;
            [has!("i8mm").then_some(ByteMethod::Matrices), has!("dotprod").then_some(ByteMethod::Dot)]
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let methods: [Option<ByteMethod>; 0] = [];
        methods.into_iter().flatten().map(Self)
    }

    /// Rounds a row of activations to bytes. The smallest and the largest byte stand for the row's smallest and largest
    /// value. A row with a value that is not finite gets a scale that is not finite, so none of its results are
    /// finite.
    pub(super) fn round(self, row: &[f32], to: &mut [u32]) -> ByteScale {
        assert!(row.len().div_ceil(4) == to.len(), "a quad for each four values");
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: `self` proves that the CPU has the instructions.
            let (scale, inverse) = scaled(unsafe { x86::range(row) });
            // SAFETY: as above, and there is a quad for each four values.
            unsafe { x86::round(row, to, scale.zero, inverse) };
            scale
        }
        #[cfg(target_arch = "aarch64")]
        {
            let (scale, inverse) = scaled(byte_sums::range(row));
            byte_sums::round(row, to, scale.zero, inverse);
            // The smallest byte is -128.
            ByteScale { zero: scale.zero + 128.0 * scale.step, step: scale.step }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        match self.0 {}
    }

    /// Computes `sums[r][o] += Σ_k x[r · stride + k] · panel[k][o]`, with k over the panel's quads, all four products
    /// of which are added. The sums are exact.
    ///
    /// # Panics
    /// If `x` is too short, another length is not a multiple of [`PANEL`], or the panel is longer than [`CHUNK`]
    /// quads.
    #[allow(unused_unsafe, reason = "on other CPUs there is no method to call")]
    pub(super) fn multiply(self, x: &[u32], stride: usize, panel: &[u32], sums: &mut [i32]) {
        let quads = panel.len() / PANEL;
        let rows = sums.len() / PANEL;
        assert!(panel.len().is_multiple_of(PANEL) && sums.len().is_multiple_of(PANEL), "whole panels");
        assert!(quads <= CHUNK, "one chunk");
        assert!(rows == 0 || x.len() >= (rows - 1) * stride + quads, "rows of activations");
        // SAFETY: `self` proves that the CPU has the instructions; x, the panel and the sums cover the rows, as
        // asserted.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                ByteMethod::Tiles(support) => {
                    PanelProduct::new(x, stride, panel, sums).add(support, TileDot::Bytes);
                }
                #[cfg(target_arch = "x86_64")]
                ByteMethod::Vnni => x86::multiply(x, stride, panel, sums),
                #[cfg(target_arch = "aarch64")]
                ByteMethod::Matrices => byte_sums::multiply_matrices(x, stride, panel, sums),
                #[cfg(target_arch = "aarch64")]
                ByteMethod::Dot => byte_sums::multiply_dot(x, stride, panel, sums),
            }
        }
    }
}

/// Scale of a row with the given smallest and largest value in unsigned bytes, and the inverse of its step.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn scaled((least, most): (f32, f32)) -> (ByteScale, f32) {
    let scale = ByteScale { zero: least, step: (most - least) / STEPS };
    let inverse = if scale.step > 0.0 { STEPS / (most - least) } else { 0.0 };
    (scale, inverse)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::PANEL;
    use crate::kernel::with_rows::with_rows;

    /// Number of outputs per vector: a panel is two vectors wide.
    const LANES: usize = 16;
    /// Number of rows of a tile: 24 accumulators leave 8 registers for weights and activations in flight.
    const TILE: usize = 12;

    /// Mask of the first `count` lanes, of at most sixteen.
    fn first_lanes(count: usize) -> __mmask16 {
        ((1_u32 << count) - 1) as __mmask16
    }

    /// Returns the smallest and the largest value of a row, or NaN twice if one is NaN.
    #[target_feature(enable = "avx512f")]
    pub(super) fn range(row: &[f32]) -> (f32, f32) {
        // Two chains, because each comparison waits for the one before it in its chain.
        let mut least = [_mm512_set1_ps(f32::INFINITY); 2];
        let mut most = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
        let mut unordered = 0;
        let (pairs, rest) = row.as_chunks::<{ 2 * LANES }>();
        for pair in pairs {
            // SAFETY: a pair is two vectors.
            let x = unsafe { [_mm512_loadu_ps(pair.as_ptr()), _mm512_loadu_ps(pair.as_ptr().add(LANES))] };
            for chain in 0..2 {
                least[chain] = _mm512_min_ps(least[chain], x[chain]);
                most[chain] = _mm512_max_ps(most[chain], x[chain]);
            }
            unordered |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x[0], x[1]);
        }
        for some in rest.chunks(LANES) {
            let mask = first_lanes(some.len());
            // SAFETY: the mask leaves out lanes beyond the row.
            let x = unsafe { _mm512_maskz_loadu_ps(mask, some.as_ptr()) };
            least[0] = _mm512_mask_min_ps(least[0], mask, least[0], x);
            most[0] = _mm512_mask_max_ps(most[0], mask, most[0], x);
            unordered |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        }
        if unordered != 0 {
            return (f32::NAN, f32::NAN);
        }
        let least = _mm512_min_ps(least[0], least[1]);
        let most = _mm512_max_ps(most[0], most[1]);
        (_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(most))
    }

    /// Rounds a row to bytes `(x - least) · inverse`.
    ///
    /// # Safety
    /// The CPU must support the instructions, and `to` must have a quad for each four values.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn round(row: &[f32], to: &mut [u32], least: f32, inverse: f32) {
        if let Some(last) = to.last_mut() {
            *last = 0;
        }
        let to = to.as_mut_ptr().cast::<i8>();
        let least = _mm512_set1_ps(least);
        let inverse = _mm512_set1_ps(inverse);
        let bytes = |x| _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(x, least), inverse));
        let (vectors, rest) = row.as_chunks::<LANES>();
        for (vector, x) in vectors.iter().enumerate() {
            // SAFETY: sixteen values, and sixteen bytes, which lie inside the quads.
            unsafe {
                let rounded = _mm512_cvtepi32_epi8(bytes(_mm512_loadu_ps(x.as_ptr())));
                _mm_storeu_si128(to.add(vector * LANES).cast(), rounded);
            }
        }
        if !rest.is_empty() {
            let mask = first_lanes(rest.len());
            // SAFETY: the mask leaves out values and bytes beyond the row, which is not longer than the quads.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask, rest.as_ptr());
                _mm512_mask_cvtepi32_storeu_epi8(to.add(vectors.len() * LANES), mask, bytes(x));
            }
        }
    }

    /// Multiplies all rows with a panel.
    ///
    /// # Safety
    /// The CPU must support the instructions; `x` must have as many rows as the sums, `stride` apart, each with as
    /// many quads as the panel.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn multiply(x: &[u32], stride: usize, panel: &[u32], sums: &mut [i32]) {
        let quads = panel.len() / PANEL;
        let rows = sums.len() / PANEL;
        let tiles = rows.div_ceil(TILE);
        for tile in 0..tiles {
            let from = rows * tile / tiles;
            let to = rows * (tile + 1) / tiles;
            // SAFETY: rows `from` to `to` lie inside x and the sums, as the caller guarantees.
            unsafe {
                let source = (panel.as_ptr(), quads, x.as_ptr().add(from * stride), stride);
                let sums = sums.as_mut_ptr().add(from * PANEL);
                with_rows!(to - from, [1 2 3 4 5 6 7 8 9 10 11], TILE, R => rows_of::<R>(source, sums));
            }
        }
    }

    /// Computes one tile from the panel, its number of quads, the first row of activations with the distance to the
    /// next row, and the sums.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn rows_of<const R: usize>((panel, quads, x, stride): (*const u32, usize, *const u32, usize), to: *mut i32) {
        // SAFETY: the sums have R rows of a panel, x R rows of quads `stride` apart, the panel `quads` rows.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; R];
            for (row, sum) in sums.iter_mut().enumerate() {
                let to = to.add(row * PANEL);
                *sum = [_mm512_loadu_si512(to.cast()), _mm512_loadu_si512(to.add(LANES).cast())];
            }
            for k in 0..quads {
                let at = panel.add(k * PANEL);
                let low = _mm512_loadu_si512(at.cast());
                let high = _mm512_loadu_si512(at.add(LANES).cast());
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32((*x.add(row * stride + k)).cast_signed());
                    sum[0] = _mm512_dpbusd_epi32(sum[0], x, low);
                    sum[1] = _mm512_dpbusd_epi32(sum[1], x, high);
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                let to = to.add(row * PANEL);
                _mm512_storeu_si512(to.cast(), sum[0]);
                _mm512_storeu_si512(to.add(LANES).cast(), sum[1]);
            }
        }
    }
}
