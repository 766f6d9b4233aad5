//! Logits and greedy continuations of SmolLM2-135M-Instruct (Q4_1) compared with `transformers` on the dequantized
//! file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod pulled;

use fixture::{Tensors, decoder, difference, path, step, table, whole};
use waymark_models::{BLOCK, ForwardBatch, LogitPositions};

const TOLERANCE: f32 = 1e-3;
/// Stride of the logits that the fixture keeps.
const STRIDE: usize = 97;

#[test]
fn smollm2_agrees_with_transformers() {
    let mut decoder = decoder(&pulled::policy());
    let expected = Tensors::read(&path("smollm2.safetensors"));
    let mut most = 0.0f32;
    for case in 0..expected.cases() {
        let read = |part: &str| expected.integers(&format!("{case}.{part}"));
        let tokens = read("tokens");
        let ours = whole(&mut decoder, &tokens, None);
        let ours: Vec<&[f32]> = read("positions").iter().map(|&position| ours[position as usize].as_slice()).collect();
        let sampled: Vec<f32> = ours.iter().flat_map(|row| row.iter().step_by(STRIDE).copied()).collect();
        most = most.max(difference(&sampled, &expected.floats(&format!("{case}.every_97th"))));
        let ids = read("top_ids");
        let each = ids.len() / ours.len();
        let top: Vec<f32> =
            ours.iter().zip(ids.chunks(each)).flat_map(|(row, ids)| ids.iter().map(|&id| row[id as usize])).collect();
        most = most.max(difference(&top, &expected.floats(&format!("{case}.top_values"))));
    }
    println!("smollm2: max abs difference {most:.2e}");
    assert!(most < TOLERANCE, "{most}");
}

#[test]
fn smollm2_continues_as_transformers_does() {
    let mut decoder = decoder(&pulled::policy());
    let expected = Tensors::read(&path("smollm2.safetensors"));
    let prompts: Vec<_> = (0..expected.cases()).map(|case| expected.integers(&format!("{case}.tokens"))).collect();
    let chains: Vec<_> = (0..expected.cases()).map(|case| expected.integers(&format!("{case}.greedy"))).collect();
    let each = (prompts.iter().map(Vec::len).max().unwrap() + chains[0].len()).div_ceil(BLOCK);
    let mut kv = decoder.kv_cache(prompts.len() * each);
    let mut sequences = prompts.clone();
    let mut done = vec![0; prompts.len()];
    for _ in 0..chains[0].len() {
        let mut batch = ForwardBatch::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let table = table((index * each) as u32, each * BLOCK);
            batch.push(&sequence[done[index]..], done[index], &table, None, LogitPositions::Last);
            done[index] = sequence.len();
        }
        for (sequence, logits) in sequences.iter_mut().zip(step(&mut decoder, &batch, &mut kv)) {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            sequence.push(best.0 as u32);
        }
    }
    for ((sequence, prompt), chain) in sequences.iter().zip(&prompts).zip(&chains) {
        assert_eq!(&sequence[prompt.len()..], chain.as_slice());
    }
}
