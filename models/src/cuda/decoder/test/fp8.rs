//! Decoding with weights in `e4m3`.

use half::bf16;

use super::pair::{DecoderPair, LIMITS, MULTIPROCESSORS};
use super::{BF16, judge, save};
use crate::batch::LogitPositions;
use crate::cuda::decoder::runner::StepRunner;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::plan::WeightFormat;
use crate::cuda::source::WeightSource;
use crate::cuda::toy::{self, distance, llama, qwen2};
use crate::gradient::Module;

const LAST: LogitPositions = LogitPositions::Last;

#[test]
fn weights_in_fp8_are_multiplied_as_they_are() {
    // The checkpoint's weights are exact in the format, so that only activations are rounded.
    let weights = toy::open_fp8(&qwen2());
    let Some(mut pair) = DecoderPair::of(WeightFormat::Fp8, &weights, 11) else { return };
    assert_eq!(pair.held(), pair.planned());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("all");
    save(&weights, 3, &Module::ALL, &dir);
    let adapter = Some(pair.load_adapter(&dir));
    let rows = [pair.begin(1, None), pair.begin(2, adapter)];
    // 32 to 96 rows of a matrix at a time: no matrix fits.
    pair.dequantize_at_most(32 * 240);
    let batch = pair.batch(&[(rows[0], 70, LAST)]);
    judge("fp8, dequantized in parts", &pair.step(&batch, &[]));
    let batch = pair.batch(&[(rows[0], 1, LAST), (rows[1], 30, LAST)]);
    judge("fp8, few rows with an adapter", &pair.step(&batch, &[]));
    let batch = pair.batch(&[(rows[0], 1, LAST)]);
    judge("fp8, one row", &pair.step(&batch, &[]));
    pair.untouched();
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
    // Random weights, whose errors nothing compensates: two layers of products off by 2.6 % each.
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
