//! Prefixes of many vectors, laid out so that the dot products of a few queries with sixteen prefixes accumulate in
//! registers.

use crate::dense::{VectorRows, dot};

/// Number of columns per panel.
pub(super) const WIDTH: usize = 16;

/// Number of queries multiplied at once.
pub(super) const HEIGHT: usize = 4;

/// Dot products of [`HEIGHT`] queries with a panel.
pub(super) type Tile = [[f32; WIDTH]; HEIGHT];

/// Split of vectors into a prefix, which is multiplied first, and a rest, of which only the length is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefixSplit(usize);

impl PrefixSplit {
    /// Splits off a third of the numbers, which leaves few pairs that need full products.
    pub(super) fn of(dims: usize) -> PrefixSplit {
        PrefixSplit((dims / 3).max(1))
    }

    /// Length of the prefix.
    pub(super) fn first(self) -> usize {
        self.0
    }

    /// Norm of the rest of a vector.
    pub(super) fn rest(self, row: &[f32]) -> f32 {
        let rest = row.get(self.0..).unwrap_or_default();
        dot(rest, rest).sqrt()
    }
}

/// Prefixes of columns in panels. The last panel is padded with zeros.
#[derive(Debug)]
pub(super) struct Panels {
    cut: PrefixSplit,
    /// For each panel the first numbers of all its columns, then the second ones, and so on.
    numbers: Vec<f32>,
    /// Norm of the rest of every column.
    pub(super) rests: Vec<[f32; WIDTH]>,
}

impl Panels {
    pub(super) fn of(vectors: &dyn VectorRows, columns: &[u32], cut: PrefixSplit) -> Panels {
        let panel = cut.first() * WIDTH;
        let count = columns.len().div_ceil(WIDTH);
        let mut numbers = vec![0.0; count * panel];
        let mut rests = vec![[0.0; WIDTH]; count];
        let filled = numbers.chunks_exact_mut(panel).zip(&mut rests).zip(columns.chunks(WIDTH));
        for ((numbers, rests), columns) in filled {
            for (lane, &column) in columns.iter().enumerate() {
                let row = vectors.row(column).unwrap_or_default();
                rests[lane] = cut.rest(row);
                // Transposed, so that one load brings the same number of sixteen columns. The panel ends with the
                // prefix.
                numbers[lane..].iter_mut().step_by(WIDTH).zip(row).for_each(|(place, &x)| *place = x);
            }
        }
        Panels { cut, numbers, rests }
    }

    /// Multiplies the prefixes of some queries, stored consecutively, with each panel, and calls `visit` with each
    /// tile.
    pub(super) fn tiles(&self, queries: &[f32], mut visit: impl FnMut(usize, &Tile)) {
        for (place, panel) in self.numbers.chunks_exact(self.cut.first() * WIDTH).enumerate() {
            visit(place, &tile(queries, panel));
        }
    }
}

fn tile(queries: &[f32], panel: &[f32]) -> Tile {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features.
        return unsafe { tile_avx2(queries, panel) };
    }
    tile_by(queries, panel, |x, y, sum| x * y + sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn tile_avx2(queries: &[f32], panel: &[f32]) -> Tile {
    tile_by(queries, panel, f32::mul_add)
}

#[inline(always)]
fn tile_by(queries: &[f32], panel: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32) -> Tile {
    // 64 sums fill 8 of the 16 registers of AVX2, which leaves room for a column and the queries.
    let mut sums = [[0.0; WIDTH]; HEIGHT];
    let (columns, _) = panel.as_chunks::<WIDTH>();
    let (queries, _) = queries.as_chunks::<HEIGHT>();
    for (column, query) in columns.iter().zip(queries) {
        for row in 0..HEIGHT {
            for lane in 0..WIDTH {
                sums[row][lane] = multiply_add(query[row], column[lane], sums[row][lane]);
            }
        }
    }
    sums
}
