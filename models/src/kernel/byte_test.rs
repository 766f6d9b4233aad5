//! Linear maps in bytes against sums in f64 of the values that the bytes stand for.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::bytes::{ByteFinish, ByteLinear};
use super::{ByteSupport, Packed, Team};

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

/// Values of a row rounded to the 256 steps between its smallest and its largest value.
fn rounded(row: &[f32]) -> Vec<f64> {
    let least = row.iter().copied().fold(f32::INFINITY, f32::min);
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let steps = |x: f32| ((x - least) * (255.0 / (most - least))).round_ties_even();
    let step = f64::from(most - least) / 255.0;
    row.iter()
        .map(|&x| if most > least { f64::from(least) + step * f64::from(steps(x)) } else { f64::from(x) })
        .collect()
}

/// Weights of an output rounded to 255 values.
fn rounded_weights(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    row.iter().map(|w| f64::from((w * (127.0 / largest)).round()) * f64::from(largest) / 127.0).collect()
}

fn check(support: ByteSupport, m: usize, out: usize, inn: usize, threads: usize) {
    let w = noise(1, out * inn);
    let x = noise(2, m * inn);
    let bias = noise(3, out);
    let linear = ByteLinear::of(&Packed::from_f32(&w, out, inn), &bias);
    let team = Team::new(threads);
    let applied = |before: f32, finish| {
        let mut y = vec![before; m * out];
        linear.apply(support, &team, &x, m, &mut y, finish);
        y
    };
    let y = applied(f32::NAN, ByteFinish::Set);
    let weights: Vec<_> = w.chunks_exact(inn).map(rounded_weights).collect();
    for (row, (x, y)) in x.chunks_exact(inn).zip(y.chunks_exact(out)).enumerate() {
        let x = rounded(x);
        for ((weights, bias), &found) in weights.iter().zip(&bias).zip(y) {
            let sum: f64 = x.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>() + f64::from(*bias);
            let error = (f64::from(found) - sum).abs();
            assert!(error <= 1e-5 * inn as f64, "{support:?} ({m}, {out}, {inn}) row {row}: {found} for {sum}");
        }
    }
    let plain = |values: &[f32], map: fn(f32) -> f32| values.iter().copied().map(map).collect::<Vec<_>>();
    assert_eq!(applied(1.0, ByteFinish::Add), plain(&y, |y| 1.0 + y));
    let halve = ByteFinish::Map(|piece| piece.iter_mut().for_each(|y| *y *= 0.5));
    assert_eq!(applied(f32::NAN, halve), plain(&y, |y| 0.5 * y));
    // A row does not depend on its batch.
    let mut alone = vec![0.0; out];
    linear.apply(support, &team, &x[..inn], 1, &mut alone, ByteFinish::Set);
    assert_eq!(alone, y[..out]);
}

#[test]
fn odd_shapes_agree_with_the_rounded_values() {
    for support in ByteSupport::available() {
        for (m, out, inn) in [(1, 1, 1), (2, 33, 31), (5, 64, 2), (13, 70, 1537), (100, 5, 777), (97, 32, 385)] {
            check(support, m, out, inn, 1 + m % 3);
        }
        for m in (1..=26).chain([95, 96, 97, 200]) {
            check(support, m, 35, 7 + m, 1 + m % 3);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_stay_so_and_equal_ones_are_exact() {
    ByteSupport::available().for_each(check_special_numbers);
}

fn check_special_numbers(support: ByteSupport) {
    let team = Team::new(1);
    let apply = |w: &[f32], x: &[f32]| {
        let linear = ByteLinear::of(&Packed::from_f32(w, 2, 3), &[0.0; 2]);
        let mut y = vec![0.0; 2];
        linear.apply(support, &team, x, 1, &mut y, ByteFinish::Set);
        y
    };
    let w = [1.0, 0.5, -1.0, 0.0, 0.0, 0.0];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(apply(&w, &[0.0, bad, 1.0]).iter().all(|y| !y.is_finite()), "activation {bad}");
        assert!(!apply(&[1.0, bad, 0.0, 1.0, 1.0, 1.0], &[1.0, 2.0, 3.0])[0].is_finite(), "weight {bad}");
    }
    assert_eq!(apply(&[1.0, 1.0, -1.0, 0.0, 0.0, 0.0], &[3.0, 3.0, 3.0]), [3.0, 0.0]);
}

#[test]
fn the_largest_sums_fit() {
    ByteSupport::available().for_each(check_largest_sums);
}

fn check_largest_sums(support: ByteSupport) {
    let team = Team::new(1);
    for inn in [4099, ByteLinear::MOST_INPUTS] {
        let w: Vec<f32> = (0..2 * inn).map(|at| if at < inn { 1.0 } else { -1.0 }).collect();
        let linear = ByteLinear::of(&Packed::from_f32(&w, 2, inn), &[0.0; 2]);
        // All bytes but the first are 255, all weights 127 or -127.
        let mut x = vec![1.0; inn];
        x[0] = 0.0;
        let mut y = vec![0.0; 2];
        linear.apply(support, &team, &x, 1, &mut y, ByteFinish::Set);
        let expected = (inn - 1) as f32;
        assert!((y[0] / expected - 1.0).abs() < 1e-5 && (y[1] / expected + 1.0).abs() < 1e-5, "{inn} inputs: {y:?}");
    }
}

#[test]
#[should_panic(expected = "inputs are too many")]
fn more_inputs_are_refused() {
    let inn = ByteLinear::MOST_INPUTS + 1;
    ByteLinear::of(&Packed::from_f32(&vec![1.0; inn], 1, inn), &[0.0]);
}
