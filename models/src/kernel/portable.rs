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
            let w = unpack(source);
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

/// Unpacks the weights into the scratch and returns the scratch. Plain floats are returned where they are.
unsafe fn unpack(source: PanelSource) -> *const f32 {
    let PanelSource { form, from, skipped, k, scratch, .. } = source;
    // SAFETY: the source matches the contract of its fields.
    let slices = || unsafe {
        (std::slice::from_raw_parts(from, form.panel_bytes(k)), std::slice::from_raw_parts_mut(scratch, k * PANEL))
    };
    match form {
        Form::F32 => return from.cast(),
        Form::F16 => halves(slices(), half_at),
        Form::Bf16 => halves(slices(), bhalf_at),
        Form::Block(block) => {
            let (from, into) = slices();
            for (from, into) in from.chunks_exact(block.bytes()).zip(into.chunks_exact_mut(BLOCK * PANEL)) {
                unpack_block(block, from, into);
            }
        }
        // SAFETY: the source matches the contract of its fields.
        Form::Super(_) => unsafe { unpack_super(Isa::Portable, form, (from, skipped), k / BLOCK, scratch) },
    }
    scratch
}

/// Computes `a · b + c`, fused only where the target's baseline supports it: elsewhere, `mul_add` would call the math
/// library.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

fn halves((from, into): (&[u8], &mut [f32]), value: impl Fn(&[u8], usize) -> f32) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_floats_are_not_unpacked() {
        let panel: Vec<f32> = (0..3 * PANEL).map(|i| i as f32).collect();
        let from = panel.as_ptr().cast();
        let scratch = std::ptr::null_mut();
        let source = PanelSource { form: Form::F32, from, skipped: 0, k: 3, scratch, keep: false };
        // SAFETY: plain floats need no scratch.
        assert_eq!(unsafe { unpack(source) }, panel.as_ptr());
    }
}
