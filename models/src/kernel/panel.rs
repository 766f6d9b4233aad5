//! Multiplication with one panel of plain floats, for callers that lay out their own small matrices.

use std::ptr;

use super::isa::Isa;
use super::layout::Form;
pub(crate) use super::layout::PANEL;
use super::matmul::{PanelSource, TileKernel};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::portable::Portable;
use super::team::share;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// Computes `sums[r][o] += Σ_k x[r · stride + k] · panel[k][o]`, with [`PANEL`] outputs. The panel's length
/// determines k, that of the sums the number of rows.
///
/// # Panics
/// If `x` is too short, or another length is not a multiple of [`PANEL`].
pub(crate) fn panel_product(x: &[f32], stride: usize, panel: &[f32], sums: &mut [f32]) {
    panel_product_with(Isa::best(), x, stride, panel, sums);
}

/// Computes [`panel_product`] on one instruction set.
pub(super) fn panel_product_with(isa: Isa, x: &[f32], stride: usize, panel: &[f32], sums: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => run::<Avx512>(x, stride, panel, sums),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => run::<Avx2>(x, stride, panel, sums),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => run::<Neon>(x, stride, panel, sums),
        Isa::Portable => run::<Portable>(x, stride, panel, sums),
    }
}

fn run<K: TileKernel>(x: &[f32], stride: usize, panel: &[f32], sums: &mut [f32]) {
    let k = panel.len() / PANEL;
    let rows = sums.len() / PANEL;
    assert!(panel.len().is_multiple_of(PANEL) && sums.len().is_multiple_of(PANEL), "whole panels");
    assert!(rows == 0 || x.len() >= (rows - 1) * stride + k, "rows of activations");
    let from = panel.as_ptr().cast();
    let source = PanelSource { form: Form::F32, from, skipped: 0, k, scratch: ptr::null_mut(), keep: false };
    let tiles = rows.div_ceil(K::TILE);
    for rows in (0..tiles).map(|tile| share(rows, tile, tiles)) {
        let x = &x[rows.start * stride..];
        let sums = &mut sums[rows.start * PANEL..rows.end * PANEL];
        // SAFETY: the CPU supports K; the panel is plain floats; x and the sums cover the rows, as asserted.
        unsafe { K::tile(source, rows.len(), x.as_ptr(), stride, sums.as_mut_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_sums() {
        for (rows, k, stride) in [(1, 1, 1), (5, 7, 9), (26, 3, 4)] {
            let x: Vec<f32> = (0..(rows - 1) * stride + k).map(|i| (i % 13) as f32 - 6.0).collect();
            let panel: Vec<f32> = (0..k * PANEL).map(|i| (i % 7) as f32 - 3.0).collect();
            let mut sums = vec![1.0; rows * PANEL];
            panel_product(&x, stride, &panel, &mut sums);
            for (at, &sum) in sums.iter().enumerate() {
                let row = at / PANEL;
                let out = at % PANEL;
                let expected: f32 = (0..k).map(|k| x[row * stride + k] * panel[k * PANEL + out]).sum();
                assert_eq!(sum, expected + 1.0);
            }
        }
    }
}
