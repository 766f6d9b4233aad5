//! Packing, unpacking and integer products of all quantized types, against reference dequantization and sums in f64.
#![allow(clippy::unwrap_used)]

use half::f16;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::isa::IntegerIsa;
use super::reference::dequantize;
use crate::kernel::backward_matmul;
use crate::kernel::bf16_dot::DotMethod;
use crate::kernel::bf16_matrix::{self, Bf16Matrix, PairWeights};
use crate::kernel::directed::{DirectedMatrix, Direction};
use crate::kernel::isa::Isa;
use crate::kernel::matmul;
use crate::kernel::matmul_output::Finish;
use crate::kernel::{GgmlKind, Packed, Team};

fn quantized() -> Vec<GgmlKind> {
    GgmlKind::ALL.into_iter().filter(|kind| kind.block_size() > 1).collect()
}

/// Offsets of the half-precision numbers in a block.
fn half_offsets(kind: GgmlKind) -> &'static [usize] {
    match kind {
        GgmlKind::Q4_1 | GgmlKind::Q5_1 | GgmlKind::Q4K | GgmlKind::Q5K => &[0, 2],
        GgmlKind::Q2K => &[80, 82],
        GgmlKind::Q3K => &[108],
        GgmlKind::Q6K => &[208],
        _ => &[0],
    }
}

