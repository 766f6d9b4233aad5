//! Multiplication with matrices that are narrow on one side, as in adapters: `y += B · (A · x)`.
//!
//! [`matmul`](super::matmul()) splits its work by outputs. A has too few outputs for that, and B has too few inputs to
//! pay for unpacking. Here both are plain `f32`, with the long side contiguous in memory. As in `matmul`, each output
//! is one chain of fused multiply-adds for any number of rows, so a row's result does not depend on its batch.

use std::fmt;
use std::ops::Range;

use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::team::{Base, Team};

/// Number of rows per unit of work.
const ROWS: usize = 8;
/// Number of columns per unit of work.
const COLUMNS: usize = 16 * LANES;

/// A matrix of shape (out, in) with few outputs. Lanes are outputs, so each sixteen outputs read one contiguous
/// range.
pub(crate) struct NarrowMatrix {
    inn: usize,
    out: usize,
    /// Values, shape (out / 16 rounded up, in, 16), with zeros after the last output.
    data: Vec<f32>,
}

/// A matrix of shape (out, in) with few inputs, stored transposed.
pub(crate) struct WideMatrix {
    inn: usize,
    out: usize,
    /// Values, shape (in, out rounded up to 16).
    data: Vec<f32>,
}

/// A selection of rows of an activation matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSelection<'a> {
    /// All rows, end to end.
    pub(crate) data: &'a [f32],
    /// Indices of the selected rows.
    pub(crate) indices: &'a [usize],
}

impl NarrowMatrix {
    /// Creates a matrix from rows of `inn` values each.
    pub(crate) fn new(rows: &[f32], inn: usize) -> Self {
        let out = rows.len() / inn;
        let mut data = vec![0.0; out.next_multiple_of(LANES) * inn];
        for (o, row) in rows.chunks_exact(inn).enumerate() {
            for (k, &value) in row.iter().enumerate() {
                data[(o / LANES * inn + k) * LANES + o % LANES] = value;
            }
        }
        Self { inn, out, data }
    }

