//! Products of many rows by tiles of AMX, in planes of bytes.
//!
//! A rounded activation is `256 · high + low`, with an unsigned low byte, and so is a quant that was multiplied by its
//! factor. Tiles add up the products of high and low bytes apart, in integers, so the results are those of
//! [`Tile`](super::tile::Tile) to the last bit.

use std::ops::Range;

use super::activations::{self, FIELDS, SCALE, SUM, WORDS};
use super::unpacked::{CHUNK, HIGH_BYTES, Scratch, Unpacked};
use super::{BlockAt, IntLanes, Lanes, QUADS, QuantForm};
use crate::kernel::amx::{PlaneSums, Planes, TILE, TileSupport, Tiles};
use crate::kernel::int_lanes::Wide;
use crate::kernel::lanes::LANES;
use crate::kernel::layout::{BLOCK, PANEL};
use crate::kernel::prefetch::prefetch_line;

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
        for (x, to) in x.chunks((TILE * each).max(1)).zip(to.chunks_mut((TILE * words).max(1))) {
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
        let mut products = PlaneSums::new();
        for first in (0..self.blocks).step_by(CHUNK) {
            let part = CHUNK.min(self.blocks - first);
            // SAFETY: `TileSupport` proves that the CPU has the instructions; the blocks lie in the panel, as asserted.
            unsafe { fill::<W>(scratch, panel.as_ptr(), first, part) };
            for (range, each) in self.parts() {
                let mut tiles = Tiles::for_planes(self.support, each, QUADS * W::SHARED);
                for row in range.step_by(each) {
                    // SAFETY: as above; activations and sums cover rows and blocks, as asserted.
                    unsafe {
                        let x = x.as_ptr().add((row * self.blocks + first * each) * WORDS);
                        let acc = sums.as_mut_ptr().add(row * PANEL);
                        let next = x.wrapping_add(each * self.blocks * WORDS);
                        let tile = PlaneTile { weights: scratch.from(), blocks: part, x, next, rows: each, acc };
                        match (W::SHARED, W::HALVES, W::MIN) {
                            (1, _, false) => tile.add::<Unpacked<1, false, false>>(&mut tiles, &mut products),
                            (1, _, true) => tile.add::<Unpacked<1, false, true>>(&mut tiles, &mut products),
                            (_, false, false) => tile.add::<Unpacked<2, false, false>>(&mut tiles, &mut products),
                            (_, true, false) => tile.add::<Unpacked<2, true, false>>(&mut tiles, &mut products),
                            (_, false, true) => tile.add::<Unpacked<2, false, true>>(&mut tiles, &mut products),
                            (_, true, true) => tile.add::<Unpacked<2, true, true>>(&mut tiles, &mut products),
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
    /// Activations of the next tile, to prefetch.
    next: *const u32,
    /// Number of rows.
    rows: usize,
    /// Sums of the first row: [`PANEL`] per row.
    acc: *mut f32,
}

impl PlaneTile {
    /// Adds the products of the chunk.
    ///
    /// # Safety
    /// The CPU must support the instructions, the pointers must cover rows and blocks, and the tiles must be configured
    /// for the rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn add<W: QuantForm>(self, tiles: &mut Tiles, sums: &mut PlaneSums) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if W::SHARED > 1 {
                self.add_products::<W, true>(tiles, sums);
            } else {
                self.add_products::<W, false>(tiles, sums);
            }
        }
    }

    /// Adds the products of the chunk, with `WIDE` weights or others.
    #[inline(always)]
    unsafe fn add_products<W: QuantForm, const WIDE: bool>(self, tiles: &mut Tiles, sums: &mut PlaneSums) {
        let rows = self.rows;
        for vector in 0..2 {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = self.acc.add(vector * LANES);
                let mut results = [Floats::splat(0.0); TILE];
                for (row, result) in results.iter_mut().enumerate().take(rows) {
                    *result = Floats::load(to.add(row * PANEL));
                }
                tiles.load_planes::<WIDE>(self.planes::<W>(0, vector));
                tiles.multiply_planes::<WIDE>();
                for first in (0..self.blocks).step_by(W::SHARED) {
                    self.prefetch::<W>(first, vector);
                    let next = first + W::SHARED;
                    if next < self.blocks {
                        tiles.load_planes::<WIDE>(self.planes::<W>(next, vector));
                    }
                    tiles.store_planes::<WIDE>(sums);
                    if next < self.blocks {
                        tiles.multiply_planes::<WIDE>();
                    }
                    self.finish::<W>(first, vector, sums, &mut results[..rows]);
                }
                if W::MIN && WIDE {
                    self.minima::<W>(vector, &mut results[..rows]);
                }
                for (row, result) in results.into_iter().enumerate().take(rows) {
                    result.store(to.add(row * PANEL));
                }
            }
        }
    }

    /// Prefetches a share of the next tile's activations, which lie in the second-level cache.
    #[inline(always)]
    fn prefetch<W: QuantForm>(self, first: usize, vector: usize) {
        let lines = WORDS * W::SHARED * TILE / 2 / LANES;
        let from = self.next.wrapping_add((2 * first / W::SHARED + vector) * lines * LANES);
        (0..lines).for_each(|line| prefetch_line(from.wrapping_add(line * LANES).cast()));
    }

    /// Words of block `first` and of those that share its scale.
    #[inline(always)]
    fn words(self, first: usize) -> *const u32 {
        self.x.wrapping_add(first * WORDS * self.rows)
    }

    /// Fields of the first row's blocks from block `first` on that share a scale, from [`SCALE`] on; those of the next row
    /// follow.
    #[inline(always)]
    fn fields<W: QuantForm>(self, first: usize) -> *const f32 {
        self.words(first).wrapping_add(2 * QUADS * W::SHARED * self.rows).cast()
    }

    /// Operands of the blocks from `first` on that share a scale.
    #[inline(always)]
    fn planes<W: QuantForm>(self, first: usize, vector: usize) -> Planes {
        let high = self.words(first);
        let low = high.wrapping_add(QUADS * W::SHARED * self.rows);
        let narrow = self.weights.wrapping_add((first * QUADS * PANEL + vector * 16) * size_of::<u32>());
        Planes { x: [high, low], weights: [narrow.wrapping_add(HIGH_BYTES), narrow].map(<*const u8>::cast) }
    }

    /// Adds the sums of products to the results.
    #[inline(always)]
    unsafe fn finish<W: QuantForm>(self, first: usize, vector: usize, sums: &PlaneSums, results: &mut [Floats]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = BlockAt::of::<W>(self.weights, first);
            let unit = W::unit::<Wide>(at, vector);
            let minimum = W::minimum::<Wide>(at, vector, 0);
            let has_minimum = W::MIN && W::SHARED == 1;
            let fields = self.fields::<W>(first);
            let [high, middle, low] = [0, 1, 2].map(|plane| sums.plane(plane).cast::<u32>());
            for (row, result) in results.iter_mut().enumerate() {
                let mut sum = Wide::load(high.add(row * TILE)).left(8).add(Wide::load(middle.add(row * TILE)));
                if W::SHARED > 1 {
                    sum = sum.left(8).add(Wide::load(low.add(row * TILE)));
                }
                let fields = fields.add(row * W::SHARED * FIELDS);
                *result = sum.floats().mul(Floats::splat(*fields)).fma(unit, *result);
                if has_minimum {
                    *result = minimum.fma(Floats::splat(*fields.add(SUM - SCALE)), *result);
                }
            }
        }
    }

    /// Adds the products with the minima of the chunk, a super-block.
    #[inline(always)]
    unsafe fn minima<W: QuantForm>(self, vector: usize, results: &mut [Floats]) {
        let halves = if W::HALVES { 2 } else { 1 };
        // SAFETY: guaranteed by the caller; a super-block is a chunk.
        unsafe {
            let mut minima = [[Floats::splat(0.0); 2]; CHUNK];
            for (block, minima) in minima.iter_mut().enumerate() {
                let at = BlockAt::of::<W>(self.weights, block);
                for (half, minimum) in minima.iter_mut().enumerate().take(halves) {
                    *minimum = W::minimum::<Wide>(at, vector, half);
                }
            }
            for (row, result) in results.iter_mut().enumerate() {
                let mut sum = Floats::splat(0.0);
                for (block, minima) in minima.iter().enumerate() {
                    let fields = self.fields::<W>(block - block % W::SHARED);
                    let fields = fields.add((row * W::SHARED + block % W::SHARED) * FIELDS);
                    for (half, minimum) in minima.iter().enumerate().take(halves) {
                        let field = if W::HALVES { SUM + 1 + half } else { SUM };
                        sum = minimum.fma(Floats::splat(*fields.add(field - SCALE)), sum);
                    }
                }
                *result = result.add(sum);
            }
        }
    }
}
