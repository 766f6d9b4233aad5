//! Multiplication of small dense blocks anywhere in memory, for gradients and attention.
//!
//! The result of a block stays in registers while its operands are read, and is a chain of fused multiply-adds in
//! the order of the inner index. Operands are floats, or pairs of bf16 values ([`multiply_pairs`]).

use std::marker::PhantomData;

use super::bf16_dot::Bf16Support;
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
pub(crate) struct Left<'a, E = f32> {
    pub(crate) from: &'a [E],
    /// Distance between rows.
    pub(crate) row: usize,
    /// Distance between inner indices.
    pub(crate) step: usize,
}

/// Right operand: row k begins at `from[k · stride]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right<'a, E = f32> {
    pub(crate) from: &'a [E],
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
    let Some(task) = BlockTask::new(extent, left, right, (to, stride), sum) else { return };
    // SAFETY: `isa` names instructions that the CPU has; the operands cover the elements of the formula.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512(task),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2(task),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => task.run::<Floats<super::neon::Floats>>(),
            Isa::Portable => task.run::<Floats<[f32; LANES]>>(),
        }
    }
}

/// Computes `to[row · stride + column] (+)= Σ_k left(row, k) · right(k, column)`, where each element is a pair of
/// bf16 values and both products of the two pairs are added.
///
/// # Panics
/// If a slice is too short, or `columns` is not a multiple of 16.
pub(crate) fn multiply_pairs(
    _: Bf16Support,
    extent: Extent,
    left: Left<'_, u32>,
    right: Right<'_, u32>,
    (to, stride): (&mut [f32], usize),
    sum: Sum,
) {
    let Some(task) = BlockTask::new(extent, left, right, (to, stride), sum) else { return };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `Bf16Support` proves that the CPU has the instructions; the operands cover the elements of the formula.
    unsafe {
        x86::bf16_pairs(task);
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = task;
        unreachable!("only x86-64 has the instructions");
    }
}

/// A kind of elements, multiplied sixteen at a time.
///
/// # Safety
/// Every method may only be called where the instruction set of the implementation is available; pointers must be valid
/// for sixteen elements.
trait Elements {
    type Element: Copy;
    type Vector: Copy;
    type Sums: Lanes;
    /// If `true`, about 24 sums may be in flight.
    const WIDE: bool;

    unsafe fn splat(element: Self::Element) -> Self::Vector;
    unsafe fn load(from: *const Self::Element) -> Self::Vector;
    unsafe fn multiply_add(a: Self::Vector, b: Self::Vector, sums: Self::Sums) -> Self::Sums;
}

/// Plain floats.
struct Floats<L>(PhantomData<L>);

impl<L: Lanes> Elements for Floats<L> {
    type Element = f32;
    type Vector = L;
    type Sums = L;
    const WIDE: bool = L::WIDE;

