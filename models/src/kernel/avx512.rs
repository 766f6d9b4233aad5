//! Kernels for AVX-512: a panel is two vectors wide.

use std::arch::x86_64::*;

use super::layout::{BLOCK, Bits, BlockForm, Form, PANEL};
use super::matmul::Kernel;

pub(super) struct Avx512;

/// Outputs per vector.
const LANES: usize = 16;

impl Kernel for Avx512 {
    /// 24 accumulators, 2 weights, and registers left for the activations on their way.
    const TILE: usize = 12;

    unsafe fn unpack(form: Form, from: *const u8, k: usize, into: *mut f32) {
        // SAFETY: the caller's promises are handed on.
        unsafe {
            match form {
                Form::F32 | Form::F16 => halves::<false>(from, k, into),
                Form::Bf16 => halves::<true>(from, k, into),
                Form::Block(block) => {
                    for index in 0..k / BLOCK {
                        unpack_block(block, from.add(index * block.bytes()), into.add(index * BLOCK * PANEL));
                    }
                }
            }
        }
    }

    unsafe fn tile(rows: usize, x: *const f32, stride: usize, w: *const f32, k: usize, acc: *mut f32) {
        // SAFETY: the caller's promises are handed on.
        unsafe {
            match rows {
                1 => tile::<1>(x, stride, w, k, acc),
                2 => tile::<2>(x, stride, w, k, acc),
                3 => tile::<3>(x, stride, w, k, acc),
                4 => tile::<4>(x, stride, w, k, acc),
                5 => tile::<5>(x, stride, w, k, acc),
                6 => tile::<6>(x, stride, w, k, acc),
                7 => tile::<7>(x, stride, w, k, acc),
                8 => tile::<8>(x, stride, w, k, acc),
                9 => tile::<9>(x, stride, w, k, acc),
                10 => tile::<10>(x, stride, w, k, acc),
                11 => tile::<11>(x, stride, w, k, acc),
                _ => tile::<12>(x, stride, w, k, acc),
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile<const R: usize>(x: *const f32, stride: usize, w: *const f32, k: usize, acc: *mut f32) {
    // SAFETY: `acc` has R rows of a panel, `w` k rows of a panel, `x` R rows of k values `stride` apart.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = [_mm512_load_ps(acc.add(row * PANEL)), _mm512_load_ps(acc.add(row * PANEL + LANES))];
        }
        for index in 0..k {
            let low = _mm512_load_ps(w.add(index * PANEL));
            let high = _mm512_load_ps(w.add(index * PANEL + LANES));
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*x.add(row * stride + index));
                sum[0] = _mm512_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm512_fmadd_ps(x, high, sum[1]);
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            _mm512_store_ps(acc.add(row * PANEL), sum[0]);
            _mm512_store_ps(acc.add(row * PANEL + LANES), sum[1]);
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn halves<const BRAIN: bool>(from: *const u8, k: usize, into: *mut f32) {
    for index in 0..k * PANEL / LANES {
        // SAFETY: `from` has k · PANEL halves and `into` as many floats.
        unsafe {
            let halves = _mm256_load_si256(from.add(index * LANES * 2).cast());
            let floats = if BRAIN {
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))
            } else {
                _mm512_cvtph_ps(halves)
            };
            _mm512_store_ps(into.add(index * LANES), floats);
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn unpack_block(block: BlockForm, from: *const u8, into: *mut f32) {
    for half in 0..2 {
        // SAFETY: the parts of a block lie where `layout` says; `into` has BLOCK rows of a panel.
        unsafe {
            let scale = _mm512_cvtph_ps(_mm256_load_si256(from.add(half * 32).cast()));
            let min = _mm512_cvtph_ps(_mm256_load_si256(from.add(64 + half * 32).cast()));
            let into = into.add(half * LANES);
            let quants = from.add(block.quants());
            let highs = from.add(block.high()).cast::<u32>();
            match (block.bits, block.min) {
                (Bits::Four, false) => nibbles::<false, false>(quants, highs, half, scale, min, into),
                (Bits::Four, true) => nibbles::<true, false>(quants, highs, half, scale, min, into),
                (Bits::Five, false) => nibbles::<false, true>(quants, highs, half, scale, min, into),
                (Bits::Five, true) => nibbles::<true, true>(quants, highs, half, scale, min, into),
                (Bits::Eight, _) => bytes(quants.add(half * LANES), scale, into),
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn bytes(quants: *const u8, scale: __m512, into: *mut f32) {
    for k in 0..BLOCK {
        // SAFETY: 16 of the 32 quants of index k, of which the caller pointed at the first.
        unsafe {
            let quant = _mm512_cvtepi8_epi32(_mm_load_si128(quants.add(k * PANEL).cast()));
            _mm512_store_ps(into.add(k * PANEL), _mm512_mul_ps(_mm512_cvtepi32_ps(quant), scale));
        }
    }
}

/// Nibbles become floats by a look-up in a register, which reads only the low four bits of each lane.
#[target_feature(enable = "avx512f")]
unsafe fn nibbles<const MIN: bool, const HIGH: bool>(
    quants: *const u8,
    highs: *const u32,
    half: usize,
    scale: __m512,
    min: __m512,
    into: *mut f32,
) {
    let offset = if MIN {
        0.0
    } else if HIGH {
        -16.0
    } else {
        -8.0
    };
    let ramp = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
    let table = _mm512_add_ps(ramp, _mm512_set1_ps(offset));
    let sixteen = _mm512_set1_ps(16.0);
    for group in 0..BLOCK / 8 {
        // SAFETY: four groups of two vectors of nibbles, 32 words of high bits, 32 rows of a panel to write.
        unsafe {
            let mut packed = _mm512_load_si512(quants.add((group * 2 + half) * 64).cast());
            for k in group * 8..group * 8 + 8 {
                let mut quant = _mm512_permutexvar_ps(packed, table);
                packed = _mm512_srli_epi32(packed, 4);
                if HIGH {
                    let mask = (*highs.add(k) >> (half * LANES)) as __mmask16;
                    quant = _mm512_mask_add_ps(quant, mask, quant, sixteen);
                }
                let weight = if MIN { _mm512_fmadd_ps(quant, scale, min) } else { _mm512_mul_ps(quant, scale) };
                _mm512_store_ps(into.add(k * PANEL), weight);
            }
        }
    }
}
