//! Dot products of a few queries with many columns, laid out so that they accumulate in registers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

/// Number of columns per panel.
pub(super) const WIDTH: usize = 16;

/// Number of queries multiplied at once.
pub(super) const HEIGHT: usize = 8;

/// Number of queries whose sums fill half of the 16 registers of AVX2, which leaves room for a column and the queries.
const HALF: usize = HEIGHT / 2;

/// Dot products of [`HEIGHT`] queries with a panel.
pub(super) type Tile = [[f32; WIDTH]; HEIGHT];

/// Multiplies some queries with the columns of a panel. Both are interleaved: the first numbers of all queries or
/// columns, then the second ones, and so on.
pub(super) fn tile(queries: &[f32], panel: &[f32]) -> Tile {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has the feature.
            return unsafe { tile_avx512(queries, panel) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has both features.
            return unsafe { tile_avx2(queries, panel) };
        }
    }
    tile_by(queries, panel, |x, y, sum| x * y + sum)
}

/// Written by hand, because the compiler keeps this many sums in memory.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn tile_avx512(queries: &[f32], panel: &[f32]) -> Tile {
    const { assert!(size_of::<__m512>() == size_of::<[f32; WIDTH]>()) };
    let mut sums = [_mm512_setzero_ps(); HEIGHT];
    let (columns, _) = panel.as_chunks::<WIDTH>();
    let (queries, _) = queries.as_chunks::<HEIGHT>();
    for (column, query) in columns.iter().zip(queries) {
        // SAFETY: a column is as long as a register.
        let column = unsafe { _mm512_loadu_ps(column.as_ptr()) };
        for (sum, &x) in sums.iter_mut().zip(query) {
            *sum = _mm512_fmadd_ps(_mm512_set1_ps(x), column, *sum);
        }
    }
    let mut tile = Tile::default();
    for (row, sum) in tile.iter_mut().zip(sums) {
        // SAFETY: a row is as long as a register.
        unsafe { _mm512_storeu_ps(row.as_mut_ptr(), sum) };
    }
    tile
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn tile_avx2(queries: &[f32], panel: &[f32]) -> Tile {
    tile_by(queries, panel, f32::mul_add)
}

#[inline(always)]
fn tile_by(queries: &[f32], panel: &[f32], multiply_add: impl Fn(f32, f32, f32) -> f32 + Copy) -> Tile {
    let mut tile = Tile::default();
    let (halves, _) = tile.as_chunks_mut::<HALF>();
    for (half, sums) in halves.iter_mut().enumerate() {
        *sums = half_tile(queries, half, panel, multiply_add);
    }
    tile
}

/// Products of the first or the second [`HALF`] of the queries.
#[inline(always)]
fn half_tile(
    queries: &[f32],
    half: usize,
    panel: &[f32],
    multiply_add: impl Fn(f32, f32, f32) -> f32,
) -> [[f32; WIDTH]; HALF] {
    let mut sums = [[0.0; WIDTH]; HALF];
    let (columns, _) = panel.as_chunks::<WIDTH>();
    let (queries, _) = queries.as_chunks::<HALF>();
    for (column, query) in columns.iter().zip(queries.iter().skip(half).step_by(2)) {
        for row in 0..HALF {
            for lane in 0..WIDTH {
                sums[row][lane] = multiply_add(query[row], column[lane], sums[row][lane]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_computes_the_dot_products() {
        let terms = 13;
        let number = |i: usize| ((i * 37) % 101) as f32 / 64.0 - 0.7;
        let queries: Vec<f32> = (0..terms * HEIGHT).map(number).collect();
        let panel: Vec<f32> = (7..7 + terms * WIDTH).map(number).collect();
        let plain = |x: f32, y: f32, sum: f32| x * y + sum;
        let mut tiles = vec![tile(&queries, &panel), tile_by(&queries, &panel, plain)];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has both features.
            tiles.push(unsafe { tile_avx2(&queries, &panel) });
        }
        for query in 0..HEIGHT {
            for column in 0..WIDTH {
                let product = |term| queries[term * HEIGHT + query] * panel[term * WIDTH + column];
                let expected: f32 = (0..terms).map(product).sum();
                for tile in &tiles {
                    assert!((tile[query][column] - expected).abs() < 1e-5, "query {query}, column {column}");
                }
            }
        }
    }
}
