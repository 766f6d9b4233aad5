//! Packing and multiplication of every storage form on every instruction set, against candle's dequantization and
//! sums in f64.
#![allow(clippy::unwrap_used)]

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::backward_matmul;
use super::directed::{DirectedMatrix, Direction};
use super::isa::Isa;
use super::matmul::product;
use super::matmul_output::Finish;
use super::{GgmlKind, Packed, Team};

const KINDS: [GgmlKind; 13] = [
    GgmlKind::F32,
    GgmlKind::F16,
    GgmlKind::BF16,
    GgmlKind::Q4_0,
    GgmlKind::Q4_1,
    GgmlKind::Q5_0,
    GgmlKind::Q5_1,
    GgmlKind::Q8_0,
    GgmlKind::Q2K,
    GgmlKind::Q3K,
    GgmlKind::Q4K,
    GgmlKind::Q5K,
    GgmlKind::Q6K,
];

/// The same kind in candle, for those that candle has.
fn candle(kind: GgmlKind) -> GgmlDType {
    match kind {
        GgmlKind::F32 => GgmlDType::F32,
        GgmlKind::F16 => GgmlDType::F16,
        GgmlKind::BF16 => GgmlDType::BF16,
        GgmlKind::Q4_0 => GgmlDType::Q4_0,
        GgmlKind::Q4_1 => GgmlDType::Q4_1,
        GgmlKind::Q5_0 => GgmlDType::Q5_0,
        GgmlKind::Q5_1 => GgmlDType::Q5_1,
        GgmlKind::Q8_0 => GgmlDType::Q8_0,
        GgmlKind::Q2K => GgmlDType::Q2K,
        GgmlKind::Q3K => GgmlDType::Q3K,
        GgmlKind::Q4K => GgmlDType::Q4K,
        GgmlKind::Q5K => GgmlDType::Q5K,
        GgmlKind::Q6K => GgmlDType::Q6K,
        GgmlKind::Iq4Nl | GgmlKind::Iq4Xs => unreachable!("candle does not have it"),
    }
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

/// Weights quantized to `kind` by candle: packed, and dequantized.
fn weights(kind: GgmlKind, seed: u64, out: usize, inn: usize) -> (Packed, Vec<f32>) {
    let values = noise(seed, out * inn);
    let (bytes, values) = match kind {
        GgmlKind::F32 => (bytemuck::cast_slice(&values).to_vec(), values),
        GgmlKind::F16 => {
            let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|h| h.to_f32()).collect())
        }
        GgmlKind::BF16 => {
            let halves: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|h| h.to_f32()).collect())
        }
        kind => {
            let tensor = Tensor::from_vec(values, (out, inn), &Device::Cpu).unwrap();
            let quantized = QTensor::quantize(&tensor, candle(kind)).unwrap();
            let values = quantized.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            (quantized.data().unwrap().to_vec(), values)
        }
    };
    (Packed::from_ggml(kind, &bytes, out, inn).unwrap(), values)
}

/// x · Wᵀ in f64, and the sum of absolute terms, which bounds the rounding of any order of summation.
fn reference(x: &[f32], w: &[f32], m: usize, out: usize, inn: usize) -> Vec<(f64, f64)> {
    (0..m * out)
        .map(|at| {
            let row = &x[at / out * inn..][..inn];
            let column = &w[at % out * inn..][..inn];
            let terms = row.iter().zip(column).map(|(&a, &b)| f64::from(a) * f64::from(b));
            terms.fold((0.0, 0.0), |(sum, bound), term| (sum + term, bound + term.abs()))
        })
        .collect()
}

fn check(isa: Isa, kind: GgmlKind, m: usize, out: usize, inn: usize, threads: usize) {
    let (packed, w) = weights(kind, 7, out, inn);
    let x = noise(8, m * inn);
    let mut y = noise(9, m * out);
    let before = y.clone();
    let team = Team::new(threads);
    product(isa, &team, &x, m, &packed, &mut y, Finish::Set);
    let mut sums = before.clone();
    product(isa, &team, &x, m, &packed, &mut sums, Finish::Add);
    let mut mapped = before.clone();
    let map =
        |first: usize, piece: &mut [f32]| piece.iter_mut().enumerate().for_each(|(i, y)| *y += (first + i) as f32);
    product(isa, &team, &x, m, &packed, &mut mapped, Finish::Map(&map));
    for (at, (expected, bound)) in reference(&x, &w, m, out, inn).into_iter().enumerate() {
        let error = (f64::from(y[at]) - expected).abs();
        assert!(error <= bound * 1e-6 + 1e-9, "{isa:?} {kind:?} ({m}, {out}, {inn}) at {at}: {} for {expected}", y[at]);
        assert_eq!(sums[at], before[at] + y[at], "{isa:?} {kind:?} added at {at}");
        assert_eq!(mapped[at], y[at] + (at % out) as f32, "{isa:?} {kind:?} mapped at {at}");
    }
}

