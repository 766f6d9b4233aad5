//! Matrix multiplication in bf16, by each method, against sums in f64 of the rounded values.

use half::bf16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::bf16_dot::DotMethod;
use super::bf16_matrix::{self, Bf16Matrix, PairWeights};
use super::directed::{DirectedMatrix, Direction};
use super::matmul_output::Finish;
use super::{Packed, Team};

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

fn near(value: f32) -> f64 {
    bf16::from_f32(value).to_f64()
}

/// Checks both orientations of the weights (out, in): `dot(row, output)` of the rounded values, with a bound for
/// its rounding. A sum of `n` terms in any order is off by at most `n · 2⁻²⁴ · Σ|term|` to first order (Higham
/// 2002, §4.2); the instruction may round a product before it adds it, which at most doubles the error.
fn check(way: DotMethod, m: usize, out: usize, inn: usize, threads: usize) {
    let w = noise(1, out * inn);
    let x = noise(2, m * inn);
    let before = noise(3, m * out);
    let packed = Packed::from_f32(&w, out, inn);
    let turned = Packed::from_f32_transposed(&w, inn, out);
    let team = Team::new(threads);
    let matrix = Bf16Matrix::of(&packed);
    assert_eq!((matrix.out(), matrix.inn()), (out, inn));
    assert_eq!(matrix.bytes(), out.next_multiple_of(32) * inn.next_multiple_of(2) * 2);
    let forward = DirectedMatrix::new(&packed, Direction::Forward);
    let backward = DirectedMatrix::new(&turned, Direction::Backward);
    for weights in [PairWeights::Rounded(&matrix), PairWeights::Packed(forward), PairWeights::Packed(backward)] {
        let mut y = vec![f32::NAN; m * out];
        let mut sums = before.clone();
        bf16_matrix::product(way, &team, &x, m, weights, &mut y, Finish::Set);
        bf16_matrix::product(way, &team, &x, m, weights, &mut sums, Finish::Add);
        for (at, &found) in y.iter().enumerate() {
            let row = &x[at / out * inn..][..inn];
            let column = &w[at % out * inn..][..inn];
            let terms = row.iter().zip(column).map(|(&x, &w)| near(x) * near(w));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let bound = 2.0 * inn as f64 * f64::from(f32::EPSILON) / 2.0 * size;
            let error = (f64::from(found) - sum).abs();
            assert!(error <= bound, "{way:?} ({m}, {out}, {inn}) at {at}: {found} for {sum}");
            assert_eq!(sums[at], before[at] + found, "{way:?} added at {at}");
        }
    }
}

#[test]
fn odd_shapes_agree_with_the_rounded_values() {
    for way in DotMethod::available() {
        for (m, out, inn) in [(1, 1, 1), (2, 33, 31), (5, 64, 2), (13, 70, 417), (100, 5, 777), (97, 32, 385)] {
            check(way, m, out, inn, 1 + m % 3);
        }
        for m in (1..=40).chain([95, 96, 97, 100, 200]) {
            check(way, m, 35, 7 + m, 1 + m % 3);
        }
    }
}

#[test]
fn rounding_is_to_the_nearest_and_to_even_between() {
    let half = 2.0f32.powi(-8);
    let values = [1.0 + half, 1.0 + 3.0 * half, 1.0 + half * 1.01, -1.0 - half, 0.0, 3.0e38, 1.0e-30];
    let team = Team::new(1);
    let one = Bf16Matrix::of(&Packed::from_f32(&[1.0], 1, 1));
    for way in DotMethod::available() {
        let mut y = [0.0; 7];
        bf16_matrix::product(way, &team, &values, values.len(), PairWeights::Rounded(&one), &mut y, Finish::Set);
        let expected = values.map(|value| bf16::from_f32(value).to_f32());
        assert_eq!(y, expected, "{way:?}");
        assert_eq!(y[..4], [1.0, 1.0 + 4.0 * half, 1.0 + 2.0 * half, -1.0]);
    }
}

#[test]
fn a_row_depends_neither_on_its_batch_nor_on_threads() {
    let out = 70;
    let inn = 577;
    let m = 203;
    let x = noise(1, m * inn);
    let matrix = Bf16Matrix::of(&Packed::from_f32(&noise(2, out * inn), out, inn));
    for way in DotMethod::available() {
        let run = |team: &Team, x: &[f32]| {
            let m = x.len() / inn;
            let mut y = vec![0.0; m * out];
            bf16_matrix::product(way, team, x, m, PairWeights::Rounded(&matrix), &mut y, Finish::Set);
            y
        };
        let team = Team::new(1);
        let together = run(&team, &x);
        assert!((2..5).all(|threads| run(&Team::new(threads), &x) == together), "{way:?}: the number of threads shows");
        // Runs in the memory that the batch left behind.
        for (x, y) in x.chunks_exact(inn).zip(together.chunks_exact(out)) {
            assert_eq!(run(&team, x), y, "{way:?}");
        }
    }
}

#[test]
fn nothing_is_a_product_too() {
    let matrix = Bf16Matrix::of(&Packed::from_f32(&[], 3, 0));
    let mut y = [1.0; 6];
    matrix.matmul(&Team::new(2), &[], 2, &mut y);
    assert_eq!(y, [0.0; 6]);
    Bf16Matrix::of(&Packed::from_f32(&noise(1, 8), 4, 2)).matmul(&Team::new(2), &[], 0, &mut []);
}