    /// Number of outputs, rounded up to whole vectors.
    pub(crate) fn padded(&self) -> usize {
        self.out.next_multiple_of(LANES)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Computes `y[i] = A · x[indices[i]]`; y has shape (indices, [`padded`](Self::padded)).
    pub(crate) fn product(&self, team: &Team, x: RowSelection<'_>, y: &mut [f32]) {
        self.product_with(Isa::best(), team, x, y);
    }

    fn product_with(&self, isa: Isa, team: &Team, x: RowSelection<'_>, y: &mut [f32]) {
        assert_eq!(y.len(), x.indices.len() * self.padded(), "result of shape (rows, padded)");
        let most = x.indices.iter().max().map_or(0, |&row| row + 1);
        assert!(x.data.len() >= most * self.inn, "activations of every row");
        let vectors = self.padded() / LANES;
        let y = Base(y.as_mut_ptr());
        team.each(x.indices.len().div_ceil(ROWS) * vectors, &|item| {
            let rows = item / vectors * ROWS;
            let vector = item % vectors;
            let rows = rows..(rows + ROWS).min(x.indices.len());
            // SAFETY: `isa` names instructions that the CPU has; rows and vector lie inside the asserted lengths;
            // items are disjoint.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => x86::narrow_avx512(self, x, rows, vector, &y),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => x86::narrow_avx2(self, x, rows, vector, &y),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon => self.unit::<super::neon::Floats>(x, rows, vector, &y),
                    Isa::Portable => self.unit::<[f32; LANES]>(x, rows, vector, &y),
                }
            }
        });
    }

    /// Computes one unit of work.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`; rows and vector must exist; nothing else may write to their
    /// place in `y`.
    #[inline(always)]
    unsafe fn unit<L: Lanes>(&self, x: RowSelection<'_>, rows: Range<usize>, vector: usize, y: &Base<f32>) {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: guaranteed by the caller, and `row + R <= rows.end`.
            unsafe {
                row += match rows.end - row {
                    8.. if L::WIDE => self.rows::<L, 8>(x, row, vector, y),
                    4.. => self.rows::<L, 4>(x, row, vector, y),
                    _ => self.rows::<L, 1>(x, row, vector, y),
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<L: Lanes, const R: usize>(
        &self,
        x: RowSelection<'_>,
        row: usize,
        vector: usize,
        y: &Base<f32>,
    ) -> usize {
        // SAFETY: the requirements of `unit`.
        unsafe {
            let from: [*const f32; R] = std::array::from_fn(|r| x.data.as_ptr().add(x.indices[row + r] * self.inn));
            let weights = self.data.as_ptr().add(vector * self.inn * LANES);
            let mut sums = [L::splat(0.0); R];
            for k in 0..self.inn {
                let weight = L::load(weights.add(k * LANES));
                for r in 0..R {
                    sums[r] = weight.fma(L::splat(*from[r].add(k)), sums[r]);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                sum.store(y.at((row + r) * self.padded() + vector * LANES));
            }
        }
        R
    }
}

impl WideMatrix {
    /// Creates a matrix from `out` rows of `inn` values each, multiplied by `scale`.
    pub(crate) fn new(rows: &[f32], inn: usize, scale: f32) -> Self {
        let out = rows.len() / inn;
        let padded = out.next_multiple_of(LANES);
        let mut data = vec![0.0; inn * padded];
        for (o, row) in rows.chunks_exact(inn).enumerate() {
            for (k, &value) in row.iter().enumerate() {
                data[k * padded + o] = value * scale;
            }
        }
        Self { inn, out, data }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Number of outputs.
    pub(crate) fn out(&self) -> usize {
        self.out
    }

    /// Number of units of work in [`add`](Self::add) for `rows` rows.
    pub(crate) fn units(&self, rows: usize) -> usize {
        rows.div_ceil(ROWS) * self.out.div_ceil(COLUMNS)
    }

    /// Computes one unit of `y[place(i)..] += B · x[i]` for `rows` rows; row `i` of x begins at `x[i · stride]`.
    ///
    /// # Safety
    /// `place(i)` must be the start of [`out`](Self::out) values inside `y`, which nothing else accesses while
    /// units run.
    pub(crate) unsafe fn add(
        &self,
        unit: usize,
        x: &[f32],
        stride: usize,
        rows: usize,
        y: &Base<f32>,
        place: &dyn Fn(usize) -> usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.add_with(Isa::best(), unit, x, stride, rows, y, place) }
    }

    #[allow(clippy::too_many_arguments, reason = "as `add`, on one instruction set")]
    unsafe fn add_with(
        &self,
        isa: Isa,
        unit: usize,
        x: &[f32],
        stride: usize,
        rows: usize,
        y: &Base<f32>,
        place: &dyn Fn(usize) -> usize,
    ) {
        let chunks = self.out.div_ceil(COLUMNS);
        let first = unit / chunks * ROWS;
        let column = unit % chunks * COLUMNS;
        let count = ROWS.min(rows - first);
        assert!(x.len() >= (rows - 1) * stride + self.inn, "inputs of every row");
        let columns = column..(column + COLUMNS).min(self.out);
        // Entries beyond the last row repeat its place and are not used.
        let places = std::array::from_fn(|r| place(first + r.min(count - 1)));
        let part = WideUnit { x: &x[first * stride..], stride, count, places, columns };
        // SAFETY: guaranteed by the caller; `isa` names instructions that the CPU has.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::wide_avx512(self, &part, y),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::wide_avx2(self, &part, y),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => self.unit::<super::neon::Floats>(&part, y),
                Isa::Portable => self.unit::<[f32; LANES]>(&part, y),
            }
        }
    }

    /// Computes all rows of a unit.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`; the unit's places must lie inside `y`.
    #[inline(always)]
    unsafe fn unit<L: Lanes>(&self, part: &WideUnit<'_>, y: &Base<f32>) {
        let mut row = 0;
        while row < part.count {
            // SAFETY: guaranteed by the caller, and `row + R <= count`.
            unsafe {
                row += match part.count - row {
                    4.. => self.rows::<L, 4>(part, row, y),
                    _ => self.rows::<L, 1>(part, row, y),
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<L: Lanes, const R: usize>(&self, part: &WideUnit<'_>, row: usize, y: &Base<f32>) -> usize {
        let mut column = part.columns.start;
        while column < part.columns.end {
            let left = part.columns.end - column;
            // SAFETY: the requirements of `unit`; the vectors from `column` on lie inside the padded rows.
            unsafe {
                column += match left {
                    64.. if L::WIDE => self.tile::<L, R, 4>(part, row, column, y),
                    _ => self.tile::<L, R, 1>(part, row, column, y),
                };
            }
        }
        R
    }

    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const C: usize>(
        &self,
        part: &WideUnit<'_>,
        row: usize,
        column: usize,
        y: &Base<f32>,
    ) -> usize {
        let padded = self.out.next_multiple_of(LANES);
        // SAFETY: the requirements of `rows`; a vector that extends past the last column is added value by value.
        unsafe {
            let mut sums = [[L::splat(0.0); C]; R];
            for k in 0..self.inn {
                let weights = self.data.as_ptr().add(k * padded + column);
                for r in 0..R {
                    let value = L::splat(*part.x.as_ptr().add((row + r) * part.stride + k));
                    for c in 0..C {
                        sums[r][c] = L::load(weights.add(c * LANES)).fma(value, sums[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    let at = column + c * LANES;
                    let to = y.at(part.places[row + r] + at);
                    if at + LANES <= self.out {
                        L::load(to).add(sums[r][c]).store(to);
                    } else {
                        let mut lanes = [0.0; LANES];
                        sums[r][c].store(lanes.as_mut_ptr());
                        (0..self.out - at).for_each(|o| *to.add(o) += lanes[o]);
                    }
                }
            }
        }
        C * LANES
    }
}

/// Operands of one unit of a multiplication with a [`WideMatrix`].
struct WideUnit<'a> {
    x: &'a [f32],
    stride: usize,
    count: usize,
    places: [usize; ROWS],
    columns: Range<usize>,
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use super::*;

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn narrow_avx512(
        a: &NarrowMatrix,
        x: RowSelection<'_>,
        rows: Range<usize>,
        vector: usize,
        y: &Base<f32>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { a.unit::<__m512>(x, rows, vector, y) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn narrow_avx2(
        a: &NarrowMatrix,
        x: RowSelection<'_>,
        rows: Range<usize>,
        vector: usize,
        y: &Base<f32>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { a.unit::<[__m256; 2]>(x, rows, vector, y) }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn wide_avx512(b: &WideMatrix, part: &WideUnit<'_>, y: &Base<f32>) {
        // SAFETY: the caller's promise.
        unsafe { b.unit::<__m512>(part, y) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn wide_avx2(b: &WideMatrix, part: &WideUnit<'_>, y: &Base<f32>) {
        // SAFETY: the caller's promise.
        unsafe { b.unit::<[__m256; 2]>(part, y) }
    }
}

impl fmt::Debug for NarrowMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Narrow").field("out", &self.out).field("inn", &self.inn).finish_non_exhaustive()
    }
}

impl fmt::Debug for WideMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wide").field("out", &self.out).field("inn", &self.inn).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn both_products_agree_with_the_definition_on_every_instruction_set() {
        let team = Team::new(2);
        for (rows, long, rank) in [(1, 48, 4), (5, 80, 16), (13, 530, 24), (40, 33, 3)] {
            let a = values(rank * long, 0.3);
            let b = values(rank * long, 0.7);
            let x = values(50 * long, 0.11);
            let indices: Vec<usize> = (0..rows).map(|row| row * 7 % 50).collect();
            for isa in Isa::available() {
                let narrow = NarrowMatrix::new(&a, long);
                let padded = narrow.padded();
                let mut small = vec![f32::NAN; rows * padded];
                narrow.product_with(isa, &team, RowSelection { data: &x, indices: &indices }, &mut small);
                let wide = WideMatrix::new(&b, rank, 0.5);
                let mut y = vec![1.0; 50 * long];
                let base = Base(y.as_mut_ptr());
                for unit in 0..wide.units(rows) {
                    // SAFETY: every place is a row of `y`, and the indices are distinct.
                    unsafe { wide.add_with(isa, unit, &small, padded, rows, &base, &|i| indices[i] * long) };
                }
                for (i, &row) in indices.iter().enumerate() {
                    for r in 0..rank {
                        let expected: f32 = (0..long).map(|k| a[r * long + k] * x[row * long + k]).sum();
                        assert!((small[i * padded + r] - expected).abs() < 1e-3, "{isa:?} {rows} {long} {rank}");
                    }
                    for o in 0..long {
                        let expected: f32 = (0..rank).map(|r| b[o * rank + r] * small[i * padded + r] * 0.5).sum();
                        assert!((y[row * long + o] - 1.0 - expected).abs() < 1e-3, "{isa:?} {rows} {long} {rank}");
                    }
                }
                let touched = indices.len() * long;
                assert!(y.iter().filter(|&&value| value == 1.0).count() >= y.len() - touched);
            }
        }
    }
}
