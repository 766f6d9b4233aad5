//! Matrix multiplication of activations in 16-bit integers with quantized weights.
//!
//! Work is split as in [`matmul`](crate::kernel::matmul()): units of one panel of outputs times a group of rows. A
//! thread rounds the rows of a group once and keeps them from panel to panel.

use std::ops::Range;

use super::activations::WORDS;
use super::isa::IntegerIsa;
#[cfg(target_arch = "x86_64")]
use super::planes::PlaneGroup;
use super::tile::Tile;
use super::unpacked::{CHUNK, Scratch};
use super::{QuantForm, with_form};
use crate::kernel::layout::{BLOCK, PANEL};
use crate::kernel::matmul_output::{Finish, MatmulOutput};
use crate::kernel::packed::Packed;
use crate::kernel::team::{Base, Team, share};

/// Maximum number of rows in a group.
const ROWS: usize = 144;
/// Number of rows in a group that its size in bytes cannot go below: fewer would not pay for unpacking a panel.
const FEWEST_ROWS: usize = 24;
/// Computes `x · Wᵀ` with x of shape (m, in), rounded to 16-bit integers.
///
/// # Panics
/// If a slice does not have its shape, or W is not quantized.
pub(in crate::kernel) fn product(
    isa: IntegerIsa,
    team: &Team,
    x: &[f32],
    m: usize,
    w: &Packed,
    y: &mut [f32],
    finish: Finish<'_>,
) {
    assert_eq!(x.len(), m * w.inn(), "activations of shape ({m}, {})", w.inn());
    assert_eq!(y.len(), m * w.out(), "result of shape ({m}, {})", w.out());
    assert!(w.inn().is_multiple_of(BLOCK), "whole blocks");
    let task = IntegerTask { x, m, w, target: MatmulOutput { y: Base(y.as_mut_ptr()), out: w.out(), finish } };
    with_form!(w.form(), W => task.run::<W>(isa, team), panic!("integer products need quantized weights"));
}

struct IntegerTask<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a Packed,
    target: MatmulOutput<'a>,
}

/// Division of a group of rows into tiles.
#[derive(Clone, Copy)]
struct GroupShape {
    /// Number of blocks per row.
    blocks: usize,
    /// Number of rows.
    count: usize,
    tiles: usize,
}

impl GroupShape {
    /// Rows of a tile.
    fn rows(self, tile: usize) -> Range<usize> {
        share(self.count, tile, self.tiles)
    }

    /// Number of words of the rounded rows.
    fn words(self) -> usize {
        self.count * self.blocks * WORDS
    }

    /// The group for AMX, where that is faster.
    #[cfg(target_arch = "x86_64")]
    fn planes(self, isa: IntegerIsa) -> Option<PlaneGroup> {
        isa.tiles(self.count).map(|support| PlaneGroup { support, blocks: self.blocks, count: self.count })
    }

    /// Rounds the rows, tile by tile.
    fn round<W: QuantForm>(self, isa: IntegerIsa, x: &[f32], to: &mut [u32]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(group) = self.planes(isa) {
            return group.round::<W>(x, &mut to[..self.words()]);
        }
        let each = self.blocks * BLOCK;
        for rows in (0..self.tiles).map(|tile| self.rows(tile)) {
            let to = &mut to[rows.start * self.blocks * WORDS..rows.end * self.blocks * WORDS];
            isa.round::<W>(&x[rows.start * each..rows.end * each], rows.len(), to);
        }
    }
}

/// Working memory of a thread.
#[repr(align(64))]
struct UnitScratch {
    sums: [f32; ROWS * PANEL],
    weights: Scratch,
}

