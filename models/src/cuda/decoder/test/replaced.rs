//! Replacement of the weights while a decoder runs.

use std::ops::Range;

use half::bf16;

use super::pair::DecoderPair;
use super::{BF16, judge_within};
use crate::batch::LogitPositions;
use crate::cuda::kernel::fp8;
use crate::cuda::plan::WeightFormat;
use crate::cuda::toy::{self, llama, qwen2, qwen3};
use crate::weights::Weights;

/// Exchanges neighboring values of every tensor, rounded so that they are exact in both formats.
fn exchange(name: &str, inn: usize, values: &mut [u8]) {
    values.chunks_exact_mut(4).for_each(|pair| pair.rotate_left(2));
    fp8::round_layer_matrix(name, inn, values);
}

/// Runs a new sequence and judges its logits, which it returns.
fn run(pair: &mut DecoderPair, name: &str, bounds: Range<f64>) -> Vec<Vec<f32>> {
    let row = pair.begin(1, None);
    let batch = pair.batch(&[(row, 20, LogitPositions::All)]);
    let outcome = pair.step(&batch, &[]);
    judge_within(bounds, name, &outcome);
    outcome.found
}

/// Replaces weights by others and these by the first.
fn serve(old: &Weights, new: &Weights, format: WeightFormat, bounds: Range<f64>) {
    let Some(mut pair) = DecoderPair::of(format, old, 21) else { return };
    let first = run(&mut pair, "old", bounds.clone());
    pair.replace_weights(new);
    let second = run(&mut pair, "new", bounds.clone());
    assert_ne!(first, second);
    pair.replace_weights(old);
    assert_eq!(run(&mut pair, "old again", bounds), first);
    assert!(!pair.runner().is_torn());
}

#[test]
fn a_decoder_computes_with_the_weights_that_replaced_its_own() {
    let old = toy::open_fp8(&qwen2());
    let new = toy::changed(&qwen2(), exchange);
    serve(&old, &new, WeightFormat::Bf16, 0.0..BF16);
    // Twenty rows of products with such weights are rounded.
    serve(&old, &new, WeightFormat::Fp8, 0.0..0.1);
    serve(&toy::open(&qwen3()), &toy::changed(&qwen3(), exchange), WeightFormat::Bf16, 0.0..BF16);
}

#[test]
fn refused_weights_change_nothing() {
    let old = toy::open_fp8(&llama());
    for format in [WeightFormat::Bf16, WeightFormat::Fp8] {
        let Some(mut pair) = DecoderPair::of(format, &old, 22) else { return };
        let first = run(&mut pair, "before", 0.0..0.1);
        let mut other = llama();
        other.layers = 1;
        let refused = pair.weights_refusal(&toy::open(&other));
        assert!(refused.contains("another shape"), "{refused}");
        let infinite = toy::changed(&llama(), |name, _, values| {
            if name == "model.layers.1.mlp.down_proj.weight" {
                values[..2].copy_from_slice(&bf16::INFINITY.to_le_bytes());
            }
        });
        if format == WeightFormat::Fp8 {
            let refused = pair.weights_refusal(&infinite);
            assert!(refused.starts_with("tensor model.layers.1.mlp.down_proj.weight: row 0"), "{refused}");
        }
        assert!(!pair.runner().is_torn());
        assert_eq!(run(&mut pair, "after", 0.0..0.1), first);
    }
}

#[test]
fn weights_that_were_replaced_in_part_are_known_as_such() {
    let old = toy::open(&llama());
    let Some(mut pair) = DecoderPair::new(&old, 23) else { return };
    pair.driver().memory().fail_after_uploads(3);
    let failed = pair.weights_refusal(&toy::changed(&llama(), exchange));
    assert!(failed.contains("cannot copy to the device"), "{failed}");
    assert!(pair.runner().is_torn());
    // The next replacement makes them whole.
    pair.driver().memory().fail_after_uploads(usize::MAX);
    pair.replace_weights(&old);
    assert!(!pair.runner().is_torn());
    run(&mut pair, "whole", 0.0..BF16);
}