#[test]
fn every_form_on_every_instruction_set() {
    for isa in Isa::available() {
        for kind in KINDS {
            for (m, out, inn) in [(1, 33, 32usize), (3, 31, 64), (8, 96, 224), (13, 70, 416), (40, 5, 192)] {
                let inn = inn.next_multiple_of(kind.block_size());
                check(isa, kind, m, out, inn, 2);
            }
        }
    }
}

#[test]
fn every_number_of_rows() {
    for isa in Isa::available() {
        for m in (1..=40).chain([95, 96, 97, 200]) {
            check(isa, GgmlKind::Q4_1, m, 35, 64, 1 + m % 3);
            check(isa, GgmlKind::F32, m, 35, 7 + m, 1 + m % 3);
        }
    }
}

#[test]
fn unpacking_gives_exactly_the_dequantized_values() {
    let out = 50;
    let inn = 256;
    let team = Team::new(1);
    let mut identity = vec![0.0; inn * inn];
    identity.iter_mut().step_by(inn + 1).for_each(|one| *one = 1.0);
    for kind in KINDS {
        let (packed, w) = weights(kind, 3, out, inn);
        let mut row = vec![0.0; inn];
        for (index, expected) in w.chunks_exact(inn).enumerate() {
            packed.row_f32(index, &mut row);
            assert_eq!(row, expected, "{kind:?} row {index}");
        }
        for isa in Isa::available() {
            let mut columns = vec![f32::NAN; inn * out];
            product(isa, &team, &identity, inn, &packed, &mut columns, Finish::Set);
            let equal = (0..inn * out).all(|at| columns[at] == w[at % out * inn + at / out]);
            assert!(equal, "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    let out = 70;
    let inn = 768;
    let m = 37;
    let x = noise(1, m * inn);
    for isa in Isa::available() {
        for kind in KINDS {
            let (packed, _) = weights(kind, 2, out, inn);
            let mut together = vec![0.0; m * out];
            product(isa, &Team::new(3), &x, m, &packed, &mut together, Finish::Set);
            for (x, y) in x.chunks_exact(inn).zip(together.chunks_exact(out)) {
                let mut alone = vec![0.0; out];
                product(isa, &Team::new(1), x, 1, &packed, &mut alone, Finish::Set);
                assert_eq!(alone, y, "{isa:?} {kind:?}");
            }
        }
    }
}

#[test]
fn compact_forms_stay_compact_and_wrong_input_is_named() {
    let (packed, _) = weights(GgmlKind::Q4_1, 1, 64, 64);
    assert_eq!(packed.bytes(), 64 * 64 / 32 * 20);
    let wrong = Packed::from_ggml(GgmlKind::Q4_1, &[0; 39], 1, 64).unwrap_err();
    assert_eq!(wrong.to_string(), "Q4_1 weights of shape (1, 64) need 40 bytes, not 39");
    assert!(Packed::from_ggml(GgmlKind::Q8_0, &[0; 34], 1, 33).unwrap_err().to_string().contains("whole blocks"));
    assert!(Packed::from_ggml(GgmlKind::Q4K, &[0; 144], 1, 128).unwrap_err().to_string().contains("whole blocks"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape_agrees(
        kind in prop::sample::select(KINDS.to_vec()),
        isa in prop::sample::select(Isa::available()),
        m in 1usize..41, out in 1usize..80, blocks in 1usize..9, odd in 0usize..32, threads in 1usize..4,
    ) {
        let whole = (blocks * 32).next_multiple_of(kind.block_size());
        let inn = if kind.block_size() == 1 { blocks * 32 + odd } else { whole };
        check(isa, kind, m, out, inn, threads);
    }
}

#[test]
fn backward_products_are_those_with_the_transposed_values() {
    let out = 45;
    let m = 13;
    for kind in KINDS {
        // Rows that are not whole blocks, where the form allows them.
        let inn = if kind.block_size() == 1 { 75 } else { 256 };
        let (packed, values) = weights(kind, 5, out, inn);
        let transposed = Packed::from_f32_transposed(&values, inn, out);
        let dy = noise(6, m * out);
        let team = Team::new(2);
        for isa in Isa::available() {
            let [mut expected, mut found] = [0, 1].map(|_| vec![f32::NAN; m * inn]);
            product(isa, &team, &dy, m, &transposed, &mut expected, Finish::Set);
            let matrix = DirectedMatrix::new(&packed, Direction::Backward);
            backward_matmul::product(isa, &team, &dy, m, matrix, &mut found, Finish::Set);
            assert!(found == expected, "{isa:?} {kind:?}");
        }
    }
}
