//! Matrix multiplication of activations in 16-bit integers with quantized weights.
//!
//! Work is split as in [`matmul`](crate::kernel::matmul()): units of one panel of outputs times up to `ROWS` rows. A
//! thread rounds the rows of a unit once and keeps them from panel to panel.

use super::activations::RoundedBlock;
use super::isa::IntegerIsa;
use super::tile::{FEW, Tile};
use super::unpacked::{CHUNK, Scratch};
use super::{QuantForm, with_form};
use crate::kernel::isa::Isa;
use crate::kernel::layout::{BLOCK, PANEL};
use crate::kernel::matmul_output::{Finish, MatmulOutput};
use crate::kernel::packed::{CacheLine, Packed};
use crate::kernel::team::{Base, Team, share};

/// Number of activation rows per unit of work: rounded, they stay in the second-level cache from panel to panel.
const ROWS: usize = 96;
/// Number of cache lines that hold a whole number of rounded blocks.
const LINES: usize = size_of::<RoundedBlock>() / 16;

/// Computes `x · Wᵀ` with x of shape (m, in), rounded to 16-bit integers.
///
/// # Panics
/// If a slice does not have its shape, or W is not quantized.
pub(in crate::kernel) fn product(
    isa: Isa,
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
    with_form!(w.form(), W => task.run::<W>(IntegerIsa::of(isa), team), panic!("integer products need quantized weights"));
}

struct IntegerTask<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a Packed,
    target: MatmulOutput<'a>,
}

/// Rows of a unit, rounded.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a [RoundedBlock],
    /// Number of blocks per row.
    blocks: usize,
    count: usize,
}

/// Working memory of a thread.
struct UnitScratch {
    weights: Scratch,
    sums: [f32; ROWS * PANEL],
}

impl IntegerTask<'_> {
    fn run<W: QuantForm>(&self, isa: IntegerIsa, team: &Team) {
        let panels = self.w.panels();
        let groups = self.m.div_ceil(ROWS);
        let blocks = self.w.inn() / BLOCK;
        let rows = self.m.div_ceil(groups.max(1));
        let lines = (rows * blocks * size_of::<RoundedBlock>()).div_ceil(size_of::<CacheLine>());
        // Five cache lines hold four rounded blocks.
        let lines = lines.next_multiple_of(LINES);
        team.sweep(groups * panels, &|claims| {
            let mut memory = team.memory(claims.worker(), lines);
            let rounded = bytemuck::cast_slice_mut::<CacheLine, RoundedBlock>(&mut memory[..lines]);
            let mut scratch = UnitScratch { weights: Scratch::new(), sums: [0.0; ROWS * PANEL] };
            let mut current = None;
            for unit in claims {
                let group = unit / panels;
                let panel = unit % panels;
                let rows = share(self.m, group, groups);
                if current != Some(group) {
                    let x = &self.x[rows.start * self.w.inn()..rows.end * self.w.inn()];
                    isa.round(x, rounded);
                    current = Some(group);
                }
                rows.clone().for_each(|row| self.target.prefetch(row, panel));
                let count = rows.len();
                scratch.sums[..count * PANEL].fill(0.0);
                let x = Rows { x: &rounded[..count * blocks], blocks, count };
                multiply::<W>(isa, self.w.panel(panel), x, &mut scratch);
                // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
                unsafe { self.target.take(rows.start, panel, &scratch.sums[..count * PANEL]) };
            }
        });
    }
}

/// Adds the products with a panel to the sums.
fn multiply<W: QuantForm>(isa: IntegerIsa, panel: &[u8], rows: Rows<'_>, scratch: &mut UnitScratch) {
    let Rows { x, blocks, count } = rows;
    assert!(panel.len() >= blocks / W::SUPER * W::BYTES && x.len() == blocks * count, "shape of a unit");
    let acc = scratch.sums[..count * PANEL].as_mut_ptr();
    if count <= FEW {
        let tile = Tile { from: panel.as_ptr(), blocks, x: x.as_ptr(), stride: blocks, acc };
        // SAFETY: the CPU has the instructions; panel, activations and sums cover rows and blocks, as asserted.
        return unsafe { isa.few::<W>(tile, count) };
    }
    let tiles = count.div_ceil(isa.most_rows());
    for first in (0..blocks).step_by(CHUNK) {
        let part = CHUNK.min(blocks - first);
        // SAFETY: as above; the scratch holds a chunk of blocks.
        unsafe { isa.fill::<W>(&mut scratch.weights, panel.as_ptr(), first, part) };
        for tile in 0..tiles {
            let rows = share(count, tile, tiles);
            // SAFETY: as above.
            unsafe {
                let x = x.as_ptr().add(rows.start * blocks + first);
                let acc = acc.add(rows.start * PANEL);
                let tile = Tile { from: scratch.weights.from(), blocks: part, x, stride: blocks, acc };
                match (W::HALVES, W::MIN) {
                    (false, false) => isa.many::<false, false>(tile, rows.len()),
                    (false, true) => isa.many::<false, true>(tile, rows.len()),
                    (true, false) => isa.many::<true, false>(tile, rows.len()),
                    (true, true) => isa.many::<true, true>(tile, rows.len()),
                }
            }
        }
    }
}
