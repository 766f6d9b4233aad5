//! Matrix multiplication of activations with packed weights.
//!
//! Work is split into units of one panel of outputs times up to `ROWS` rows of activations; each thread takes a
//! contiguous share of the units and then helps the others. Inside a unit, the panel is unpacked chunk by chunk of
//! the input dimension into a scratch buffer that stays in the first-level cache, from which every row of the unit
//! reads.
//!
//! Each output is one chain of fused multiply-adds in the order of the input index, whatever the number of rows,
//! the storage form or the number of threads: a row's result does not depend on its batch.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::isa::Isa;
use super::layout::{BLOCK, Form, PANEL};
use super::matmul_output::{Finish, MatmulOutput};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::packed::Packed;
use super::portable::Portable;
use super::prefetch::prefetch;
use super::team::{Base, Team, share};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// Maximum number of activation rows per unit of work: enough to amortize unpacking, few enough to keep their chunk in
/// cache.
const ROWS: usize = 96;
/// Number of input indices per unpacked chunk: 24 KiB of scratch. A whole number of blocks.
pub(super) const CHUNK: usize = 192;

/// Part of a panel, with instructions for the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelSource {
    pub(super) form: Form,
    /// First byte of the first input index, aligned to 64 except in F32. With super-blocks, first byte of the
    /// super-block that contains the index.
    pub(super) from: *const u8,
    /// Number of blocks before the first input index in its super-block.
    pub(super) skipped: usize,
    /// Number of input indices; whole blocks in block forms.
    pub(super) k: usize,
    /// Room for `k` indices as `[k][PANEL]` in `f32`, aligned to 64. Unused with form F32 if the kernel is not
    /// fused.
    pub(super) scratch: *mut f32,
    /// If `true`, the scratch must hold the weights afterwards.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only a fused kernel can do without"))]
    pub(super) keep: bool,
}

/// Kernels of one instruction set.
pub(super) trait TileKernel {
    /// Maximum number of rows that [`tile`](Self::tile) processes at once.
    const TILE: usize;

    /// If `true`, [`tile`](Self::tile) bypasses the scratch when it need not keep the weights, and prefetches
    /// weights.
    const FUSED: bool;

    /// Returns `true` if [`tile`](Self::tile) bypasses the scratch for `rows` rows with weights of this form, and
    /// prefetches the weights. Such a tile gets all input indices at once.
    fn is_direct(form: Form, rows: usize) -> bool {
        Self::FUSED && rows <= Self::TILE && !matches!(form, Form::Super(_))
    }

    /// Computes `acc[r][o] += Σ_k x[r · stride + k] · w[k][o]` for `rows` rows (1 to `TILE`) and all outputs of a
    /// panel.
    ///
    /// # Safety
    /// The CPU must support the instruction set, `source` must match the contract of its fields, and `x` and `acc`
    /// must cover the elements of the formula.
    unsafe fn tile(source: PanelSource, rows: usize, x: *const f32, stride: usize, acc: *mut f32);
}

/// Computes `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out), both row-major. Overwrites y.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Finish::Set);
}

/// Computes `y += x · Wᵀ` like [`matmul`], for residual connections. Each product is summed completely before it is
/// added.
///
/// # Panics
/// If a slice does not have its shape.
pub fn matmul_add(team: &Team, x: &[f32], m: usize, w: &Packed, y: &mut [f32]) {
    product(Isa::best(), team, x, m, w, y, Finish::Add);
}

/// Computes `y = map(x · Wᵀ)` like [`matmul`]. Every piece of a row passes through `map(index of its first output,
/// piece)` while it is in cache, for biases and activation functions.
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
    let target = MatmulOutput { y: Base(y.as_mut_ptr()), out: w.out(), finish };
    let task = MatmulTask { x, m, w, target };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => task.run::<Avx512>(team),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => task.run::<Avx2>(team),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => task.run::<Neon>(team),
        Isa::Portable => task.run::<Portable>(team),
    }
}

struct MatmulTask<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a Packed,
    target: MatmulOutput<'a>,
}

#[repr(align(64))]
struct UnitScratch {
    /// Unpacked weights. Uninitialized, because they are written before they are read and too large to clear in every
    /// region.
    weights: MaybeUninit<[f32; CHUNK * PANEL]>,
    sums: [f32; ROWS * PANEL],
}

