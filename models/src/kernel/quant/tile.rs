//! Sums of a tile: a few rows of rounded activations times the outputs of a panel.

use super::activations::{SCALE, SUM, WORDS};
use super::{BlockAt, GROUPS, IntLanes, Lanes, QUADS, QuantForm, STEPS};
use crate::kernel::layout::PANEL;

/// Sums to compute: `acc[r][o] += Σ_b x[r][b] · w[b][o]`.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Panel, or unpacked blocks.
    pub(super) from: *const u8,
    /// Number of blocks.
    pub(super) blocks: usize,
    /// Activations of the tile's rows, interleaved; see [`round`](super::activations::round).
    pub(super) x: *const u32,
    /// Sums of the first row: [`PANEL`] per row.
    pub(super) acc: *mut f32,
}

/// Maximum numbers of rows of a tile for one type of lanes.
///
/// A few rows are multiplied with the packed weights, which are unpacked in registers for every tile. Many rows are
/// multiplied with weights unpacked beforehand. Tiles of more than six rows are slower: the CPU's instruction window is
/// then too short to overlap the end of one block with the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileRows {
    /// Maximum number of rows of a tile with packed weights.
    few: usize,
    /// Maximum number of rows multiplied with packed weights, over all tiles.
    direct: usize,
    /// Maximum number of rows of a tile with unpacked weights.
    many: usize,
}

/// Maximum number of rows of a tile with unpacked weights.
const MANY: usize = 6;

/// Maximum number of rows of a tile in lanes with [`IntLanes::BYTE_DOT`]: in one vector of columns, the sums of low and
/// high bytes of both rows and the sums of the quants take 20 of 32 registers.
const QUAD_ROWS: usize = 2;

impl TileRows {
    /// Limits for one type of lanes.
    pub(super) const fn of<L: IntLanes>() -> Self {
        // Only lanes that are not wide have kernels for tiles of quads.
        const { assert!(!(L::Floats::WIDE && L::BYTE_DOT)) };
        match (L::Floats::WIDE, L::BYTE_DOT) {
            (true, _) => Self { few: 4, direct: 8, many: MANY },
            (false, false) => Self { few: 2, direct: 2, many: MANY },
            (false, true) => Self { few: QUAD_ROWS, direct: QUAD_ROWS, many: QUAD_ROWS },
        }
    }

    /// Returns `true` if `count` rows are multiplied with packed weights.
    pub(super) fn direct(self, count: usize) -> bool {
        count <= self.direct
    }

    /// Number of tiles for `count` rows.
    pub(super) fn tiles(self, count: usize) -> usize {
        count.div_ceil(if self.direct(count) { self.few } else { self.many })
    }
}

