//! Orthonormal directions for sketches: those along which a sample of vectors has most of its length, in decreasing
//! order, found by orthogonal iteration on the sample's second moments (Golub and Van Loan, "Matrix Computations",
//! section 8.2.4).
//!
//! Bounds are correct for any orthonormal directions. With these, few directions make the bounds tight.

use super::{SLACK, THRESHOLD};
use crate::dense::{VectorRows, dot};

/// Maximum number of vectors in the sample.
const SAMPLE: usize = 1024;

/// Maximum number of directions.
const MOST: usize = 128;

/// Number of multiplications with the second moments. More would sort the directions better, at little gain.
const ROUNDS: usize = 4;

/// Number of vectors of the sample that are compared pairwise to choose the number of directions.
const COMPARED: usize = 128;

/// Step between the numbers of directions to choose from.
const STEP: usize = 8;

/// Inverse of the largest share of dissimilar pairs that may need a full product. A full product costs about as much as
/// some fifty bounds.
const FEW: usize = 512;

/// Share of a row's length outside the earlier directions up to which the row is dropped: so little is mostly rounding.
const INDEPENDENT: f32 = 1e-4;

/// Number added to the square of the length outside the directions. It exceeds the rounding error of the squares that
/// this one is computed from.
const REST_SLACK: f32 = 1e-6;

/// Orthonormal directions in a space of `dims` dimensions.
#[derive(Debug, Clone)]
pub(super) struct SketchBasis {
    dims: usize,
    /// Directions, one after another.
    directions: Vec<f32>,
}

impl SketchBasis {
    /// Creates a basis without directions: every bound is the product of the lengths of two vectors.
    pub(super) fn none(dims: usize) -> SketchBasis {
        SketchBasis { dims, directions: Vec::new() }
    }

    /// Chooses directions for `count` vectors. `number` returns the number of the vector at a place.
    pub(super) fn of(vectors: &dyn VectorRows, count: usize, number: &dyn Fn(usize) -> u32) -> SketchBasis {
        let dims = vectors.dims();
        let places = (0..count).step_by(count.div_ceil(SAMPLE).max(1));
        let sample: Vec<&[f32]> = places.filter_map(|place| vectors.row(number(place))).collect();
        let moments = moments(&sample, dims);
        let mut directions = orthonormal(&start(dims.min(MOST), dims), dims);
        for _ in 0..ROUNDS {
            let moved = directions.chunks_exact(dims).flat_map(|direction| {
                let row = |row| dot(row, direction);
                moments.chunks_exact(dims).map(row).collect::<Vec<f32>>()
            });
            directions = orthonormal(&moved.collect::<Vec<f32>>(), dims);
        }
        let mut basis = SketchBasis { dims, directions };
        let every = sample.len().div_ceil(COMPARED).max(1);
        let compared: Vec<&[f32]> = sample.into_iter().step_by(every).collect();
        let enough = basis.enough(&compared);
        basis.directions.truncate(enough * dims);
        basis
    }

    /// Returns the smallest number of directions whose bounds exclude nearly all dissimilar pairs of these vectors.
    fn enough(&self, vectors: &[&[f32]]) -> usize {
        let count = self.directions.len() / self.dims.max(1);
        let steps = count.div_ceil(STEP);
        let parts: Vec<Vec<f32>> = vectors.iter().map(|vector| self.components(vector)).collect();
        let mut survivors = vec![0_usize; steps + 1];
        for (place, a) in parts.iter().enumerate() {
            for (other, b) in parts[..place].iter().enumerate() {
                if dot(vectors[place], vectors[other]) >= THRESHOLD - SLACK {
                    continue;
                }
                let mut product = 0.0;
                let mut rests = [dot(vectors[place], vectors[place]), dot(vectors[other], vectors[other])];
                for (step, survivors) in survivors.iter_mut().enumerate() {
                    *survivors += usize::from(product + rest(rests[0]) * rest(rests[1]) >= THRESHOLD - SLACK);
                    let range = (step * STEP).min(count)..((step + 1) * STEP).min(count);
                    for (x, y) in a[range.clone()].iter().zip(&b[range]) {
                        product += x * y;
                        rests[0] -= x * x;
                        rests[1] -= y * y;
                    }
                }
            }
        }
        let most = vectors.len() * vectors.len() / 2 / FEW;
        survivors.iter().position(|&survivors| survivors <= most).map_or(count, |step| (step * STEP).min(count))
    }

    fn components(&self, vector: &[f32]) -> Vec<f32> {
        self.directions.chunks_exact(self.dims.max(1)).map(|direction| dot(direction, vector)).collect()
    }

