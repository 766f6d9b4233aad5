//! Kernels in plain loops, for CPUs without one of the explicitly supported instruction sets.

use super::isa::Isa;
use super::layout::{BLOCK, BlockForm, Form, PANEL, bhalf_at, half_at};
use super::matmul::{PanelSource, TileKernel};
use super::quant::unpack as unpack_super;

pub(super) struct Portable;

impl TileKernel for Portable {
    const TILE: usize = 4;

    const FUSED: bool = false;

    unsafe fn tile(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32) {
        let k = source.k;
        // SAFETY: the source matches the contract of its fields, and the caller guarantees the other pointers.
        let (x, w, acc) = unsafe {
            let w = if source.form == Form::F32 { source.from.cast() } else { unpack(source) };
            (
                std::slice::from_raw_parts(x, (rows - 1) * stride + k),
                std::slice::from_raw_parts(w, k * PANEL),
                std::slice::from_raw_parts_mut(acc, rows * PANEL),
            )
        };
        for (row, acc) in acc.chunks_exact_mut(PANEL).enumerate() {
            let mut sums = [0.0; PANEL];
            sums.copy_from_slice(acc);
            for (&x, w) in x[row * stride..][..k].iter().zip(w.chunks_exact(PANEL)) {
                for (sum, &w) in sums.iter_mut().zip(w) {
                    *sum = multiply_add(x, w, *sum);
                }
            }
            acc.copy_from_slice(&sums);
        }
    }
}

/// Unpacks the weights into the scratch and returns the scratch.
unsafe fn unpack(source: PanelSource) -> *const f32 {
    if let Form::Super(_) = source.form {
        // SAFETY: the source matches the contract of its fields.
        unsafe {
            unpack_super(Isa::Portable, source.form, (source.from, source.skipped), source.k / BLOCK, source.scratch);
        }
        return source.scratch;
    }
    let bytes = source.form.panel_bytes(source.k);
    // SAFETY: the source matches the contract of its fields.
    let (from, into) = unsafe {
        (
            std::slice::from_raw_parts(source.from, bytes),
            std::slice::from_raw_parts_mut(source.scratch, source.k * PANEL),
        )
    };
    match source.form {
        Form::F32 | Form::F16 | Form::Super(_) => halves(from, into, half_at),
        Form::Bf16 => halves(from, into, bhalf_at),
        Form::Block(block) => {
            for (from, into) in from.chunks_exact(block.bytes()).zip(into.chunks_exact_mut(BLOCK * PANEL)) {
                unpack_block(block, from, into);
            }
        }
    }
    source.scratch
}

/// Computes `a · b + c`, fused only where the target's baseline supports it: elsewhere, `mul_add` would call the math
/// library.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

fn halves(from: &[u8], into: &mut [f32], value: impl Fn(&[u8], usize) -> f32) {
    for (bytes, into) in from.chunks_exact(2).zip(into) {
        *into = value(bytes, 0);
    }
}

fn unpack_block(block: BlockForm, from: &[u8], into: &mut [f32]) {
    for (k, into) in into.chunks_exact_mut(PANEL).enumerate() {
        for (lane, into) in into.iter_mut().enumerate() {
            *into = block.value(from, k, lane);
        }
    }
}
