//! Weight matrices in bf16 (the upper half of an `f32`), multiplied with activations rounded to bf16.
//!
//! Used for serving layers, and, unpacked piece by piece, for frozen layers underneath trained parameters, when
//! requested ([`super::arithmetic`]). With the many rows of prefill and training, the multiplication takes half the
//! time of [`super::matmul()`] on CPUs that multiply pairs of bf16 values. With few rows, the weights' size of 16 bits
//! dominates, whatever the checkpoint's format.
//!
//! Values are rounded to the nearest bf16 value, 8 significant bits. Sums are `f32`, pair by pair of input
//! indices, in order (with AMX, sixteen pairs at a time), so a row's result depends neither on its batch nor on the number
//! of threads. Instruction sets differ in how they add pairs, in how they round inside a sum, and in numbers below 2⁻¹²⁶.

use std::fmt;
use std::ops::Range;

use super::bf16_dot::{Bf16Pairs, CHUNK, Dot, DotMethod, PlainFloats, pair};
use super::directed::{DirectedMatrix, UNPACK_LEN};
use super::lanes::LANES;
use super::layout::PANEL;
use super::matmul_output::{Finish, MatmulOutput};
use super::packed::{CacheLine, Packed};
use super::team::{Base, Team, share};

/// Number of activation rows per unit of work: rounded, they stay in the second-level cache from panel to panel.
const ROWS: usize = 96;
/// Maximum number of rows per unit of work where each unit unpacks its weights.
const MOST_ROWS: usize = 192;
/// Maximum size of the rounded rows of such a unit if it has more than [`ROWS`] rows, in bytes: half of a common
/// second-level cache.
const ROUNDED_BYTES: usize = 512 << 10;

/// A weight matrix W of shape (out, in) in bf16, for `y = x · Wᵀ`.
///
/// Outputs are grouped in panels as in `layout`. Per pair of input indices, a panel has one `u32` for each of its
/// outputs: the even index in the lower half, the odd one in the upper. An odd `in` is padded with a zero.
pub struct Bf16Matrix {
    out: usize,
    inn: usize,
    lines: Box<[CacheLine]>,
}

impl Bf16Matrix {
    /// Converts W, rounding each weight to the nearest bf16 value.
    pub fn of(w: &Packed) -> Self {
        let mut matrix = Self::empty(w.out(), w.inn());
        let len = matrix.panel_len();
        let mut row = vec![0.0; w.inn()];
        let words = bytemuck::cast_slice_mut::<CacheLine, u32>(&mut matrix.lines);
        for out in 0..w.out() {
            w.row_f32(out, &mut row);
            let panel = &mut words[out / PANEL * len..][..len];
            for (values, to) in row.chunks(2).zip(panel.chunks_exact_mut(PANEL)) {
                to[out % PANEL] = pair(values[0], values.get(1).copied().unwrap_or(0.0));
            }
        }
        matrix
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

    /// Writes row `row` of W to `into` as `f32`.
    ///
    /// # Panics
    /// If there is no such row, or `into` does not have `inn` values.
    pub fn row_f32(&self, row: usize, into: &mut [f32]) {
        assert!(row < self.out && into.len() == self.inn, "row {row} of shape ({}, {})", self.out, self.inn);
        let pairs = self.panel(row / PANEL).iter().skip(row % PANEL).step_by(PANEL);
        for (to, pair) in into.chunks_mut(2).zip(pairs) {
            // The upper half of an `f32` is its bf16 value.
            let halves = [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)];
            to.copy_from_slice(&halves[..to.len()]);
        }
    }