/// Random bits with sensible scales, and the values that they stand for.
fn weights(kind: GgmlKind, seed: u64, out: usize, inn: usize) -> (Packed, Vec<f32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = vec![0; out * inn / kind.block_size() * kind.type_size()];
    rng.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(kind.type_size()) {
        for &at in half_offsets(kind) {
            let scale = f16::from_f32(rng.random_range(-0.01..0.01));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    let values = bytes.chunks_exact(kind.type_size()).flat_map(|block| dequantize(kind, block)).collect();
    (Packed::from_ggml(kind, &bytes, out, inn).unwrap(), values)
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

#[test]
fn unpacking_gives_exactly_the_reference_values() {
    let out = 45;
    let inn = 512;
    for kind in quantized() {
        let (packed, values) = weights(kind, 1, out, inn);
        let mut row = vec![0.0; inn];
        for (index, expected) in values.chunks_exact(inn).enumerate() {
            packed.row_f32(index, &mut row);
            assert_eq!(row, expected, "{kind:?} row {index}");
        }
        let mut identity = vec![0.0; inn * inn];
        identity.iter_mut().step_by(inn + 1).for_each(|one| *one = 1.0);
        for isa in Isa::available() {
            let mut columns = vec![f32::NAN; inn * out];
            matmul::product(isa, &Team::new(1), &identity, inn, &packed, &mut columns, Finish::Set);
            let equal = (0..inn * out).all(|at| columns[at] == values[at % out * inn + at / out]);
            assert!(equal, "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn integer_products_agree_with_sums_of_the_reference_values() {
    for kind in quantized() {
        for (m, out, inn) in [(1, 33, 256), (3, 31, 512), (8, 64, 768), (29, 5, 2560), (101, 40, 256)] {
            let (packed, w) = weights(kind, 2, out, inn);
            let x = noise(3, m * inn);
            for isa in IntegerIsa::available() {
                let mut y = noise(4, m * out);
                let before = y.clone();
                super::product(isa, &Team::new(2), &x, m, &packed, &mut y, Finish::Set);
                let mut sums = before.clone();
                super::product(isa, &Team::new(2), &x, m, &packed, &mut sums, Finish::Add);
                for (at, &found) in y.iter().enumerate() {
                    let terms = x[at / out * inn..][..inn].iter().zip(&w[at % out * inn..][..inn]);
                    let (sum, bound) = terms.fold((0.0f64, 0.0f64), |(sum, bound), (&x, &w)| {
                        (sum + f64::from(x) * f64::from(w), bound + f64::from(w).abs())
                    });
                    let error = (f64::from(found) - sum).abs();
                    assert!(error <= bound * 2e-5, "{isa:?} {kind:?} ({m}, {out}, {inn}) {at}: {found} for {sum}");
                    assert_eq!(sums[at], before[at] + found, "{isa:?} {kind:?} added at {at}");
                }
            }
        }
    }
}

#[test]
fn the_largest_sums_fit() {
    let out = 33;
    let inn = 512;
    for kind in quantized() {
        // Among these patterns are the largest quants of either sign, with the largest factors of either sign.
        for pattern in [0x00, 0x7f, 0x80, 0xff] {
            let mut block = vec![pattern; kind.type_size()];
            for &at in half_offsets(kind) {
                block[at..at + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
            }
            let w: Vec<f64> = dequantize(kind, &block).into_iter().map(f64::from).collect();
            let packed = Packed::from_ggml(kind, &block.repeat(out * inn / kind.block_size()), out, inn).unwrap();
            let repeated = (inn / kind.block_size()) as f64;
            let sum: f64 = w.iter().sum::<f64>() * repeated;
            let bound = w.iter().map(|w| w.abs()).sum::<f64>() * repeated * 1e-5;
            for (m, x) in [(1, 1.0f32), (7, -1.0), (13, 1.0), (13, -1.0)] {
                for isa in IntegerIsa::available() {
                    let mut y = vec![f32::NAN; m * out];
                    super::product(isa, &Team::new(1), &vec![x; m * inn], m, &packed, &mut y, Finish::Set);
                    let fits = y.iter().all(|&y| (f64::from(y) - sum * f64::from(x)).abs() <= bound);
                    assert!(fits, "{isa:?} {kind:?}, {m} rows of {x}, pattern {pattern:#x}: {} for {sum}", y[0]);
                }
            }
        }
    }
}

#[test]
fn a_row_of_integer_products_does_not_depend_on_its_batch() {
    let out = 70;
    let inn = 768;
    let m = 37;
    let x = noise(5, m * inn);
    for isa in IntegerIsa::available() {
        for kind in quantized() {
            let (packed, _) = weights(kind, 6, out, inn);
            let product = |x: &[f32], m: usize, threads: usize| {
                let mut y = vec![f32::NAN; m * out];
                super::product(isa, &Team::new(threads), x, m, &packed, &mut y, Finish::Set);
                y
            };
            let together = product(&x, m, 3);
            for count in 1..=13 {
                let first = product(&x[..count * inn], count, 1);
                assert_eq!(first, together[..count * out], "{isa:?} {kind:?}, {count} rows");
            }
            let last = product(&x[(m - 1) * inn..], 1, 1);
            assert_eq!(last, together[(m - 1) * out..], "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn products_byte_by_byte_are_the_same() {
    let out = 70;
    let inn = 768;
    let x = noise(9, 9 * inn);
    for [quads, pairs] in IntegerIsa::with_quads() {
        for kind in quantized() {
            let (packed, _) = weights(kind, 10, out, inn);
            for m in [1, 2, 9] {
                let product = |isa: IntegerIsa| {
                    let mut y = vec![f32::NAN; m * out];
                    super::product(isa, &Team::new(1), &x[..m * inn], m, &packed, &mut y, Finish::Set);
                    y
                };
                assert_eq!(product(quads), product(pairs), "{quads:?} and {pairs:?}, {kind:?}, {m} rows");
            }
        }
    }
}

#[test]
fn products_in_both_directions_are_those_with_stored_copies() {
    for kind in quantized() {
        for (m, out, inn) in [(1, 33, 256), (13, 70, 512), (200, 45, 256)] {
            let (packed, values) = weights(kind, 9, out, inn);
            let transposed = Packed::from_f32_transposed(&values, inn, out);
            let sides = [(Direction::Forward, &packed), (Direction::Backward, &transposed)];
            for (direction, copy) in sides {
                let x = noise(10, m * copy.inn());
                let before = noise(11, m * copy.out());
                let matrix = DirectedMatrix::new(&packed, direction);
                for finish in [Finish::Set, Finish::Add] {
                    for isa in Isa::available() {
                        let [mut expected, mut found] = [before.clone(), before.clone()];
                        matmul::product(isa, &Team::new(1), &x, m, copy, &mut expected, finish);
                        backward_matmul::product(isa, &Team::new(2), &x, m, matrix, &mut found, finish);
                        assert!(found == expected, "{isa:?} {kind:?} ({m}, {out}, {inn}) {direction:?}");
                    }
                    let rounded = Bf16Matrix::of(copy);
                    for way in DotMethod::available() {
                        let [mut expected, mut found] = [before.clone(), before.clone()];
                        let weights = PairWeights::Rounded(&rounded);
                        bf16_matrix::product(way, &Team::new(1), &x, m, weights, &mut expected, finish);
                        let weights = PairWeights::Packed(matrix);
                        bf16_matrix::product(way, &Team::new(2), &x, m, weights, &mut found, finish);
                        assert!(found == expected, "{way:?} {kind:?} ({m}, {out}, {inn}) {direction:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn packed_weights_are_hardly_larger_than_the_file() {
    for kind in quantized() {
        let (packed, _) = weights(kind, 8, 64, 512);
        let file = 64 * 512 / kind.block_size() * kind.type_size();
        assert!(packed.bytes() <= file + file / 25, "{kind:?}: {} for {file}", packed.bytes());
    }
}
