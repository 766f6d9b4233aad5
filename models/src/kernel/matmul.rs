//! The matrix product of activations with packed weights.
//!
//! Work is cut into units of one panel of outputs times up to `ROWS` rows of activations; each thread takes a contiguous
//! share of the units and then helps the others. Inside a unit the panel is unpacked chunk by chunk of the input dimension
//! into a scratch that stays in the first-level cache, and every row of the unit uses it from there.
//!
//! Each output is one chain of fused multiply-adds in the order of the input index, whatever the number of rows, the
//! storage form or the number of threads: a row's result does not depend on the batch it is computed in.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::finish::{Finish, Target};
use super::isa::Isa;
use super::layout::{BLOCK, Form, PANEL};
use super::packed::Packed;
use super::portable::Portable;
use super::prefetch::prefetch;
use super::team::{Base, Team, share};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// Rows of activations per unit of work: enough to make unpacking cheap, few enough that their chunk stays in cache.
const ROWS: usize = 96;
/// Input indices per unpacked chunk: 24 KiB of scratch. A whole number of blocks.
const CHUNK: usize = 192;

/// Part of a panel, and what to do with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) form: Form,
    /// The first byte of the first input index, aligned to 64 except in F32.
    pub(super) from: *const u8,
    /// How many input indices; whole blocks in block forms.
    pub(super) k: usize,
    /// Room for `k` indices as `[k][PANEL]` in `f32`, aligned to 64. Unused with form F32 where the kernel is not fused.
    pub(super) scratch: *mut f32,
    /// Whether the scratch must hold the weights afterwards.
    pub(super) keep: bool,
}

/// What one instruction set brings.
pub(super) trait Kernel {
    /// Rows that [`tile`](Self::tile) handles at once, at most.
    const TILE: usize;

    /// Whether [`tile`](Self::tile) does without the scratch when it need not keep the weights, and asks for weights
    /// ahead of their use.
    const FUSED: bool;

    /// `acc[r][o] += Σ_k x[r · stride + k] · w[k][o]` for `rows` rows (1 to `TILE`) and all outputs of a panel.
    ///
    /// # Safety
    /// The instruction set is there, `source` is what its fields say, `x` and `acc` cover what the formula touches.
    unsafe fn tile(source: Source, rows: usize, x: *const f32, stride: usize, acc: *mut f32);
}

/// `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out), both row-major; overwrites y.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Finish::Set);
}

/// `y += x · Wᵀ`: as [`matmul`], for residual connections. The product is summed up on its own before it is added.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul_add(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Finish::Add);
}

/// `y = map(x · Wᵀ)`: as [`matmul`], but every piece of a row goes through `map(index of its first output, piece)` on
/// its way to y, while it is in cache: for biases and activations.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul_map(
    team: &Team,
    x: &[f32],
    m: usize,
    w: &Packed,
    y: &mut [f32],
    map: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    product(Isa::best(), team, x, m, w, y, Finish::Map(map));
}

pub(super) fn product(isa: Isa, team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32], finish: Finish<'_>) {
    assert_eq!(x.len(), m * w.inn(), "activations of shape ({m}, {})", w.inn());
    assert_eq!(y.len(), m * w.out(), "result of shape ({m}, {})", w.out());
    let target = Target { y: Base(y.as_mut_ptr()), out: w.out(), finish };
    let task = Task { x, m, w, target };
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
    target: Target<'a>,
}

#[repr(align(64))]
struct Scratch {
    /// Written before it is read, and not worth clearing in every region.
    weights: MaybeUninit<[f32; CHUNK * PANEL]>,
    sums: [f32; ROWS * PANEL],
}

impl Task<'_> {
    fn run<K: Kernel>(&self, team: &Team) {
        let panels = self.w.panels();
        let groups = self.m.div_ceil(ROWS);
        let units = groups * panels;
        // A thread's own share is contiguous: reading panel after panel it gets half as much again out of the memory.
        team.sweep(units, &|claims| {
            let mut scratch = Scratch { weights: MaybeUninit::uninit(), sums: [0.0; ROWS * PANEL] };
            for unit in claims {
                self.unit::<K>(share(self.m, unit / panels, groups), unit % panels, &mut scratch);
            }
        });
    }

    /// A range of at most [`ROWS`] rows times the outputs of one panel.
    fn unit<K: Kernel>(&self, range: Range<usize>, panel: usize, scratch: &mut Scratch) {
        let (first, rows, inn, form) = (range.start, range.len(), self.w.inn(), self.w.form());
        range.for_each(|row| self.target.prefetch(row, panel));
        scratch.sums[..rows * PANEL].fill(0.0);
        let chunk = chunk_len::<K>(rows, inn);
        let mut from = self.w.panel(panel);
        let mut start = 0;
        while start < inn {
            let k = chunk.min(inn - start);
            let (part, rest) = from.split_at(form.panel_bytes(k));
            let x = &self.x[first * inn + start..(first + rows - 1) * inn + start + k];
            chunk_product::<K>(form, part, k, x, inn, rows, scratch);
            (from, start) = (rest, start + k);
        }
        // SAFETY: the result has the rows and the panels of the product, and each unit its own.
        unsafe { self.target.take(first, panel, &scratch.sums[..rows * PANEL]) };
    }
}

/// How many input indices are unpacked at once, for units of `rows` rows.
fn chunk_len<K: Kernel>(rows: usize, inn: usize) -> usize {
    match rows {
        // No scratch, and the sums stay in registers all the way.
        _ if K::FUSED && rows <= K::TILE => inn,
        // So short that the processor unpacks the next chunk while it waits for the chain of sums of this one.
        1 | 2 => BLOCK,
        _ => CHUNK,
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
    debug_assert!(chunk.as_ptr().addr().is_multiple_of(64) && x.len() == (rows - 1) * stride + k);
    if !K::FUSED {
        prefetch(chunk.as_ptr_range().end, chunk.len());
    }
    let tiles = rows.div_ceil(K::TILE);
    let scratch_weights = scratch.weights.as_mut_ptr().cast();
    let mut source = Source { form, from: chunk.as_ptr(), k, scratch: scratch_weights, keep: tiles > 1 };
    for tile in 0..tiles {
        let (from, to) = (rows * tile / tiles, rows * (tile + 1) / tiles);
        // SAFETY: `product` chose K by what the processor has; a panel starts at a cache line and so does each chunk,
        // being whole blocks; the scratch is aligned and has room for ROWS rows, and for the CHUNK indices that are the
        // most unless a single tile does without; x covers its rows, as asserted.
        unsafe {
            let sums = scratch.sums.as_mut_ptr().add(from * PANEL);
            K::tile(source, to - from, x.as_ptr().add(from * stride), stride, sums);
        }
        // Plain floats too: from the scratch, which never leaves the first-level cache, a tenth more GFLOP/s were measured.
        if K::FUSED || form != Form::F32 {
            source = Source { form: Form::F32, from: scratch_weights.cast(), keep: false, ..source };
        }
    }
}