    /// Number of numbers in a sketch.
    pub(super) fn length(&self) -> usize {
        self.directions.len() / self.dims.max(1) + 1
    }

    /// Returns the sketch of a vector: its components along the directions, and the length of the rest. The product of
    /// two sketches is an upper bound of the product of their vectors (Cauchy and Schwarz), up to rounding.
    pub(super) fn sketch(&self, vector: &[f32]) -> Vec<f32> {
        let mut sketch = if vector.len() == self.dims { self.components(vector) } else { Vec::new() };
        sketch.resize(self.length() - 1, 0.0);
        sketch.push(rest(dot(vector, vector) - dot(&sketch, &sketch)));
        sketch
    }
}

/// Returns the square root of `square`, rounded up.
fn rest(square: f32) -> f32 {
    (square.max(0.0) + REST_SLACK).sqrt()
}

/// Computes the matrix of second moments of some vectors, not divided by their number.
fn moments(sample: &[&[f32]], dims: usize) -> Vec<f32> {
    let mut moments = vec![0.0; dims * dims];
    for vector in sample {
        for (row, &x) in moments.chunks_exact_mut(dims).zip(*vector) {
            row.iter_mut().zip(*vector).for_each(|(sum, y)| *sum += x * y);
        }
    }
    moments
}

/// Returns pseudorandom directions, the same for each call.
fn start(count: usize, dims: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count * dims).map(|_| next()).collect()
}

/// Returns orthonormal directions of the same span (Gram and Schmidt). Leaves rows out that depend on those before.
fn orthonormal(rows: &[f32], dims: usize) -> Vec<f32> {
    let mut directions: Vec<f32> = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(dims.max(1)) {
        let mut row = row.to_vec();
        let before = dot(&row, &row).sqrt();
        // Twice, since rounding leaves a little along the earlier directions, which may be much of a short rest.
        for _ in 0..2 {
            for direction in directions.chunks_exact(dims) {
                let along = dot(&row, direction);
                row.iter_mut().zip(direction).for_each(|(x, y)| *x -= along * y);
            }
        }
        let length = dot(&row, &row).sqrt();
        if length > INDEPENDENT * before {
            directions.extend(row.iter().map(|x| x / length));
        }
    }
    directions
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Rows, clustered, scattered};
    use super::*;

    fn basis(rows: &Rows) -> SketchBasis {
        SketchBasis::of(rows, rows.0.len(), &|place| place as u32)
    }

    #[test]
    fn products_of_sketches_bound_those_of_vectors() {
        for rows in [scattered(200, 48, 1), clustered(300, 96, 2), scattered(5, 7, 3), scattered(1, 200, 4)] {
            for basis in [basis(&rows), SketchBasis::none(rows.dims())] {
                let sketches: Vec<Vec<f32>> = rows.0.iter().map(|row| basis.sketch(row)).collect();
                assert!(sketches.iter().all(|sketch| sketch.len() == basis.length()));
                for (a, x) in rows.0.iter().zip(&sketches) {
                    for (b, y) in rows.0.iter().zip(&sketches) {
                        assert!(dot(a, b) <= dot(x, y) + SLACK, "{} above {}", dot(a, b), dot(x, y));
                    }
                }
            }
        }
    }

    #[test]
    fn directions_are_orthonormal_even_of_few_or_equal_vectors() {
        let equal = Rows(vec![scattered(1, 40, 5).0[0].clone(); 50]);
        for rows in [equal, scattered(3, 40, 6), clustered(400, 40, 7), Rows(vec![vec![0.0; 9]; 4])] {
            let SketchBasis { dims, directions } = basis(&rows);
            for (place, a) in directions.chunks_exact(dims).enumerate() {
                for (other, b) in directions.chunks_exact(dims).enumerate() {
                    let expected = if place == other { 1.0 } else { 0.0 };
                    assert!((dot(a, b) - expected).abs() < 1e-5, "{place} and {other}: {}", dot(a, b));
                }
            }
        }
    }

    #[test]
    fn few_directions_suffice_where_vectors_have_few() {
        let scattered = basis(&scattered(1000, 64, 8)).length();
        assert!((17..=49).contains(&scattered), "{scattered} numbers per sketch of scattered vectors");
        // All vectors lie in a subspace of eight dimensions.
        let flat = super::super::tests::scattered(1000, 8, 9).0.into_iter().map(|mut row| {
            row.resize(64, 0.0);
            row
        });
        assert_eq!(basis(&Rows(flat.collect())).length(), 9);
    }
}