impl IntegerTask<'_> {
    fn run<W: QuantForm>(&self, isa: IntegerIsa, team: &Team) {
        let panels = self.w.panels();
        let blocks = self.w.inn() / BLOCK;
        let groups = self.m.div_ceil(group_rows(isa, blocks));
        let most = self.m.div_ceil(groups.max(1));
        let len = most * blocks * WORDS;
        team.sweep(groups * panels, &|claims| {
            let mut memory = team.floats(claims.worker(), len);
            let rounded = memory.free().words(len);
            let mut scratch = UnitScratch { sums: [0.0; ROWS * PANEL], weights: Scratch::new() };
            let mut current = None;
            for unit in claims {
                let group = unit / panels;
                let panel = unit % panels;
                let rows = share(self.m, group, groups);
                let count = rows.len();
                let shape = GroupShape { blocks, count, tiles: isa.tile_rows().tiles(count) };
                if current != Some(group) {
                    let x = &self.x[rows.start * self.w.inn()..rows.end * self.w.inn()];
                    shape.round::<W>(isa, x, rounded);
                    current = Some(group);
                }
                rows.clone().for_each(|row| self.target.prefetch(row, panel));
                scratch.sums[..count * PANEL].fill(0.0);
                multiply::<W>(isa, self.w.panel(panel), &rounded[..shape.words()], shape, &mut scratch);
                // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
                unsafe { self.target.take(rows.start, panel, &scratch.sums[..count * PANEL]) };
            }
        });
    }
}

/// Maximum number of rows of a group, with `blocks` blocks each.
fn group_rows(isa: IntegerIsa, blocks: usize) -> usize {
    let fit = isa.group_bytes() / (blocks * WORDS * size_of::<u32>()).max(1);
    fit.clamp(FEWEST_ROWS, ROWS)
}

/// Adds the products with a panel to the sums.
fn multiply<W: QuantForm>(isa: IntegerIsa, panel: &[u8], x: &[u32], shape: GroupShape, scratch: &mut UnitScratch) {
    #[cfg(target_arch = "x86_64")]
    if let Some(group) = shape.planes(isa) {
        let UnitScratch { sums, weights } = scratch;
        return group.multiply::<W>(panel, x, weights, &mut sums[..shape.count * PANEL]);
    }
    let GroupShape { blocks, count, tiles } = shape;
    assert!(panel.len() >= blocks / W::SUPER * W::BYTES && x.len() == shape.words(), "shape of a unit");
    let acc = scratch.sums[..count * PANEL].as_mut_ptr();
    if isa.tile_rows().direct(count) {
        for rows in (0..tiles).map(|tile| shape.rows(tile)) {
            // SAFETY: the CPU has the instructions; panel, activations and sums cover rows and blocks, as asserted.
            unsafe {
                let x = x.as_ptr().add(rows.start * blocks * WORDS);
                let tile = Tile { from: panel.as_ptr(), blocks, x, acc: acc.add(rows.start * PANEL) };
                isa.few::<W>(tile, rows.len());
            }
        }
        return;
    }
    for first in (0..blocks).step_by(CHUNK) {
        let part = CHUNK.min(blocks - first);
        // SAFETY: as above; the scratch holds a chunk of blocks.
        unsafe { isa.fill::<W>(&mut scratch.weights, panel.as_ptr(), first, part) };
        for tile in 0..tiles {
            let rows = shape.rows(tile);
            // SAFETY: as above.
            unsafe {
                let x = x.as_ptr().add((rows.start * blocks + first * rows.len()) * WORDS);
                let acc = acc.add(rows.start * PANEL);
                let tile = Tile { from: scratch.weights.from(), blocks: part, x, acc };
                match (W::SHARED, W::HALVES, W::MIN) {
                    (1, _, false) => isa.many::<1, false, false>(tile, rows.len()),
                    (1, _, true) => isa.many::<1, false, true>(tile, rows.len()),
                    (_, false, false) => isa.many::<2, false, false>(tile, rows.len()),
                    (_, true, false) => isa.many::<2, true, false>(tile, rows.len()),
                    (_, false, true) => isa.many::<2, false, true>(tile, rows.len()),
                    (_, true, true) => isa.many::<2, true, true>(tile, rows.len()),
                }
            }
        }
    }
}
