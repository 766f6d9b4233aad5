//! Weight matrices in brain floats (bf16: the upper half of an `f32`), multiplied with activations rounded to bf16.
//!
//! Used for serving layers and for frozen layers underneath trained parameters, when requested
//! ([`super::arithmetic`]). With the many rows of prefill and training, it takes half the time of
//! [`super::matmul()`] on CPUs that multiply pairs of brain floats. With few rows, the weights' size of 16 bits
//! dominates, whatever the checkpoint's format.
//!
//! Values are rounded to the nearest brain float, 8 significant bits. Sums are `f32`, pair by pair of input
//! indices, in order, so that a row's result depends neither on its batch nor on the number of threads. Instruction
//! sets differ in how they add a pair, in how they round inside a sum, and in numbers below 2⁻¹²⁶.

use std::fmt;

use half::bf16;

use super::brain_dot::{BrainPairs, CHUNK, Dot, DotMethod, PlainFloats};
use super::layout::PANEL;
use super::matmul_output::{Finish, MatmulOutput};
use super::packed::{CacheLine, Packed};
use super::team::{Base, Team, share};

/// Number of activation rows per unit of work: rounded, they stay in the second-level cache from panel to panel.
const ROWS: usize = 96;

/// A weight matrix W of shape (out, in) in brain floats, for `y = x · Wᵀ`.
///
/// Outputs are grouped in panels as in `layout`. Per pair of input indices, a panel has one `u32` for each of its
/// outputs: the even index in the lower half, the odd one in the upper. An odd `in` is padded with a zero.
pub struct Brain {
    out: usize,
    inn: usize,
    lines: Box<[CacheLine]>,
}

impl Brain {
    /// Converts W, rounding each weight to the nearest brain float.
    pub fn of(w: &Packed) -> Self {
        let mut brain = Self::empty(w.out(), w.inn());
        let len = brain.panel_len();
        let mut row = vec![0.0; w.inn()];
        let words = bytemuck::cast_slice_mut::<CacheLine, u32>(&mut brain.lines);
        for out in 0..w.out() {
            w.row_f32(out, &mut row);
            let panel = &mut words[out / PANEL * len..][..len];
            for (values, to) in row.chunks(2).zip(panel.chunks_exact_mut(PANEL)) {
                to[out % PANEL] = pair(values[0], values.get(1).copied().unwrap_or(0.0));
            }
        }
        brain
    }

    /// Converts Wᵀ, rounding each weight to the nearest brain float, for gradients `dx = dy · W`.
    pub fn transposed(w: &Packed) -> Self {
        let mut brain = Self::empty(w.inn(), w.out());
        let len = brain.panel_len();
        let mut rows = [vec![0.0; w.inn()], vec![0.0; w.inn()]];
        let words = bytemuck::cast_slice_mut::<CacheLine, u32>(&mut brain.lines);
        for (index, even) in (0..w.out()).step_by(2).enumerate() {
            w.row_f32(even, &mut rows[0]);
            match even + 1 < w.out() {
                true => w.row_f32(even + 1, &mut rows[1]),
                false => rows[1].fill(0.0),
            }
            for (out, (&even, &odd)) in rows[0].iter().zip(&rows[1]).enumerate() {
                words[out / PANEL * len + index * PANEL + out % PANEL] = pair(even, odd);
            }
        }
        brain
    }

    fn empty(out: usize, inn: usize) -> Self {
        let words = out.div_ceil(PANEL) * inn.div_ceil(2) * PANEL;
        Self { out, inn, lines: vec![CacheLine([0; 64]); words / 16].into() }
    }

    /// Number of outputs: rows of W.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Number of inputs: columns of W.
    pub fn inn(&self) -> usize {
        self.inn
    }

    /// Size of the weights, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Computes `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out), both row-major. Overwrites y.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    pub fn matmul(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        product(DotMethod::best(), team, x, m, self, y, Finish::Set);
    }

    /// Computes `y += x · Wᵀ`. Each product is summed completely before it is added.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    pub fn matmul_add(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        product(DotMethod::best(), team, x, m, self, y, Finish::Add);
    }

    /// Number of `u32` values of a panel.
    fn panel_len(&self) -> usize {
        self.inn.div_ceil(2) * PANEL
    }

    /// Values of a panel, which begins at a cache line.
    fn panel(&self, panel: usize) -> &[u32] {
        let len = self.panel_len();
        &bytemuck::cast_slice(&self.lines)[panel * len..][..len]
    }
}

/// Two values packed into one `u32`.
fn pair(even: f32, odd: f32) -> u32 {
    let [even, odd] = [even, odd].map(|value| u32::from(bf16::from_f32(value).to_bits()));
    even | odd << 16
}

pub(super) fn product(way: DotMethod, team: &Team, x: &[f32], m: usize, w: &Brain, y: &mut [f32], finish: Finish<'_>) {
    assert_eq!(x.len(), m * w.inn, "activations of shape ({m}, {})", w.inn);
    assert_eq!(y.len(), m * w.out, "result of shape ({m}, {})", w.out);
    let task = BrainTask { x, m, w, target: MatmulOutput { y: Base(y.as_mut_ptr()), out: w.out, finish } };
    match way {
        DotMethod::BrainPairs(has) => task.run(team, &|| BrainPairs::new(has)),
        DotMethod::PlainFloats => task.run(team, &PlainFloats::new),
    }
}

struct BrainTask<'a> {
    x: &'a [f32],
    m: usize,
    w: &'a Brain,
    target: MatmulOutput<'a>,
}

impl BrainTask<'_> {
    /// Computes the whole result in units of one panel of outputs times up to [`ROWS`] rows. A thread visits all
    /// panels before it moves on to other rows, so it rounds those rows once.
    fn run<D: Dot>(&self, team: &Team, dot: &(dyn Fn() -> D + Sync)) {
        let panels = self.w.out.div_ceil(PANEL);
        let groups = self.m.div_ceil(ROWS);
        let pairs = self.w.inn.div_ceil(2);
        // Room for the rounded rows of a whole group.
        let lines = (self.m.div_ceil(groups.max(1)) * pairs * size_of::<D::Pair>()).div_ceil(size_of::<CacheLine>());
        team.sweep(groups * panels, &|claims| {
            let mut dot = dot();
            let mut memory = team.memory(claims.worker(), lines);
            let rounded = bytemuck::cast_slice_mut::<CacheLine, D::Pair>(&mut memory);
            let mut sums = [0.0; ROWS * PANEL];
            let mut current = None;
            for unit in claims {
                let group = unit / panels;
                let panel = unit % panels;
                let rows = share(self.m, group, groups);
                if current != Some(group) {
                    let x = &self.x[rows.start * self.w.inn..rows.end * self.w.inn];
                    let places = rounded.chunks_exact_mut(pairs.max(1));
                    x.chunks_exact(self.w.inn.max(1)).zip(places).for_each(|(row, to)| dot.round(row, to));
                    current = Some(group);
                }
                rows.clone().for_each(|row| self.target.prefetch(row, panel));
                let sums = &mut sums[..rows.len() * PANEL];
                sums.fill(0.0);
                let chunks = pairs.div_ceil(CHUNK);
                for chunk in (0..chunks).map(|chunk| share(pairs, chunk, chunks)) {
                    let weights = &self.w.panel(panel)[chunk.start * PANEL..chunk.end * PANEL];
                    dot.multiply(&rounded[chunk.start..], pairs, weights, sums);
                }
                // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
                unsafe { self.target.take(rows.start, panel, sums) };
            }
        });
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Brain({} × {}, {} bytes)", self.out, self.inn, self.bytes())
    }
}
