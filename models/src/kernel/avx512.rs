//! Kernels for AVX-512: a panel is two vectors wide.
//!
//! Every storage form is a way to walk through a panel that yields two vectors of weights per input index. The tile
//! multiplies them directly in registers and stores them only if other tiles need them.

use std::arch::x86_64::*;

use super::isa::Isa;
use super::layout::{BLOCK, Bits, BlockForm, Form, PANEL};
use super::matmul::{PanelSource, TileKernel};
use super::prefetch::prefetch_line;
use super::quant::unpack as unpack_super;
use super::with_rows::with_rows;

pub(super) struct Avx512;

/// Number of outputs per vector.
const LANES: usize = 16;
/// Prefetch distance in bytes; the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 4096;

/// Prefetches the cache line [`AHEAD`] bytes after `at`.
#[inline(always)]
fn ahead(at: *const u8) {
    prefetch_line(at.wrapping_add(AHEAD));
}

impl TileKernel for Avx512 {
    /// Uses 24 accumulators, which leave 8 registers for weights and activations in flight.
    const TILE: usize = 12;
    const FUSED: bool = true;

    unsafe fn tile(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
        use Bits::{Eight, Five, Four};
        // SAFETY: the caller's guarantees are passed on.
        unsafe {
            match source.form {
                Form::F32 => tile_rows::<Floats>(source, rows, x, stride, acc),
                Form::F16 => tile_rows::<Halves<false>>(source, rows, x, stride, acc),
                Form::Bf16 => tile_rows::<Halves<true>>(source, rows, x, stride, acc),
                Form::Super(_) => {
                    let PanelSource { form, from, skipped, k, scratch, .. } = source;
                    unpack_super(Isa::Avx512, form, (from, skipped), k / BLOCK, scratch);
                    let source = PanelSource { form: Form::F32, from: scratch.cast(), keep: false, ..source };
                    tile_rows::<Floats>(source, rows, x, stride, acc);
                }
                Form::Block(block) => match (block.bits, block.min) {
                    (Four, false) => tile_rows::<Nibbles<false, false>>(source, rows, x, stride, acc),
                    (Four, true) => tile_rows::<Nibbles<true, false>>(source, rows, x, stride, acc),
                    (Five, false) => tile_rows::<Nibbles<false, true>>(source, rows, x, stride, acc),
                    (Five, true) => tile_rows::<Nibbles<true, true>>(source, rows, x, stride, acc),
                    (Eight, _) => tile_rows::<Bytes>(source, rows, x, stride, acc),
                },
            }
        }
    }
}

/// Computes one tile of `rows` rows.
///
/// # Safety
/// The same as for [`TileKernel::tile`].
unsafe fn tile_rows<W: PanelWalk>(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        with_rows!(rows, [1 2 3 4 5 6 7 8 9 10 11], 12, R => tile::<W, R>(source, x, stride, acc));
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile<W: PanelWalk, const R: usize>(source: PanelSource, x: *const f32, stride: usize, acc: *mut f32) {
    // SAFETY: `acc` has R rows of a panel, `x` R rows of k values `stride` apart, the scratch k rows of a panel.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = [_mm512_loadu_ps(acc.add(row * PANEL)), _mm512_loadu_ps(acc.add(row * PANEL + LANES))];
        }
        W::walk(source.from, source.k, |k, low, high| {
            if source.keep {
                _mm512_store_ps(source.scratch.add(k * PANEL), low);
                _mm512_store_ps(source.scratch.add(k * PANEL + LANES), high);
            }
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*x.add(row * stride + k));
                sum[0] = _mm512_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm512_fmadd_ps(x, high, sum[1]);
            }
        });
        for (row, sum) in sums.iter().enumerate() {
            _mm512_storeu_ps(acc.add(row * PANEL), sum[0]);
            _mm512_storeu_ps(acc.add(row * PANEL + LANES), sum[1]);
        }
    }
}

/// A storage form of weights: calls `take(k, outputs 0 to 15, outputs 16 to 31)` for every input index in order.
trait PanelWalk {
    /// Walks through a panel.
    ///
    /// # Safety
    /// AVX-512 F must be enabled; `from` must hold `k` input indices of a panel, aligned to 64 bytes unless the
    /// form is [`Floats`].
    unsafe fn walk(from: *const u8, k: usize, take: impl FnMut(usize, __m512, __m512));
}

struct Floats;

impl PanelWalk for Floats {
    #[inline(always)]
    unsafe fn walk(from: *const u8, k: usize, mut take: impl FnMut(usize, __m512, __m512)) {
        let from = from.cast::<f32>();
        for k in 0..k {
            ahead(from.wrapping_add(k * PANEL).cast());
            ahead(from.wrapping_add(k * PANEL + LANES).cast());
            // SAFETY: `from` has PANEL floats per index.
            unsafe { take(k, _mm512_loadu_ps(from.add(k * PANEL)), _mm512_loadu_ps(from.add(k * PANEL + LANES))) };
        }
    }
}

struct Halves<const BF16: bool>;