    /// Computes `y = x · Wᵀ`, with x of shape (m, in) and y of shape (m, out), both row-major. Overwrites y.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    pub fn matmul(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        product(DotMethod::best(), team, x, m, PairWeights::Rounded(self), y, Finish::Set);
    }

    /// Computes `y += x · Wᵀ`. Each product is summed completely before it is added.
    ///
    /// # Panics
    /// If a slice does not have its shape.
    pub fn matmul_add(&self, team: &Team, x: &[f32], m: usize, y: &mut [f32]) {
        product(DotMethod::best(), team, x, m, PairWeights::Rounded(self), y, Finish::Add);
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

/// Weights of a multiplication.
#[derive(Clone, Copy)]
pub(super) enum PairWeights<'a> {
    Rounded(&'a Bf16Matrix),
    /// Weights that each unit of work unpacks and rounds.
    Packed(DirectedMatrix<'a>),
}

impl PairWeights<'_> {
    fn results(self) -> usize {
        match self {
            Self::Rounded(rounded) => rounded.out,
            Self::Packed(matrix) => matrix.results(),
        }
    }

    fn terms(self) -> usize {
        match self {
            Self::Rounded(rounded) => rounded.inn,
            Self::Packed(matrix) => matrix.terms(),
        }
    }

    /// Maximum number of rows per unit of work.
    fn rows(self) -> usize {
        match self {
            Self::Rounded(_) => ROWS,
            Self::Packed(matrix) => (ROUNDED_BYTES / (2 * matrix.terms()).max(1)).clamp(ROWS, MOST_ROWS),
        }
    }

    /// Number of values in the buffer for a chunk.
    fn chunk_len(self) -> usize {
        match self {
            Self::Rounded(_) => 0,
            Self::Packed(_) => CHUNK * PANEL + UNPACK_LEN,
        }
    }

    /// Weights of some pairs of terms, at most [`CHUNK`], for the results of a panel.
    fn chunk<'a>(&'a self, way: DotMethod, panel: usize, pairs: Range<usize>, buffer: &'a mut [f32]) -> &'a [u32] {
        let len = pairs.len() * PANEL;
        match self {
            Self::Rounded(rounded) => &rounded.panel(panel)[pairs.start * PANEL..][..len],
            Self::Packed(matrix) => {
                let (unpack, words) = buffer.split_at_mut(UNPACK_LEN);
                let words: &mut [u32] = bytemuck::cast_slice_mut(words);
                matrix.pairs(way, panel, pairs, unpack, words);
                &words[..len]
            }
        }
    }
}

pub(super) fn product(
    way: DotMethod,
    team: &Team,
    x: &[f32],
    m: usize,
    w: PairWeights<'_>,
    y: &mut [f32],
    finish: Finish<'_>,
) {
    assert_eq!(x.len(), m * w.terms(), "activations of shape ({m}, {})", w.terms());
    assert_eq!(y.len(), m * w.results(), "result of shape ({m}, {})", w.results());
    let target = MatmulOutput { y: Base(y.as_mut_ptr()), out: w.results(), finish };
    let task = Bf16Task { way, x, m, w, target };
    match way {
        DotMethod::Bf16Pairs(has) => task.run(team, &|| Bf16Pairs::new(has)),
        DotMethod::PlainFloats => task.run(team, &PlainFloats::new),
    }
}

struct Bf16Task<'a> {
    way: DotMethod,
    x: &'a [f32],
    m: usize,
    w: PairWeights<'a>,
    target: MatmulOutput<'a>,
}

impl Bf16Task<'_> {
    /// Computes the whole result in units of one panel of outputs times some rows. A thread visits all
    /// panels before it moves on to other rows, so it rounds those rows once.
    fn run<D: Dot>(&self, team: &Team, dot: &(dyn Fn() -> D + Sync)) {
        let panels = self.w.results().div_ceil(PANEL);
        let groups = self.m.div_ceil(self.w.rows());
        let terms = self.w.terms();
        let pairs = terms.div_ceil(2);
        let rows = self.m.div_ceil(groups.max(1));
        let rounded_len = (rows * pairs * size_of::<D::Pair>() / size_of::<f32>()).next_multiple_of(LANES);
        let lens = [rounded_len, rows * PANEL, self.w.chunk_len()];
        team.sweep(groups * panels, &|claims| {
            let mut dot = dot();
            let mut memory = team.floats(claims.worker(), lens.iter().sum());
            let mut free = memory.free();
            let [rounded, sums, buffer] = lens.map(|len| free.floats(len));
            let rounded = bytemuck::cast_slice_mut::<f32, D::Pair>(rounded);
            let mut current = None;
            for unit in claims {
                let group = unit / panels;
                let panel = unit % panels;
                let rows = share(self.m, group, groups);
                if current != Some(group) {
                    let x = &self.x[rows.start * terms..rows.end * terms];
                    let places = rounded.chunks_exact_mut(pairs.max(1));
                    x.chunks_exact(terms.max(1)).zip(places).for_each(|(row, to)| dot.round(row, to));
                    current = Some(group);
                }
                rows.clone().for_each(|row| self.target.prefetch(row, panel));
                let sums = &mut sums[..rows.len() * PANEL];
                sums.fill(0.0);
                for start in (0..pairs).step_by(CHUNK) {
                    let chunk = start..(start + CHUNK).min(pairs);
                    dot.multiply(&rounded[start..], pairs, self.w.chunk(self.way, panel, chunk, buffer), sums);
                }
                // SAFETY: the result has the rows and panels of the multiplication, and each unit its own.
                unsafe { self.target.take(rows.start, panel, sums) };
            }
        });
    }
}

impl fmt::Debug for Bf16Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bf16Matrix({} × {}, {} bytes)", self.out, self.inn, self.bytes())
    }
}
