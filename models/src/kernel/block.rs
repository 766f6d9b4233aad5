//! Multiplication of small dense blocks anywhere in memory, which gradients and attention consist of.
//!
//! The result of a block stays in registers while its operands are read, and is a chain of fused multiply-adds in
//! the order of the inner index.

use super::isa::Isa;
use super::lanes::{LANES, Lanes};

/// Dimensions of a multiplication.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// Number of rows of the left operand and of the result.
    pub(crate) rows: usize,
    /// Length of the sums.
    pub(crate) inner: usize,
    /// Number of columns of the right operand and of the result, a multiple of 16.
    pub(crate) columns: usize,
}

/// Left operand: element (row, k) is `from[row · self.row + k · self.step]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) from: &'a [f32],
    /// Distance between rows.
    pub(crate) row: usize,
    /// Distance between inner indices.
    pub(crate) step: usize,
}

/// Right operand: row k begins at `from[k · stride]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) from: &'a [f32],
    pub(crate) stride: usize,
}

/// Treatment of the result's previous content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    /// The sums replace the previous content.
    Set,
    /// The sums start from the previous content.
    Add,
}

/// Computes `to[row · stride + column] (+)= Σ_k left(row, k) · right(k, column)`.
///
/// # Panics
/// If a slice is too short, or `columns` is not a multiple of 16.
pub(crate) fn multiply(
    isa: Isa,
    extent: Extent,
    left: Left<'_>,
    right: Right<'_>,
    (to, stride): (&mut [f32], usize),
    sum: Sum,
) {
    let Extent { rows, inner, columns } = extent;
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(columns.is_multiple_of(LANES) && to.len() >= (rows - 1) * stride + columns, "block result");
    if inner > 0 {
        assert!(left.from.len() > (rows - 1) * left.row + (inner - 1) * left.step, "left block");
        assert!(right.from.len() >= (inner - 1) * right.stride + columns, "right block");
    }
    let task = BlockTask { extent, left, right, to: to.as_mut_ptr(), stride, add: sum == Sum::Add };
    // SAFETY: `isa` names instructions that the CPU has; the operands cover the elements of the formula, as
    // asserted.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512(task),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2(task),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => task.run::<super::neon::Floats>(),
            Isa::Portable => task.run::<[f32; LANES]>(),
        }
    }
}

#[derive(Clone, Copy)]
struct BlockTask<'a> {
    extent: Extent,
    left: Left<'a>,
    right: Right<'a>,
    to: *mut f32,
    stride: usize,
    add: bool,
}

/// Calls `$self.tile::<L, rows, $columns>` with the rows as a constant.
macro_rules! tile {
    ($self:ident, $lanes:ident, $columns:literal, $row:ident, $column:ident, $count:ident: $($rows:literal)*) => {
        match $count {
            $($rows => $self.tile::<$lanes, $rows, $columns>($row, $column),)*
            _ => unreachable!("more rows than a tile has"),
        }
    };
}

impl BlockTask<'_> {
    /// Computes all tiles.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `L`; the operands and the result must cover their extents.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut column = 0;
        while column < self.extent.columns {
            let vectors = match (self.extent.columns - column) / LANES {
                4.. if L::WIDE => 4,
                2.. if L::WIDE => 2,
                _ => 1,
            };
            let most = if vectors == 2 { 12 } else { 6 };
            let tiles = self.extent.rows.div_ceil(most);
            for index in 0..tiles {
                let row = self.extent.rows * index / tiles;
                let count = self.extent.rows * (index + 1) / tiles - row;
                // SAFETY: guaranteed by the caller; the tile lies inside the extent.
                unsafe {
                    match vectors {
                        4 => tile!(self, L, 4, row, column, count: 1 2 3 4 5 6),
                        2 => tile!(self, L, 2, row, column, count: 1 2 3 4 5 6 7 8 9 10 11 12),
                        _ => tile!(self, L, 1, row, column, count: 1 2 3 4 5 6),
                    }
                }
            }
            column += vectors * LANES;
        }
    }

    /// Computes `R` rows and `C` vectors of columns from (row, column) on.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const C: usize>(self, row: usize, column: usize) {
        // SAFETY: the requirements of `run`.
        unsafe {
            let to = self.to.add(row * self.stride + column);
            let mut sums = [[L::splat(0.0); C]; R];
            if self.add {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = L::load(to.add(r * self.stride + c * LANES));
                    }
                }
            }
            let mut left = self.left.from.as_ptr().add(row * self.left.row);
            let mut right = self.right.from.as_ptr().add(column);
            for _ in 0..self.extent.inner {
                let mut vectors = [L::splat(0.0); C];
                for c in 0..C {
                    vectors[c] = L::load(right.add(c * LANES));
                }
                for r in 0..R {
                    let value = L::splat(*left.add(r * self.left.row));
                    for c in 0..C {
                        sums[r][c] = vectors[c].fma(value, sums[r][c]);
                    }
                }
                // The last iteration steps beyond the operands, where nothing is read.
                left = left.wrapping_add(self.left.step);
                right = right.wrapping_add(self.right.stride);
            }
            for r in 0..R {
                for c in 0..C {
                    sums[r][c].store(to.add(r * self.stride + c * LANES));
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use super::BlockTask;

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(task: BlockTask<'_>) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<__m512>() }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2(task: BlockTask<'_>) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<[__m256; 2]>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_sums() {
        for isa in Isa::available() {
            for (rows, inner, columns) in [(1, 1, 16), (7, 3, 32), (13, 5, 48), (26, 64, 64), (5, 9, 112), (3, 0, 16)] {
                let value = |at: usize| (at * 37 % 17) as f32 - 8.0;
                for (row, step) in [(inner + 3, 1), (1, rows + 2)] {
                    let left: Vec<f32> = (0..rows * row + inner * step).map(value).collect();
                    let right: Vec<f32> = (0..inner * (columns + 5)).map(value).collect();
                    for sum in [Sum::Set, Sum::Add] {
                        let mut to = vec![2.0; rows * (columns + 1)];
                        let extent = Extent { rows, inner, columns };
                        let left = Left { from: &left, row, step };
                        let right = Right { from: &right, stride: columns + 5 };
                        multiply(isa, extent, left, right, (&mut to, columns + 1), sum);
                        for (at, &found) in to.iter().enumerate() {
                            let r = at / (columns + 1);
                            let c = at % (columns + 1);
                            let product = |k: usize| left.from[r * row + k * step] * right.from[k * (columns + 5) + c];
                            let product: f32 = (0..inner).map(product).sum();
                            let start = if sum == Sum::Add || c == columns { 2.0 } else { 0.0 };
                            assert_eq!(found, if c == columns { 2.0 } else { start + product }, "{isa:?} {extent:?}");
                        }
                    }
                }
            }
        }
    }
}
