//! Sums of a tile: a few rows of rounded activations times the outputs of a panel.

use super::activations::RoundedBlock;
use super::{BlockAt, GROUPS, IntLanes, Lanes, QuantForm, STEPS};
use crate::kernel::layout::PANEL;
use crate::kernel::prefetch::prefetch;

/// Prefetch distance in bytes; the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 4096;

/// Sums to compute: `acc[r][o] += Σ_b x[r][b] · w[b][o]`.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Panel, or unpacked blocks.
    pub(super) from: *const u8,
    /// Number of blocks.
    pub(super) blocks: usize,
    /// First row's first block.
    pub(super) x: *const RoundedBlock,
    /// Distance between rows of activations, in blocks.
    pub(super) stride: usize,
    /// Sums of the first row: [`PANEL`] per row.
    pub(super) acc: *mut f32,
}

/// Maximum number of rows multiplied without unpacking the weights first.
pub(super) const FEW: usize = 2;

/// Maximum number of rows of a tile.
pub(super) const fn most_rows<L: IntLanes>() -> usize {
    if L::Floats::WIDE { 12 } else { 6 }
}

impl Tile {
    /// Computes the sums for `rows` rows, at least 1 and at most [`FEW`].
    ///
    /// Each sum of a block is exact in integers and then multiplied and added in `f32`, block after block, so that
    /// the result depends neither on the number of rows nor on the division into tiles.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`, and the pointers must cover the elements of the formula.
    #[inline(always)]
    pub(super) unsafe fn few<L: IntLanes, W: QuantForm>(self, rows: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                1 => self.sums::<L, W, 1, 2>(0),
                _ => self.sums::<L, W, 2, 2>(0),
            }
        }
    }

    /// Computes the sums for `rows` rows, at least 1 and at most [`most_rows`].
    ///
    /// # Safety
    /// The same as for [`few`](Self::few).
    #[inline(always)]
    pub(super) unsafe fn many<L: IntLanes, W: QuantForm>(self, rows: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                1 => self.sums::<L, W, 1, 2>(0),
                2 => self.sums::<L, W, 2, 2>(0),
                3 => self.columns::<L, W, 3>(),
                4 => self.columns::<L, W, 4>(),
                5 => self.columns::<L, W, 5>(),
                6 => self.columns::<L, W, 6>(),
                _ if !L::Floats::WIDE => unreachable!("more rows than a tile has"),
                7 => self.sums::<L, W, 7, 2>(0),
                8 => self.sums::<L, W, 8, 2>(0),
                9 => self.sums::<L, W, 9, 2>(0),
                10 => self.sums::<L, W, 10, 2>(0),
                11 => self.sums::<L, W, 11, 2>(0),
                _ => self.sums::<L, W, 12, 2>(0),
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
            let mut acc = [[L::Floats::splat(0.0); V]; R];
            for r in 0..R {
                for v in 0..V {
                    acc[r][v] = L::Floats::load(self.acc.add(r * PANEL + (first + v) * 16));
                }
            }
            for block in 0..self.blocks {
                let at = BlockAt { from: self.from.wrapping_add(block / W::SUPER * W::BYTES), index: block % W::SUPER };
                if first == 0 {
                    let share = W::BYTES / W::SUPER;
                    prefetch(at.from.wrapping_add(at.index * share + AHEAD), share);
                }
                let x = self.x.add(block);
                let mut sums = [[L::splat(0); V]; R];
                for group in 0..GROUPS {
                    for step in 0..STEPS {
                        let mut quants = [L::splat(0); V];
                        for v in 0..V {
                            quants[v] = W::pairs::<L>(at, first + v, group, step as u32);
                        }
                        for r in 0..R {
                            let pair = L::splat((*x.add(r * self.stride)).pairs[group * STEPS + step]);
                            for v in 0..V {
                                sums[r][v] = quants[v].dot(pair, sums[r][v]);
                            }
                        }
                    }
                    let half = if W::HALVES { group / 2 } else { 0 };
                    if group == GROUPS - 1 || W::HALVES && group == GROUPS / 2 - 1 {
                        for v in 0..V {
                            let scale = W::scale::<L>(at, first + v, half);
                            let minimum = W::minimum::<L>(at, first + v, half);
                            for r in 0..R {
                                let x = &*x.add(r * self.stride);
                                let sum = sums[r][v].floats().mul(L::Floats::splat(x.scale));
                                acc[r][v] = sum.fma(scale, acc[r][v]);
                                if W::MIN {
                                    let sum = if W::HALVES { x.half_sums[half] } else { x.sum };
                                    acc[r][v] = minimum.fma(L::Floats::splat(sum), acc[r][v]);
                                }
                                sums[r][v] = L::splat(0);
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    acc[r][v].store(self.acc.add(r * PANEL + (first + v) * 16));
                }
            }
        }
    }
}