impl Tile {
    /// Computes the sums for `rows` rows of a tile with packed weights, at least 1.
    ///
    /// Each sum over [`QuantForm::SHARED`] blocks is exact in integers and then multiplied and added in `f32`, one
    /// after another, so the result depends neither on the number of rows nor on the division into tiles.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`, and the pointers must cover the elements of the formula.
    #[inline(always)]
    pub(super) unsafe fn few<L: IntLanes, W: QuantForm>(self, rows: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                1 if L::BYTE_DOT => self.columns::<L, W, 1>(),
                2 if L::BYTE_DOT => self.columns::<L, W, QUAD_ROWS>(),
                1 => self.sums::<L, W, 1, 2>(0),
                2 => self.sums::<L, W, 2, 2>(0),
                _ if !L::Floats::WIDE => unreachable!("more rows than a tile has"),
                3 => self.sums::<L, W, 3, 2>(0),
                _ => self.sums::<L, W, 4, 2>(0),
            }
        }
    }

    /// Computes the sums for `rows` rows of a tile with unpacked weights: 3 to [`MANY`], or 1 to [`QUAD_ROWS`] in lanes
    /// with quads.
    ///
    /// # Safety
    /// The same as for [`few`](Self::few).
    #[inline(always)]
    pub(super) unsafe fn many<L: IntLanes, W: QuantForm>(self, rows: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                1 if L::BYTE_DOT => self.columns::<L, W, 1>(),
                _ if L::BYTE_DOT => self.columns::<L, W, QUAD_ROWS>(),
                3 => self.columns::<L, W, 3>(),
                4 => self.columns::<L, W, 4>(),
                5 => self.columns::<L, W, 5>(),
                _ => self.columns::<L, W, MANY>(),
            }
        }
    }

    /// Computes both vectors of columns together where the registers suffice.
    #[inline(always)]
    unsafe fn columns<L: IntLanes, W: QuantForm, const R: usize>(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if L::Floats::WIDE {
                self.sums::<L, W, R, 2>(0);
            } else {
                self.sums::<L, W, R, 1>(0);
                self.sums::<L, W, R, 1>(1);
            }
        }
    }

    /// Computes `R` rows and `V` vectors of columns.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn sums<L: IntLanes, W: QuantForm, const R: usize, const V: usize>(self, first: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for start in (0..self.blocks).step_by(W::SHARED) {
                let mut totals = [[L::splat(0); V]; R];
                for block in start..start + W::SHARED {
                    if L::BYTE_DOT {
                        self.quad_dots::<L, W, R, V>(first, block, &mut totals);
                    } else {
                        self.dots::<L, W, R, V>(first, block, &mut totals);
                    }
                }
                let at = BlockAt::of::<W>(self.from, start);
                let x = self.x.add(start * WORDS * R);
                for v in 0..V {
                    let unit = W::unit::<L>(at, first + v);
                    let has_minimum = W::MIN && W::SHARED == 1;
                    let minimum = if has_minimum { W::minimum::<L>(at, first + v, 0) } else { L::Floats::splat(0.0) };
                    for r in 0..R {
                        let field = |word: usize| L::Floats::splat(f32::from_bits(*x.add(word * R + r)));
                        // The sums so far are in memory, because there are few registers, and the products of the next
                        // blocks do not wait for these sums.
                        let to = self.acc.add(r * PANEL + (first + v) * 16);
                        let mut acc = totals[r][v].floats().mul(field(SCALE)).fma(unit, L::Floats::load(to));
                        if has_minimum {
                            acc = minimum.fma(field(SUM), acc);
                        }
                        acc.store(to);
                    }
                }
                let end = start + W::SHARED;
                if W::MIN && W::SHARED > 1 && end.is_multiple_of(W::SUPER) {
                    self.minima::<L, W, R, V>(first, end - W::SUPER);
                }
            }
        }
    }

    /// Adds the integer products of a block.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn dots<L: IntLanes, W: QuantForm, const R: usize, const V: usize>(
        self,
        first: usize,
        block: usize,
        totals: &mut [[L; V]; R],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = BlockAt::of::<W>(self.from, block);
            if W::STREAMED && first == 0 {
                at.prefetch::<W>();
            }
            let x = self.x.add(block * WORDS * R);
            let mut sums = [[L::splat(0); V]; R];
            for group in 0..GROUPS {
                for step in 0..STEPS {
                    let mut quants = [L::splat(0); V];
                    for v in 0..V {
                        quants[v] = W::pairs::<L>(at, first + v, group, step as u32);
                    }
                    for r in 0..R {
                        let pair = L::splat(*x.add((group * STEPS + step) * R + r));
                        for v in 0..V {
                            let sum = if W::FOLDED { &mut totals[r][v] } else { &mut sums[r][v] };
                            *sum = quants[v].dot(pair, *sum);
                        }
                    }
                }
                if !W::FOLDED && (group == GROUPS - 1 || W::HALVES && group == GROUPS / 2 - 1) {
                    for v in 0..V {
                        let factors = W::factors::<L>(at, first + v, group / 2);
                        for r in 0..R {
                            totals[r][v] = totals[r][v].add(sums[r][v].mul(factors));
                            sums[r][v] = L::splat(0);
                        }
                    }
                }
            }
        }
    }

    /// Adds the integer products of a block byte by byte.
    ///
    /// An activation is `256 · high + low`, with an unsigned low byte. Lanes that can only multiply signed bytes use
    /// `low - 128` instead, which is `low` with the top bit flipped, and add 128 times the sum of the quants.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn quad_dots<L: IntLanes, W: QuantForm, const R: usize, const V: usize>(
        self,
        first: usize,
        block: usize,
        totals: &mut [[L; V]; R],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = BlockAt::of::<W>(self.from, block);
            if W::STREAMED && first == 0 {
                at.prefetch::<W>();
            }
            let x = self.x.add(block * WORDS * R);
            let halves = if W::HALVES { 2 } else { 1 };
            for half in 0..halves {
                let mut lows = [[L::splat(0); V]; R];
                let mut highs = [[L::splat(0); V]; R];
                let mut ones = [L::splat(0); V];
                for quad in half * QUADS / halves..(half + 1) * QUADS / halves {
                    let mut quants = [L::splat(0); V];
                    for v in 0..V {
                        quants[v] = W::quads::<L>(at, first + v, quad);
                        if !L::UNSIGNED_BYTE_DOT {
                            ones[v] = quants[v].dot_bytes(L::splat(0x0101_0101), ones[v]);
                        }
                    }
                    for r in 0..R {
                        let pair = L::splat(*x.add(quad * 2 * R + r));
                        let next = L::splat(*x.add((quad * 2 + 1) * R + r));
                        let low = pair.low_bytes(next);
                        let less = low.xor(L::splat(0x8080_8080));
                        let high = pair.high_bytes(next);
                        for v in 0..V {
                            let sum = lows[r][v];
                            lows[r][v] = if L::UNSIGNED_BYTE_DOT {
                                quants[v].dot_unsigned(low, sum)
                            } else {
                                quants[v].dot_bytes(less, sum)
                            };
                            highs[r][v] = quants[v].dot_bytes(high, highs[r][v]);
                        }
                    }
                }
                for v in 0..V {
                    // Where blocks do not share a scale, quants have no factors.
                    let factors = if W::SHARED > 1 { W::factors::<L>(at, first + v, half) } else { L::splat(1) };
                    for r in 0..R {
                        let sum = highs[r][v].left(8).add(lows[r][v]);
                        let sum = if L::UNSIGNED_BYTE_DOT { sum } else { sum.add(ones[v].left(7)) };
                        let sum = if W::SHARED > 1 { sum.mul(factors) } else { sum };
                        totals[r][v] = totals[r][v].add(sum);
                    }
                }
            }
        }
    }

    /// Adds the products with the minima of the super-block that begins with block `start`.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn minima<L: IntLanes, W: QuantForm, const R: usize, const V: usize>(self, first: usize, start: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut sums = [[L::Floats::splat(0.0); V]; R];
            for block in start..start + W::SUPER {
                let at = BlockAt::of::<W>(self.from, block);
                let x = self.x.add(block * WORDS * R);
                for half in 0..if W::HALVES { 2 } else { 1 } {
                    let word = if W::HALVES { SUM + 1 + half } else { SUM };
                    let mut minimum = [L::Floats::splat(0.0); V];
                    for v in 0..V {
                        minimum[v] = W::minimum::<L>(at, first + v, half);
                    }
                    for r in 0..R {
                        let sum = L::Floats::splat(f32::from_bits(*x.add(word * R + r)));
                        for v in 0..V {
                            sums[r][v] = minimum[v].fma(sum, sums[r][v]);
                        }
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let to = self.acc.add(r * PANEL + (first + v) * 16);
                    L::Floats::load(to).add(sums[r][v]).store(to);
                }
            }
        }
    }
}
