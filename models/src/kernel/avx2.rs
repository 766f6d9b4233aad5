//! Kernels for AVX2 with FMA and F16C: a panel is four vectors wide, handled in two halves.
//!
//! Weights are unpacked into the scratch, except for [one or two rows](direct).

mod direct;

use std::arch::x86_64::*;

use self::direct::Blocks;
use super::isa::Isa;
use super::layout::{BLOCK, Bits, BlockForm, Form, PANEL};
use super::matmul::{PanelSource, TileKernel};
use super::quant::unpack as unpack_super;
use super::with_rows::with_rows;

pub(super) struct Avx2;

/// Number of outputs per vector.
const LANES: usize = 8;

impl TileKernel for Avx2 {
    /// Twelve accumulators, 2 weights and 2 activations use all 16 registers.
    const TILE: usize = 6;

    const FUSED: bool = false;

    fn is_direct(form: Form, rows: usize) -> bool {
        rows <= direct::ROWS && matches!(form, Form::Block(_))
    }

    unsafe fn tile(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
        // SAFETY: the caller's guarantees are passed on; a half of a panel starts two vectors into each of its
        // rows.
        unsafe {
            let k = source.k;
            if let Form::Block(block) = source.form
                && Self::is_direct(source.form, rows)
            {
                let blocks = Blocks { form: block, from: source.from, count: k / BLOCK };
                return direct::products(blocks, rows, x, stride, acc);
            }
            let weights = unpack(source);
            for offset in [0, 2 * LANES] {
                let w = weights.add(offset);
                let acc = acc.add(offset);
                with_rows!(rows, [1 2 3 4 5], 6, R => tile::<R>(x, stride, w, k, acc));
            }
        }
    }
}

/// Unpacks the weights into the scratch and returns the scratch. Plain floats are returned where they are.
unsafe fn unpack(source: PanelSource) -> *const f32 {
    let PanelSource { form, from, skipped, k, scratch, .. } = source;
    // SAFETY: the source matches the contract of its fields.
    unsafe {
        match form {
            Form::F32 => return from.cast(),
            Form::F16 => halves::<false>(from, k, scratch),
            Form::Bf16 => halves::<true>(from, k, scratch),
            Form::Super(_) => unpack_super(Isa::Avx2, form, (from, skipped), k / BLOCK, scratch),
            Form::Block(block) => {
                for index in 0..k / BLOCK {
                    unpack_block(block, from.add(index * block.bytes()), scratch.add(index * BLOCK * PANEL));
                }
            }
        }
    }
    scratch
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const R: usize>(x: *const f32, stride: usize, w: *const f32, k: usize, acc: *mut f32) {
    // SAFETY: `acc` has R rows of half a panel, `w` k rows of half a panel, `x` R rows of k values `stride` apart.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = [_mm256_loadu_ps(acc.add(row * PANEL)), _mm256_loadu_ps(acc.add(row * PANEL + LANES))];
        }
        for index in 0..k {
            let low = _mm256_loadu_ps(w.add(index * PANEL));
            let high = _mm256_loadu_ps(w.add(index * PANEL + LANES));
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = _mm256_set1_ps(*x.add(row * stride + index));
                sum[0] = _mm256_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(x, high, sum[1]);
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            _mm256_storeu_ps(acc.add(row * PANEL), sum[0]);
            _mm256_storeu_ps(acc.add(row * PANEL + LANES), sum[1]);
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn halves<const BF16: bool>(from: *const u8, k: usize, into: *mut f32) {
    for index in 0..k * PANEL / LANES {
        // SAFETY: `from` has k · PANEL halves and `into` as many floats.
        unsafe {
            let halves = _mm_load_si128(from.add(index * LANES * 2).cast());
            let floats = if BF16 {
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))
            } else {
                _mm256_cvtph_ps(halves)
            };
            _mm256_store_ps(into.add(index * LANES), floats);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_block(block: BlockForm, from: *const u8, into: *mut f32) {
    for part in 0..PANEL / LANES {
        // SAFETY: the parts of a block have the offsets of `layout`; `into` has BLOCK rows of a panel.
        unsafe {
            let scale = _mm256_cvtph_ps(_mm_load_si128(from.add(part * 16).cast()));
            let into = into.add(part * LANES);
            let quants = from.add(block.quants());
            if block.bits == Bits::Eight {
                bytes(quants.add(part * LANES), scale, into);
                continue;
            }
            let highs = if block.bits == Bits::Five { from.add(block.high()) } else { std::ptr::null() };
            let offset = _mm256_set1_epi32(block.offset());
            if block.min {
                let min = _mm256_cvtph_ps(_mm_load_si128(from.add(64 + part * 16).cast()));
                nibbles::<true>(quants, highs, part, offset, scale, min, into);
            } else {
                nibbles::<false>(quants, highs, part, offset, scale, scale, into);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn bytes(quants: *const u8, scale: __m256, into: *mut f32) {
    for k in 0..BLOCK {
        // SAFETY: the caller points at the first of 8 quants among the 32 of index k.
        unsafe { _mm256_store_ps(into.add(k * PANEL), byte_weights(quants.add(k * PANEL), scale)) };
    }
}

/// Eight weights of eight bits.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn byte_weights(quants: *const u8, scale: __m256) -> __m256 {
    // SAFETY: the caller points at 8 quants.
    let quants = unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(quants.cast())) };
    _mm256_mul_ps(_mm256_cvtepi32_ps(quants), scale)
}

/// Unpacks 4-bit quants, or 5-bit quants if `highs` is not null.
#[target_feature(enable = "avx2,fma")]
unsafe fn nibbles<const MIN: bool>(
    quants: *const u8,
    highs: *const u8,
    part: usize,
    offset: __m256i,
    scale: __m256,
    min: __m256,
    into: *mut f32,
) {
    let fifteen = _mm256_set1_epi32(15);
    let sixteen = _mm256_set1_epi32(16);
    let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for group in 0..BLOCK / 8 {
        // SAFETY: four groups of four vectors of nibbles, 32 words of high bits, 32 rows of a panel to write.
        unsafe {
            let mut packed = _mm256_load_si256(quants.add(group * 128 + part * 32).cast());
            for k in group * 8..group * 8 + 8 {
                let mut quant = _mm256_and_si256(packed, fifteen);
                packed = _mm256_srli_epi32(packed, 4);
                if !highs.is_null() {
                    let bits = _mm256_set1_epi32(i32::from(*highs.add(4 * k + part)));
                    let set = _mm256_cmpeq_epi32(_mm256_and_si256(bits, lanes), lanes);
                    quant = _mm256_or_si256(quant, _mm256_and_si256(set, sixteen));
                }
                let quant = _mm256_cvtepi32_ps(_mm256_sub_epi32(quant, offset));
                let weight = if MIN { _mm256_fmadd_ps(quant, scale, min) } else { _mm256_mul_ps(quant, scale) };
                _mm256_store_ps(into.add(k * PANEL), weight);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_floats_are_not_unpacked() {
        if !Isa::available().contains(&Isa::Avx2) {
            return;
        }
        let panel: Vec<f32> = (0..3 * PANEL).map(|i| i as f32).collect();
        let from = panel.as_ptr().cast();
        let scratch = std::ptr::null_mut();
        let source = PanelSource { form: Form::F32, from, skipped: 0, k: 3, scratch, keep: false };
        // SAFETY: the CPU has AVX2, and plain floats need no scratch.
        assert_eq!(unsafe { unpack(source) }, panel.as_ptr());
    }
}