    #[inline(always)]
    unsafe fn splat(element: f32) -> L {
        // SAFETY: in all methods of this implementation, guaranteed by the caller.
        unsafe { L::splat(element) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> L {
        // SAFETY: as above.
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn multiply_add(a: L, b: L, sums: L) -> L {
        // SAFETY: as above.
        unsafe { a.fma(b, sums) }
    }
}

#[derive(Clone, Copy)]
struct BlockTask<'a, E> {
    extent: Extent,
    left: Left<'a, E>,
    right: Right<'a, E>,
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

impl<'a, E: Copy> BlockTask<'a, E> {
    /// Creates a task whose operands and result cover their extents. `None` if the result is empty.
    fn new(
        extent: Extent,
        left: Left<'a, E>,
        right: Right<'a, E>,
        (to, stride): (&mut [f32], usize),
        sum: Sum,
    ) -> Option<Self> {
        let Extent { rows, inner, columns } = extent;
        if rows == 0 || columns == 0 {
            return None;
        }
        assert!(columns.is_multiple_of(LANES) && to.len() >= (rows - 1) * stride + columns, "block result");
        if inner > 0 {
            assert!(left.from.len() > (rows - 1) * left.row + (inner - 1) * left.step, "left block");
            assert!(right.from.len() >= (inner - 1) * right.stride + columns, "right block");
        }
        Some(Self { extent, left, right, to: to.as_mut_ptr(), stride, add: sum == Sum::Add })
    }

    /// Computes all tiles.
    ///
    /// # Safety
    /// The CPU must support the instruction set of `K`; the operands and the result must cover their extents.
    #[inline(always)]
    unsafe fn run<K: Elements<Element = E>>(self) {
        let mut column = 0;
        while column < self.extent.columns {
            let vectors = match (self.extent.columns - column) / LANES {
                4.. if K::WIDE => 4,
                2.. if K::WIDE => 2,
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
                        4 => tile!(self, K, 4, row, column, count: 1 2 3 4 5 6),
                        2 => tile!(self, K, 2, row, column, count: 1 2 3 4 5 6 7 8 9 10 11 12),
                        _ => tile!(self, K, 1, row, column, count: 1 2 3 4 5 6),
                    }
                }
            }
            column += vectors * LANES;
        }
    }

    /// Computes `R` rows and `C` vectors of columns from (row, column) on.
    #[allow(clippy::needless_range_loop, reason = "indices run over several arrays in step")]
    #[inline(always)]
    unsafe fn tile<K: Elements<Element = E>, const R: usize, const C: usize>(self, row: usize, column: usize) {
        // SAFETY: the requirements of `run`.
        unsafe {
            let to = self.to.add(row * self.stride + column);
            let mut sums = [[K::Sums::splat(0.0); C]; R];
            if self.add {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = K::Sums::load(to.add(r * self.stride + c * LANES));
                    }
                }
            }
            let mut left = self.left.from.as_ptr().add(row * self.left.row);
            let mut right = self.right.from.as_ptr().add(column);
            for _ in 0..self.extent.inner {
                let mut vectors = [K::load(right); C];
                for c in 1..C {
                    vectors[c] = K::load(right.add(c * LANES));
                }
                for r in 0..R {
                    let value = K::splat(*left.add(r * self.left.row));
                    for c in 0..C {
                        sums[r][c] = K::multiply_add(vectors[c], value, sums[r][c]);
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
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::{BlockTask, Elements, Floats};

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(task: BlockTask<'_, f32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<Floats<__m512>>() }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2(task: BlockTask<'_, f32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<Floats<[__m256; 2]>>() }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn bf16_pairs(task: BlockTask<'_, u32>) {
        // SAFETY: guaranteed by the caller.
        unsafe { task.run::<Bf16Vectors>() }
    }

    /// Pairs of bf16 values, multiplied by the CPU's instruction; needs `avx512f` and `avx512bf16`.
    struct Bf16Vectors;

    impl Elements for Bf16Vectors {
        type Element = u32;
        type Vector = __m512i;
        type Sums = __m512;
        const WIDE: bool = true;

        #[inline(always)]
        unsafe fn splat(pair: u32) -> __m512i {
            // SAFETY: in all methods of this implementation, guaranteed by the caller.
            unsafe { _mm512_set1_epi32(pair.cast_signed()) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u32) -> __m512i {
            // SAFETY: as above.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn multiply_add(a: __m512i, b: __m512i, sums: __m512) -> __m512 {
            // SAFETY: as above; both types are vectors of 512 bits.
            unsafe { _mm512_dpbf16_ps(sums, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_agree_with_plain_sums() {
        let Some(support) = Bf16Support::detect() else { return };
        for (rows, inner, columns) in [(1, 1, 16), (7, 3, 32), (13, 5, 48), (26, 32, 64), (5, 9, 112), (3, 0, 16)] {
            // Small integers are exact in bf16, and their sums are exact in any order.
            let value = |at: usize| (at * 37 % 17) as f32 - 8.0;
            let pairs = |len: usize| -> Vec<u32> {
                (0..len).map(|at| value(2 * at).to_bits() >> 16 | value(2 * at + 1).to_bits()).collect()
            };
            for (row, step) in [(inner + 3, 1), (1, rows + 2)] {
                let left = pairs(rows * row + inner * step);
                let right = pairs(inner * (columns + 5));
                for sum in [Sum::Set, Sum::Add] {
                    let mut to = vec![2.0; rows * (columns + 1)];
                    let left = Left { from: &left, row, step };
                    let right = Right { from: &right, stride: columns + 5 };
                    multiply_pairs(support, Extent { rows, inner, columns }, left, right, (&mut to, columns + 1), sum);
                    for (at, &found) in to.iter().enumerate() {
                        let r = at / (columns + 1);
                        let c = at % (columns + 1);
                        let product = |k: usize| -> f32 {
                            let [a, b] = [r * row + k * step, k * (columns + 5) + c];
                            value(2 * a) * value(2 * b) + value(2 * a + 1) * value(2 * b + 1)
                        };
                        let start = if sum == Sum::Add || c == columns { 2.0 } else { 0.0 };
                        let sum: f32 = if c == columns { 0.0 } else { (0..inner).map(product).sum() };
                        assert_eq!(found, start + sum, "{rows} {inner} {columns}");
                    }
                }
            }
        }
    }

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
