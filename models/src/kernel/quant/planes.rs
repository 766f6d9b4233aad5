//! Products of many rows by tiles of AMX, in planes of bytes.
//!
//! A rounded activation is `256 · high + low`, with an unsigned low byte, and so is a quant that was multiplied by its
//! factor. Tiles add up the products of high and low bytes apart, in integers, so the results are those of
//! [`Tile`](super::tile::Tile) to the last bit.

use std::ops::Range;

use super::activations::{self, FIELDS, SCALE, SUM, WORDS};
use super::unpacked::{CHUNK, HIGH_BYTES, Scratch, Unpacked};
use super::{BlockAt, IntLanes, Lanes, QUADS, QuantForm};
use crate::kernel::amx::{PlaneProduct, TILE, TileSupport, Tiles};
use crate::kernel::int_lanes::Wide;
use crate::kernel::layout::{BLOCK, PANEL};

type Floats = <Wide as IntLanes>::Floats;

/// Minimum number of rows for which unpacking to planes pays. Fewer are multiplied by vectors.
pub(super) const FEWEST_ROWS: usize = 9;

/// A group of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaneGroup {
    pub(super) support: TileSupport,
    /// Number of blocks per row.
    pub(super) blocks: usize,
    /// Number of rows.
    pub(super) count: usize,
}

impl PlaneGroup {
    /// Ranges of rows, with the number of rows of each of their tiles: whole tiles, then the rest.
    fn parts(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let rest = self.count % TILE;
        let whole = self.count - rest;
        [(0..whole, TILE), (whole..self.count, rest)].into_iter().filter(|(range, _)| !range.is_empty())
    }

    /// Rounds the rows of `x`, tile by tile; see [`activations::round_planes`].
    pub(super) fn round<W: QuantForm>(self, x: &[f32], to: &mut [u32]) {
        let each = self.blocks * BLOCK;
        let words = self.blocks * WORDS;
        for (x, to) in x.chunks(TILE * each).zip(to.chunks_mut(TILE * words)) {
            // SAFETY: `TileSupport` proves that the CPU has the instructions.
            unsafe { round::<W>(x, x.len() / each, to) };
        }
    }

    /// Adds the products with a panel to the sums, [`PANEL`] per row.
    ///
    /// # Panics
    /// If a slice is too short.
    pub(super) fn multiply<W: QuantForm>(self, panel: &[u8], x: &[u32], scratch: &mut Scratch, sums: &mut [f32]) {
        assert!(panel.len() >= self.blocks / W::SUPER * W::BYTES, "blocks of a panel");
        assert!(x.len() == self.count * self.blocks * WORDS && sums.len() == self.count * PANEL, "rows of a group");
        for first in (0..self.blocks).step_by(CHUNK) {
            let part = CHUNK.min(self.blocks - first);
            // SAFETY: `TileSupport` proves that the CPU has the instructions; the blocks lie in the panel, as asserted.
            unsafe { fill::<W>(scratch, panel.as_ptr(), first, part) };
            for (range, each) in self.parts() {
                let tiles = Tiles::for_planes(self.support, each, QUADS * W::SHARED);
                for row in range.step_by(each) {
                    // SAFETY: as above; activations and sums cover rows and blocks, as asserted.
                    unsafe {
                        let x = x.as_ptr().add((row * self.blocks + first * each) * WORDS);
                        let acc = sums.as_mut_ptr().add(row * PANEL);
                        let tile = PlaneTile { weights: scratch.from(), blocks: part, x, rows: each, acc };
                        match (W::SHARED, W::HALVES, W::MIN) {
                            (1, _, false) => tile.add::<Unpacked<1, false, false>>(&tiles),
                            (1, _, true) => tile.add::<Unpacked<1, false, true>>(&tiles),
                            (_, false, false) => tile.add::<Unpacked<2, false, false>>(&tiles),
                            (_, true, false) => tile.add::<Unpacked<2, true, false>>(&tiles),
                            (_, false, true) => tile.add::<Unpacked<2, false, true>>(&tiles),
                            (_, true, true) => tile.add::<Unpacked<2, true, true>>(&tiles),
                        }
                    }
                }
            }
        }
    }
}

/// Computes [`activations::round_planes`].
///
/// # Safety
/// The CPU must support the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn round<W: QuantForm>(x: &[f32], rows: usize, to: &mut [u32]) {
    // SAFETY: guaranteed by the caller.
    unsafe { activations::round_planes::<Wide, W>(x, rows, to) }
}

/// Computes [`Scratch::fill_planes`].
///
/// # Safety
/// The same as for [`Scratch::fill_planes`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn fill<W: QuantForm>(to: &mut Scratch, from: *const u8, first: usize, count: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { to.fill_planes::<Wide, W>(from, first, count) }
}