impl MatmulTask<'_> {
    fn run<K: TileKernel>(&self, team: &Team) {
        let panels = self.w.panels();
        let groups = self.m.div_ceil(ROWS);
        let units = groups * panels;
        // A thread's own share is contiguous: reading panel after panel was measured to give 1.5 times the memory
        // throughput.
        team.sweep(units, &|claims| {
            let mut scratch = UnitScratch { weights: MaybeUninit::uninit(), sums: [0.0; ROWS * PANEL] };
            for unit in claims {
                self.unit::<K>(share(self.m, unit / panels, groups), unit % panels, &mut scratch);
            }
        });
    }

    /// Computes at most [`ROWS`] rows times the outputs of one panel.
    fn unit<K: TileKernel>(&self, range: Range<usize>, panel: usize, scratch: &mut UnitScratch) {
        let first = range.start;
        let rows = range.len();
        let inn = self.w.inn();
        let form = self.w.form();
        range.for_each(|row| self.target.prefetch(row, panel));
        scratch.sums[..rows * PANEL].fill(0.0);
        let chunk = chunk_len::<K>(form, rows, inn);
        let panel_bytes = self.w.panel(panel);
        for start in (0..inn).step_by(chunk) {
            let k = chunk.min(inn - start);
            let x = &self.x[first * inn + start..(first + rows - 1) * inn + start + k];
            chunk_product::<K>(form, panel_bytes, start, k, x, inn, rows, scratch);
        }
        // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
        unsafe { self.target.take(first, panel, &scratch.sums[..rows * PANEL]) };
    }
}

/// Number of input indices unpacked at once, for units of `rows` rows.
fn chunk_len<K: TileKernel>(form: Form, rows: usize, inn: usize) -> usize {
    match rows {
        // A single tile needs no scratch, and its sums stay in registers throughout.
        _ if K::is_direct(form, rows) => inn.max(1),
        // Short enough that the CPU unpacks the next chunk while it waits for this chunk's dependency chain.
        1 | 2 => BLOCK,
        _ => CHUNK,
    }
}

/// Adds the products with the `k` input indices of a panel from `start` on to the sums. `x` starts at the first row's
/// activation for `start`.
#[allow(clippy::too_many_arguments, reason = "two operands with their shapes, and the result")]
fn chunk_product<K: TileKernel>(
    form: Form,
    panel: &[u8],
    start: usize,
    k: usize,
    x: &[f32],
    stride: usize,
    rows: usize,
    scratch: &mut UnitScratch,
) {
    let (offset, skipped) = form.locate(start);
    let from = panel[offset..].as_ptr();
    debug_assert!(from.addr().is_multiple_of(64) && x.len() == (rows - 1) * stride + k);
    if !K::is_direct(form, rows) && (!K::FUSED || matches!(form, Form::Super(_))) {
        // Super-blocks are read in parts: their average size per index is close enough for a prefetch.
        let each = panel.len() / stride.max(1);
        prefetch(panel.as_ptr().wrapping_add((start + k) * each), k * each);
    }
    let tiles = rows.div_ceil(K::TILE);
    let scratch_weights = scratch.weights.as_mut_ptr().cast();
    let mut source = PanelSource { form, from, skipped, k, scratch: scratch_weights, keep: tiles > 1 };
    for tile in 0..tiles {
        let from = rows * tile / tiles;
        let to = rows * (tile + 1) / tiles;
        // SAFETY: `product` chose a K that the CPU supports; a panel starts at a cache line, and each chunk either
        // starts at one, because it is whole blocks, or lies in a super-block that does; the scratch is aligned and has
        // room for ROWS rows and for CHUNK indices, which suffices unless a single tile bypasses it; x covers its rows,
        // as asserted.
        unsafe {
            let sums = scratch.sums.as_mut_ptr().add(from * PANEL);
            K::tile(source, to - from, x.as_ptr().add(from * stride), stride, sums);
        }
        // Plain floats also go through the scratch, which never leaves the first-level cache: a tenth more GFLOP/s
        // were measured.
        if K::FUSED || form != Form::F32 {
            source = PanelSource { form: Form::F32, from: scratch_weights.cast(), skipped: 0, keep: false, ..source };
        }
    }
}
