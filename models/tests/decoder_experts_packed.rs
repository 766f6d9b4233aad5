//! Experts in the packed form of a GGUF: against their dequantized values, in every batch alike, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod expert_file;
mod fixture;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use expert_file::ExpertFile;
use fixture::{decoder_in, difference, step, table, whole};
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{Arithmetic, BLOCK, ForwardBatch, LogitPositions};

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|index| ((index * 29 + seed * 13 + index * index) % expert_file::VOCAB) as u32).collect()
}

fn written(folder: &tempfile::TempDir, file: ExpertFile, extra: &[(&str, Value)]) -> PathBuf {
    let path = folder.path().join(format!("{:?}-{}.gguf", file.kind, file.dequantized));
    file.write(&path, extra);
    path
}

#[test]
fn quantized_experts_compute_what_their_values_do() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q6K] {
        let file = ExpertFile::new(kind);
        let packed = written(&folder, file, &[]);
        let plain = written(&folder, ExpertFile { dequantized: true, ..file }, &[]);
        let tokens = tokens(40, 1);
        let expected = whole(&mut decoder_in(&plain, Arithmetic::F32), &tokens, None).concat();
        let exact = whole(&mut decoder_in(&packed, Arithmetic::F32), &tokens, None).concat();
        let apart = difference(&exact, &expected);
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        assert!(largest > 0.5, "{kind:?}: the largest logit is {largest}");
        assert!(apart < 1e-5, "{kind:?} in f32: {apart}");
        let rounded = whole(&mut decoder_in(&packed, Arithmetic::Int16), &tokens, None).concat();
        let apart = difference(&rounded, &expected);
        assert!(apart > 0.0 && apart < 1e-2, "{kind:?} in int16: {apart}");
    }
}

/// Asserts that sequences of different lengths, in chunks of different sizes, have the same logits together as alone.
fn alike_in_every_batch(from: &Path, arithmetic: Arithmetic) {
    let mut decoder = decoder_in(from, arithmetic);
    let sequences: Vec<Vec<u32>> =
        [3, 17, 40, 64, 1, 33].iter().zip(1..).map(|(&len, seed)| tokens(len, seed)).collect();
    let alone: Vec<_> = sequences.iter().map(|tokens| whole(&mut decoder, tokens, None)).collect();
    let each = 64 / BLOCK;
    let mut kv = decoder.kv_cache(sequences.len() * each);
    let mut done = vec![0; sequences.len()];
    for round in 0.. {
        let mut batch = ForwardBatch::new();
        let mut members = Vec::new();
        for (index, tokens) in sequences.iter().enumerate() {
            let size = [1, 30, 7, 2][(round + index) % 4].min(tokens.len() - done[index]);
            if size == 0 {
                continue;
            }
            let own = &tokens[done[index]..done[index] + size];
            batch.push(own, done[index], &table((index * each) as u32, 64), None, LogitPositions::All);
            members.extend((done[index]..done[index] + size).map(|position| (index, position)));
            done[index] += size;
        }
        if batch.is_empty() {
            break;
        }
        for ((index, position), row) in members.into_iter().zip(step(&mut decoder, &batch, &mut kv)) {
            assert!(alone[index][position] == row, "{}: {arithmetic}, row {index} at {position}", from.display());
        }
    }
}