/// A tile of rows, and a chunk of unpacked weights.
#[derive(Clone, Copy)]
struct PlaneTile {
    /// Weights of [`Scratch::fill_planes`].
    weights: *const u8,
    /// Number of blocks of the chunk.
    blocks: usize,
    /// Activations of the chunk's blocks; see [`activations::round_planes`].
    x: *const u32,
    /// Number of rows.
    rows: usize,
    /// Sums of the first row: [`PANEL`] per row.
    acc: *mut f32,
}

/// Sums of products of planes, sixteen outputs per row.
#[repr(align(64))]
struct PlaneSums([[i32; TILE * TILE]; 3]);

impl PlaneTile {
    /// Adds the products of the chunk.
    ///
    /// # Safety
    /// The CPU must support the instructions, the pointers must cover rows and blocks, and the tiles must be configured
    /// for the rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn add<W: QuantForm>(self, tiles: &Tiles) {
        let mut sums = PlaneSums([[0; TILE * TILE]; 3]);
        for vector in 0..2 {
            for first in (0..self.blocks).step_by(W::SHARED) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    self.multiply::<W>(tiles, first, vector, &mut sums);
                    self.finish::<W>(first, vector, &sums);
                }
            }
            if W::MIN && W::SHARED > 1 {
                // SAFETY: guaranteed by the caller.
                unsafe { self.minima::<W>(vector) };
            }
        }
    }

    /// Words of block `first` and of those that share its scale.
    #[inline(always)]
    fn words(self, first: usize) -> *const u32 {
        self.x.wrapping_add(first * WORDS * self.rows)
    }

    /// Field `field` of block `block` of the first row; those of the other rows follow.
    #[inline(always)]
    fn field<W: QuantForm>(self, block: usize, field: usize) -> *const f32 {
        let index = block % W::SHARED;
        let fields = 2 * QUADS * W::SHARED + index * FIELDS + field - SCALE;
        self.words(block - index).wrapping_add(fields * self.rows).cast()
    }

    /// Multiplies the blocks that share a scale.
    #[inline(always)]
    unsafe fn multiply<W: QuantForm>(self, tiles: &Tiles, first: usize, vector: usize, sums: &mut PlaneSums) {
        let high = self.words(first);
        let low = high.wrapping_add(QUADS * W::SHARED * self.rows);
        let narrow = self.weights.wrapping_add((first * QUADS * PANEL + vector * 16) * size_of::<u32>());
        let weights = [narrow.wrapping_add(HIGH_BYTES), narrow].map(<*const u8>::cast);
        let product = PlaneProduct { x: [high, low], weights, sums: &raw mut sums.0 };
        // SAFETY: guaranteed by the caller.
        unsafe {
            if W::SHARED > 1 {
                product.wide(tiles);
            } else {
                product.narrow(tiles);
            }
        }
    }

    /// Adds the sums of products to the results.
    #[inline(always)]
    unsafe fn finish<W: QuantForm>(self, first: usize, vector: usize, sums: &PlaneSums) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = BlockAt::of::<W>(self.weights, first);
            let unit = W::unit::<Wide>(at, vector);
            let minimum = W::minimum::<Wide>(at, vector, 0);
            let has_minimum = W::MIN && W::SHARED == 1;
            let [scales, totals] = [SCALE, SUM].map(|field| self.field::<W>(first, field));
            let from = sums.0.as_ptr().cast::<u32>();
            for row in 0..self.rows {
                let plane = |plane: usize| Wide::load(from.add((plane * TILE + row) * TILE));
                let mut sum = plane(0).left(8).add(plane(1));
                if W::SHARED > 1 {
                    sum = sum.left(8).add(plane(2));
                }
                let to = self.acc.add(row * PANEL + vector * 16);
                let scale = Floats::splat(*scales.add(row));
                let mut acc = sum.floats().mul(scale).fma(unit, Floats::load(to));
                if has_minimum {
                    acc = minimum.fma(Floats::splat(*totals.add(row)), acc);
                }
                acc.store(to);
            }
        }
    }

    /// Adds the products with the minima of the chunk, a super-block.
    #[inline(always)]
    unsafe fn minima<W: QuantForm>(self, vector: usize) {
        let halves = if W::HALVES { 2 } else { 1 };
        // SAFETY: guaranteed by the caller.
        unsafe {
            for row in 0..self.rows {
                let mut sum = Floats::splat(0.0);
                for block in 0..self.blocks {
                    let at = BlockAt::of::<W>(self.weights, block);
                    for half in 0..halves {
                        let field = if W::HALVES { SUM + 1 + half } else { SUM };
                        let total = Floats::splat(*self.field::<W>(block, field).add(row));
                        sum = W::minimum::<Wide>(at, vector, half).fma(total, sum);
                    }
                }
                let to = self.acc.add(row * PANEL + vector * 16);
                Floats::load(to).add(sum).store(to);
            }
        }
    }
}
