//! Decoding with weights in `e4m3`.

use std::ops::Range;

use half::bf16;

use super::pair::{DecoderPair, LIMITS, MULTIPROCESSORS};
use super::{BF16, judge_within, save};
use crate::batch::LogitPositions;
use crate::cuda::decoder::runner::StepRunner;
use crate::cuda::driver::{DeviceMatrix, Driver, MatMulTarget};
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::kernel::{fp8, reference};
use crate::cuda::plan::{MatrixLayout, WeightFormat};
use crate::cuda::source::{WeightSource, normals};
use crate::cuda::toy::{self, distance, llama, qwen2};
use crate::gradient::Module;
use crate::weights::Weights;

const LAST: LogitPositions = LogitPositions::Last;

/// Bound on the relative error of a row of logits from rounding the inputs of all products of a layer to `e4m3`.
///
/// Values of a normal size are rounded by 2.6 % (root mean square of errors of up to half a unit, one of eight to sixteen
/// units, at mantissas with a uniform logarithm). The errors of a sum's terms are independent, and so are the terms: a
/// product is off by as much as its input. An attention block has two roundings in a row (2.6 % · √2 = 3.7 %); a
/// feed-forward block has two, the first of which reaches its activation by two factors (2.6 % · √3 = 4.5 %). With three
/// layers whose blocks outweigh what was in the stream before them, errors add up to (3.7² + 4.5²)^½ · √3 = 10 %.
const ROUNDED: f64 = 0.1;

/// Steps of a pair whose weights are exact in `e4m3`, with bounds for few rows and for many.
fn serve(mut pair: DecoderPair, weights: &Weights, few: Range<f64>, many: Range<f64>) {
    assert_eq!(pair.held(), pair.planned());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("all");
    save(weights, 3, &Module::ALL, &dir);
    let adapter = Some(pair.load_adapter(&dir));
    let rows = [pair.begin(1, None), pair.begin(2, adapter), pair.begin(3, adapter)];
    // 32 to 96 rows of a matrix at a time: no matrix fits.
    pair.dequantize_at_most(32 * 240);
    let batch = pair.batch(&[(rows[2], 10, LAST)]);
    judge_within(few.clone(), "fp8, ten rows with an adapter", &pair.step(&batch, &[]));
    let batch = pair.batch(&[(rows[2], 1, LAST)]);
    judge_within(few, "fp8, one row", &pair.step(&batch, &[]));
    let batch = pair.batch(&[(rows[0], 70, LAST)]);
    judge_within(many.clone(), "fp8, many rows", &pair.step(&batch, &[]));
    let batch = pair.batch(&[(rows[0], 1, LAST), (rows[1], 30, LAST)]);
    judge_within(many, "fp8, more than a block's rows, with an adapter", &pair.step(&batch, &[]));
    pair.untouched();
}

#[test]
fn weights_in_fp8_are_multiplied_as_they_are() {
    // The checkpoint's weights are exact in the format, so only activations are rounded.
    let weights = toy::open_fp8(&qwen2());
    let Some(emulator) = Emulator::new(weights.config().head_dim, 11) else { return };
    serve(DecoderPair::on(emulator.without_fp8(), &weights, WeightFormat::Fp8), &weights, 0.0..BF16, 0.0..BF16);
}

#[test]
fn many_rows_are_rounded_to_fp8_and_few_are_not() {
    let weights = toy::open_fp8(&qwen2());
    let Some(pair) = DecoderPair::of(WeightFormat::Fp8, &weights, 14) else { return };
    serve(pair, &weights, 0.0..BF16, BF16..ROUNDED);
}

#[test]
fn a_product_of_many_rows_is_that_of_the_rounded_numbers() {
    let weights = toy::open(&llama());
    let Some(pair) = DecoderPair::of(WeightFormat::Fp8, &weights, 15) else { return };
    let runner = pair.runner();
    let layer = runner.weight_layout.layers[1];
    let MatrixLayout::Fp8 { values, scales } = layer.down else { panic!("{layer:?}") };
    let [rows, inn, out] = [17, runner.config.ffn, runner.config.hidden];
    let x = normals(5, 3.0, rows * inn);
    let start: Vec<f32> = (0..rows * out).map(|i| i as f32 / 100.0).collect();
    let input = runner.work(runner.buffers.activated.part(0, rows * inn));
    let stream = runner.work(runner.buffers.stream.part(0, rows * out));
    runner.driver.upload(&x, input).unwrap();
    runner.driver.upload(&start, stream).unwrap();
    let target = MatMulTarget::Sum(DeviceMatrix::new(stream, out));
    runner.matmul(input, rows, (layer.down, out, inn), target).unwrap();
    let mut found = vec![0.0f32; rows * out];
    runner.driver.download(stream, &mut found).unwrap();

    let mut bytes = vec![0; out * inn];
    let mut row_scales = vec![0.0f32; out];
    runner.driver.download(runner.weight(values), &mut bytes).unwrap();
    runner.driver.download(runner.weight(scales), &mut row_scales).unwrap();
    let weight = |row: usize, at: usize| {
        f64::from(fp8::decode(bytes[row * inn + fp8::byte_of(at)])) * f64::from(row_scales[row])
    };
    let matrix: Vec<f64> = (0..out * inn).map(|i| weight(i / inn, i % inn)).collect();
    let product = |row: &[bf16]| {
        let wide: Vec<f64> = row.iter().map(|x| x.to_f64()).collect();
        reference::matmul(&reference::quantize(&wide).0, &matrix)
    };
    let sums = x.chunks_exact(inn).flat_map(product).zip(&start);
    let wanted: Vec<f32> = sums.map(|(sum, start)| (sum + f64::from(*start)) as f32).collect();
    let off = distance(&found, &wanted);
    assert!(off < 1e-6, "off by {off:e}");
}

#[test]
fn rounding_weights_to_fp8_moves_the_logits_a_little() {
    let weights = toy::open(&llama());
    let Some(mut pair) = DecoderPair::of(WeightFormat::Fp8, &weights, 12) else { return };
    let row = pair.begin(1, None);
    let batch = pair.batch(&[(row, 40, LogitPositions::All)]);
    let outcome = pair.step(&batch, &[]);
    let off: Vec<f64> = outcome.found.iter().zip(&outcome.wanted).map(|(a, b)| distance(a, b)).collect();
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    println!("fp8 against bf16: {mean:.1e} on average, up to {:.1e}", off.iter().copied().fold(0.0, f64::max));
    // Random weights, whose errors nothing compensates: two layers of products off by 2.6 % each, and by as much again
    // for their inputs.
    assert!((BF16 / 4.0..0.1).contains(&mean), "{mean}");
}

#[test]
fn weights_that_fp8_cannot_hold_are_refused_by_name() {
    let weights = toy::changed(&llama(), |name, inn, values| {
        if name == "model.layers.1.mlp.up_proj.weight" {
            values[2 * 3 * inn..][..2].copy_from_slice(&bf16::INFINITY.to_le_bytes());
        }
    });
    let load = |format| {
        let emulator = Emulator::new(weights.config().head_dim, 13)?;
        let source = WeightSource::Checkpoint(&weights);
        Some(StepRunner::load(emulator, source, format, LIMITS, MULTIPROCESSORS, 1).map(|_| ()))
    };
    let Some(refused) = load(WeightFormat::Fp8) else { return };
    let error = refused.unwrap_err().to_string();
    assert!(
        error.starts_with("tensor model.layers.1.mlp.up_proj.weight: row 3 has a value that is not finite"),
        "{error}"
    );
    load(WeightFormat::Bf16).unwrap().unwrap();
}
