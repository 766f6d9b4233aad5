//! Kernels for AArch64: NEON, which every such CPU has, and the instructions for bytes that most of them have.
//!
//! A panel is eight vectors wide, handled in two halves.

pub(super) mod byte_sums;
pub(super) mod dot_lanes;
mod int_lanes;
mod lanes;
#[cfg(test)]
mod test;

use std::arch::aarch64::*;

use half::f16;

use super::isa::Isa;
use super::layout::{BLOCK, Form, PANEL};
use super::matmul::{PanelSource, TileKernel};
use super::quant::unpack as unpack_super;
use lanes::{WIDTH, load_half, registers};

pub(super) struct Neon;

/// Four vectors of `f32`: half of a panel's outputs.
pub(crate) type Floats = [float32x4_t; 4];

/// Four vectors of integers.
pub(super) type Ints = [int32x4_t; 4];

impl TileKernel for Neon {
    /// 24 accumulators, 4 weights and an activation fit into the 32 registers.
    const TILE: usize = 6;

    const FUSED: bool = false;

    unsafe fn tile(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
        // SAFETY: the caller's guarantees are passed on; a half of a panel starts four vectors into each of its
        // rows.
        unsafe {
            let k = source.k;
            let weights = unpack(source);
            for offset in [0, 4 * WIDTH] {
                let w = weights.add(offset);
                let acc = acc.add(offset);
                match rows {
                    1 => tile::<1>(x, stride, w, k, acc),
                    2 => tile::<2>(x, stride, w, k, acc),
                    3 => tile::<3>(x, stride, w, k, acc),
                    4 => tile::<4>(x, stride, w, k, acc),
                    5 => tile::<5>(x, stride, w, k, acc),
                    _ => tile::<6>(x, stride, w, k, acc),
                }
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
            Form::F16 => {
                for index in (0..k * PANEL).step_by(WIDTH) {
                    vst1q_f32(scratch.add(index), load_half(from.cast::<f16>().add(index)));
                }
            }
            Form::Bf16 => {
                for index in (0..k * PANEL).step_by(WIDTH) {
                    let floats = vshll_n_u16::<16>(vld1_u16(from.cast::<u16>().add(index)));
                    vst1q_f32(scratch.add(index), vreinterpretq_f32_u32(floats));
                }
            }
            Form::Block(_) | Form::Super(_) => unpack_super(Isa::Neon, form, (from, skipped), k / BLOCK, scratch),
        }
    }
    scratch
}

/// Computes half of a panel's outputs.
unsafe fn tile<const R: usize>(x: *const f32, stride: usize, w: *const f32, k: usize, acc: *mut f32) {
    // SAFETY: `acc` has R rows of half a panel, `w` k rows of half a panel, `x` R rows of k values `stride` apart.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 4]; R];
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = registers!(i => vld1q_f32(acc.add(row * PANEL + i * WIDTH)));
        }
        for index in 0..k {
            let weights: Floats = registers!(i => vld1q_f32(w.add(index * PANEL + i * WIDTH)));
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = vdupq_n_f32(*x.add(row * stride + index));
                *sum = registers!(i => vfmaq_f32(sum[i], x, weights[i]));
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            registers!(i => vst1q_f32(acc.add(row * PANEL + i * WIDTH), sum[i]));
        }
    }
}
