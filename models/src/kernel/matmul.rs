//! The matrix product of activations with packed weights.
//!
//! Work is cut into units of one panel of outputs times up to [`ROWS`] rows of activations; threads take units as they
//! get free. Inside a unit the panel is unpacked chunk by chunk of the input dimension into a scratch that stays in the
//! first-level cache, and every row of the unit uses it from there.
//!
//! Each output is one chain of fused multiply-adds in the order of the input index, whatever the number of rows, the
//! storage form or the number of threads: a row's result does not depend on the batch it is computed in.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::isa::Isa;
use super::layout::{Form, PANEL};
use super::packed::Packed;
use super::portable::Portable;
use super::team::{Base, Team};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// Rows of activations per unit of work: enough to make unpacking cheap, few enough that their chunk stays in cache.
const ROWS: usize = 96;
/// Input indices per unpacked chunk: 24 KiB of scratch. A whole number of blocks.
const CHUNK: usize = 192;

/// What one instruction set brings.
pub(super) trait Kernel {
    /// Rows that [`tile`](Self::tile) handles at once, at most.
    const TILE: usize;

    /// Unpacks `k` input indices of a panel, from `from` on, to `into[k][PANEL]`.
    ///
    /// # Safety
    /// The instruction set is there. `from` is aligned to 64 and readable for `form.panel_bytes(k)`; `into` is aligned
    /// to 64 and writable for `k · PANEL` values. In block forms `k` is a multiple of [`BLOCK`](super::layout::BLOCK); `form` is not F32.
    unsafe fn unpack(form: Form, from: *const u8, k: usize, into: *mut f32);

    /// `acc[r][o] += Σ_k x[r · stride + k] · w[k][o]` for `rows` rows (1 to `TILE`) and all outputs of a panel.
    ///
    /// # Safety
    /// The instruction set is there, `x`, `w` and `acc` cover what the formula touches, `w` and `acc` aligned to 64.
    unsafe fn tile(rows: usize, x: *const f32, stride: usize, w: *const f32, k: usize, acc: *mut f32);
}

/// `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out), both row-major; overwrites y.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Store::Set);
}

/// `y += x · Wᵀ`: as [`matmul`], for residual connections, and for biases written to `y` beforehand. The product is
/// summed up on its own before it is added.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul_add(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Store::Add);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Set,
    Add,
}

pub(super) fn product(isa: Isa, team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32], store: Store) {
    assert_eq!(x.len(), m * w.inn(), "activations of shape ({m}, {})", w.inn());
    assert_eq!(y.len(), m * w.out(), "result of shape ({m}, {})", w.out());
    let task = Task { x, m, w, y: Base(y.as_mut_ptr()), store };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => task.run::<Avx512>(team),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => task.run::<Avx2>(team),
        Isa::Portable => task.run::<Portable>(team),
    }
}

struct Task<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a Packed,
    /// Of shape (m, out); units write disjoint parts of it.
    y: Base<f32>,
    store: Store,
}

#[repr(align(64))]
struct Scratch {
    weights: [f32; CHUNK * PANEL],
    sums: [f32; ROWS * PANEL],
}

impl Task<'_> {
    fn run<K: Kernel>(&self, team: &Team) {
        let panels = self.w.panels();
        let units = self.m.div_ceil(ROWS) * panels;
        // Several units at a time keep the reads of a thread contiguous; several turns per thread keep them balanced.
        let grab = (units / (team.threads() * 8)).max(1);
        let next = AtomicUsize::new(0);
        team.run(&|_, _| {
            let mut scratch = Scratch { weights: [0.0; CHUNK * PANEL], sums: [0.0; ROWS * PANEL] };
            loop {
                let first = next.fetch_add(grab, Ordering::Relaxed);
                if first >= units {
                    break;
                }
                for unit in first..units.min(first + grab) {
                    self.unit::<K>(unit / panels * ROWS, unit % panels, &mut scratch);
                }
            }
        });
    }

    /// Rows from `first` on, at most [`ROWS`], times the outputs of one panel.
    fn unit<K: Kernel>(&self, first: usize, panel: usize, scratch: &mut Scratch) {
        let rows = ROWS.min(self.m - first);
        let inn = self.w.inn();
        scratch.sums[..rows * PANEL].fill(0.0);
        let mut from = self.w.panel(panel);
        let mut start = 0;
        while start < inn {
            let k = CHUNK.min(inn - start);
            let (chunk, rest) = from.split_at(self.w.form().panel_bytes(k));
            let x = &self.x[first * inn + start..(first + rows - 1) * inn + start + k];
            chunk_product::<K>(self.w.form(), chunk, k, x, inn, rows, scratch);
            (from, start) = (rest, start + k);
        }
        self.finish(first, rows, panel, &scratch.sums);
    }

    /// Writes the sums of a unit to `y`.
    fn finish(&self, first: usize, rows: usize, panel: usize, sums: &[f32]) {
        let out = self.w.out();
        let width = PANEL.min(out - panel * PANEL);
        for (row, sums) in sums.chunks_exact(PANEL).take(rows).enumerate() {
            // SAFETY: row `first + row` and its outputs from `panel · PANEL` on lie inside `y`, and no other unit has
            // them.
            let y = unsafe { std::slice::from_raw_parts_mut(self.y.at((first + row) * out + panel * PANEL), width) };
            match self.store {
                Store::Set => y.copy_from_slice(&sums[..width]),
                Store::Add => y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum),
            }
        }
    }
}

/// Adds the products with `k` input indices of a panel to the sums. `x` starts at the first row's first index.
fn chunk_product<K: Kernel>(
    form: Form,
    chunk: &[u8],
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    scratch: &mut Scratch,
) {
    debug_assert!(chunk.as_ptr().addr().is_multiple_of(64) && k <= CHUNK && x.len() == (rows - 1) * stride + k);
    // SAFETY: `matmul` chose K by what the processor has; a panel starts at a cache line and so does each chunk, being
    // a multiple of BLOCK indices; the scratch is aligned and has room for CHUNK indices and ROWS rows.
    unsafe {
        let weights = if form == Form::F32 {
            chunk.as_ptr().cast::<f32>()
        } else {
            let into = scratch.weights.as_mut_ptr();
            K::unpack(form, chunk.as_ptr(), k, into);
            into.cast_const()
        };
        let tiles = rows.div_ceil(K::TILE);
        for tile in 0..tiles {
            let (from, to) = (rows * tile / tiles, rows * (tile + 1) / tiles);
            let sums = scratch.sums.as_mut_ptr().add(from * PANEL);
            K::tile(to - from, x.as_ptr().add(from * stride), stride, weights, k, sums);
        }
    }
}