#[test]
fn logits_depend_on_the_sequence_alone() {
    for name in ["qwen3-moe", "qwen2-moe", "mixtral"] {
        for arithmetic in [Arithmetic::F32, Arithmetic::Bf16] {
            alike_in_every_batch(&fixture::path("../experts").join(name), arithmetic);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let packed = written(&folder, ExpertFile { layers: 2, ..ExpertFile::new(GgmlDType::Q4K) }, &[]);
    alike_in_every_batch(&packed, Arithmetic::F32);
    alike_in_every_batch(&packed, Arithmetic::Int16);
}

#[test]
fn k_quants_of_experts_are_served_in_integers() {
    let folder = tempfile::tempdir().unwrap();
    let suited = |kind| Arithmetic::suited_to(&Weights::open(&written(&folder, ExpertFile::new(kind), &[])).unwrap());
    assert_eq!((suited(GgmlDType::Q4K), suited(GgmlDType::F16)), (Arithmetic::Int16, Arithmetic::F32));
}

#[test]
fn keys_that_only_some_files_have_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let experts = |file: ExpertFile, extra: &[(&str, Value)]| {
        let weights = Weights::open(&written(&folder, file, extra)).unwrap();
        weights.config().architecture.experts.clone().unwrap()
    };
    let sound = ExpertFile::new(GgmlDType::F16);
    let early = [
        ("qwen3moe.expert_feed_forward_length", Value::U32(0)),
        ("qwen3moe.feed_forward_length", Value::U32(2 * expert_file::WIDTH as u32)),
    ];
    assert_eq!(experts(sound, &early).width, expert_file::WIDTH, "that of a token's two experts together");
    assert!(experts(sound, &[]).normalized);
    assert!(!experts(sound, &[("qwen3moe.expert_weights_norm", Value::Bool(false))]).normalized);
    let leading = [("qwen3moe.leading_dense_block_count", Value::U32(1))];
    assert_eq!(experts(ExpertFile { layers: 2, ..sound }, &leading).dense_layers, [0]);
}

fn refused(file: ExpertFile, extra: &[(&str, Value)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let load = |weights: Weights| Decoder::load(&weights, Arc::new(Team::new(2)));
    Weights::open(&written(&folder, file, extra)).and_then(load).unwrap_err().to_string()
}

#[test]
fn files_that_no_pass_computes_are_refused_by_name() {
    let sound = ExpertFile::new(GgmlDType::F16);
    let error = refused(ExpertFile { stacked: Some(3), ..sound }, &[]);
    assert!(error.contains("mlp.experts.0.gate_proj.weight"), "{error}");
    assert!(error.contains("has the shape [3, 512, 256], expected [4, 512, 256]"), "{error}");
    let error = refused(ExpertFile { without: "blk.0.ffn_down_exps.weight", ..sound }, &[]);
    assert!(error.contains("experts.down_proj.weight: not in"), "{error}");
    assert!(error.contains("where it would be called blk.0.ffn_down_exps.weight"), "{error}");
    let error = refused(ExpertFile { also: "blk.0.ffn_gate.0.weight", ..sound }, &[]);
    assert!(error.contains("a tensor for each expert (blk.0.ffn_gate.0.weight)"), "{error}");
    let error = refused(ExpertFile { also: "blk.0.ffn_gate_up_exps.weight", ..sound }, &[]);
    assert!(error.contains("two projections of the experts in one tensor"), "{error}");
    let number = |key: &'static str, value: u32| (key, Value::U32(value));
    let error = refused(sound, &[number("qwen3moe.expert_count", 5)]);
    assert!(error.contains("mlp.gate.weight: shape [4, 256], expected [5, 256]"), "{error}");
    let error = refused(sound, &[number("qwen3moe.expert_used_count", 5)]);
    assert!(error.contains("experts per token is 5, not from 1 to 4"), "{error}");
    let error = refused(sound, &[number("qwen3moe.expert_gating_func", 2)]);
    assert!(error.contains("qwen3moe.expert_gating_func is 2"), "{error}");
    let error = refused(sound, &[number("qwen3moe.expert_group_count", 8)]);
    assert!(error.contains("8 groups of experts"), "{error}");
    let error = refused(sound, &[("qwen3moe.expert_weights_scale", Value::F32(2.5))]);
    assert!(error.contains("scaled by 2.5"), "{error}");
    for (architecture, words) in [
        ("deepseek2", "latent attention"),
        ("gpt-oss", "sinks"),
        ("granite", "mixture of experts in the architecture granite"),
    ] {
        let extra =
            [("general.architecture", Value::String(architecture.to_owned())), ("granite.expert_count", Value::U32(4))];
        assert!(refused(sound, &extra).contains(words), "{architecture}");
    }
}
