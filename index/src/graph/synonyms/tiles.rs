//! Dot products of a few queries with many columns, laid out so that they accumulate in registers.

/// Number of columns per panel.
pub(super) const WIDTH: usize = 16;

/// Number of queries multiplied at once.
pub(super) const HEIGHT: usize = 4;

/// Dot products of [`HEIGHT`] queries with a panel.
pub(super) type Tile = [[f32; WIDTH]; HEIGHT];

/// Multiplies some queries with the columns of a panel. Both are interleaved: the first numbers of all queries or
/// columns, then the second ones, and so on.
pub(super) fn tile(queries: &[f32], panel: &[f32]) -> Tile {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has both features.
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