impl<const BF16: bool> Halves<BF16> {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        // SAFETY: 16 halves of a panel, aligned to 32.
        unsafe {
            let halves = _mm256_load_si256(from.cast());
            if BF16 {
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))
            } else {
                _mm512_cvtph_ps(halves)
            }
        }
    }
}

impl<const BF16: bool> PanelWalk for Halves<BF16> {
    #[inline(always)]
    unsafe fn walk(from: *const u8, k: usize, mut take: impl FnMut(usize, __m512, __m512)) {
        for k in 0..k {
            ahead(from.wrapping_add(k * 64));
            // SAFETY: `from` has PANEL halves per index.
            unsafe { take(k, Self::load(from.add(k * 64)), Self::load(from.add(k * 64 + 32))) };
        }
    }
}

struct Bytes;

impl Bytes {
    const FORM: BlockForm = BlockForm { bits: Bits::Eight, min: false };

    #[inline(always)]
    unsafe fn load(from: *const u8, scale: __m512) -> __m512 {
        // SAFETY: 16 quants of a panel, aligned to 16.
        unsafe {
            let quants = _mm512_cvtepi8_epi32(_mm_load_si128(from.cast()));
            _mm512_mul_ps(_mm512_cvtepi32_ps(quants), scale)
        }
    }
}

impl PanelWalk for Bytes {
    #[inline(always)]
    unsafe fn walk(from: *const u8, k: usize, mut take: impl FnMut(usize, __m512, __m512)) {
        for block in 0..k / BLOCK {
            // SAFETY: the parts of a block have the offsets of `layout`.
            unsafe {
                let from = from.add(block * Self::FORM.bytes());
                let scales = [Halves::<false>::load(from), Halves::<false>::load(from.add(32))];
                let quants = from.add(Self::FORM.quants());
                for k in 0..BLOCK {
                    ahead(quants.wrapping_add(k * PANEL));
                    let low = Self::load(quants.add(k * PANEL), scales[0]);
                    let high = Self::load(quants.add(k * PANEL + LANES), scales[1]);
                    take(block * BLOCK + k, low, high);
                }
            }
        }
    }
}

/// Quants of four bits, or five with `HIGH`. Nibbles become floats by a table look-up in a register, which reads
/// only the low four bits of each lane.
struct Nibbles<const MIN: bool, const HIGH: bool>;

impl<const MIN: bool, const HIGH: bool> Nibbles<MIN, HIGH> {
    const FORM: BlockForm = BlockForm { bits: if HIGH { Bits::Five } else { Bits::Four }, min: MIN };

    #[inline(always)]
    unsafe fn table() -> __m512 {
        let offset = if MIN {
            0.0
        } else if HIGH {
            -16.0
        } else {
            -8.0
        };
        // SAFETY: AVX-512 F is enabled.
        unsafe {
            let ramp = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            _mm512_add_ps(ramp, _mm512_set1_ps(offset))
        }
    }

    #[inline(always)]
    unsafe fn weight(packed: __m512i, table: __m512, high: u32, scale: __m512, min: __m512) -> __m512 {
        // SAFETY: AVX-512 F is enabled.
        unsafe {
            let mut quant = _mm512_permutexvar_ps(packed, table);
            if HIGH {
                quant = _mm512_mask_add_ps(quant, high as __mmask16, quant, _mm512_set1_ps(16.0));
            }
            if MIN { _mm512_fmadd_ps(quant, scale, min) } else { _mm512_mul_ps(quant, scale) }
        }
    }
}

impl<const MIN: bool, const HIGH: bool> PanelWalk for Nibbles<MIN, HIGH> {
    #[inline(always)]
    unsafe fn walk(from: *const u8, k: usize, mut take: impl FnMut(usize, __m512, __m512)) {
        // SAFETY: the parts of a block have the offsets of `layout`.
        unsafe {
            let table = Self::table();
            for block in 0..k / BLOCK {
                let from = from.add(block * Self::FORM.bytes());
                let scales = [Halves::<false>::load(from), Halves::<false>::load(from.add(32))];
                // Without minima this loads quants instead, and the values stay unused.
                let mins = [Halves::<false>::load(from.add(64)), Halves::<false>::load(from.add(96))];
                let quants = from.add(Self::FORM.quants());
                let highs = from.add(Self::FORM.high()).cast::<u32>();
                for group in 0..BLOCK / 8 {
                    ahead(quants.wrapping_add(group * 128));
                    ahead(quants.wrapping_add(group * 128 + 64));
                    let mut low = _mm512_load_si512(quants.add(group * 128).cast());
                    let mut high = _mm512_load_si512(quants.add(group * 128 + 64).cast());
                    for k in group * 8..group * 8 + 8 {
                        let fifth = if HIGH { *highs.add(k) } else { 0 };
                        let weights = (
                            Self::weight(low, table, fifth, scales[0], mins[0]),
                            Self::weight(high, table, fifth >> LANES, scales[1], mins[1]),
                        );
                        take(block * BLOCK + k, weights.0, weights.1);
                        low = _mm512_srli_epi32(low, 4);
                        high = _mm512_srli_epi32(high, 4);
                    }
                }
            }
        }
    }
}
