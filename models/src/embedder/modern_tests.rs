//! ModernBERT compared with a plain implementation in `f64`, one number at a time, without any of the crate's kernels.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::encoder::fixture::{FFN, HIDDEN, NamedTensors, VOCAB, assert_first_rows, numbers, write};

const LAYERS: usize = 3;
const HEADS: usize = 2;
const HEAD: usize = HIDDEN / HEADS;
/// Distance of the farthest piece that a local layer reads: half of `local_attention`.
const REACH: usize = 2;
/// A global layer, then a local one, and so on.
const EVERY: usize = 2;
const TEXT: [usize; 12] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 6, 4, 2];

fn settings() -> Value {
    json!({
        "model_type": "modernbert", "hidden_activation": "gelu", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 64,
        "layer_norm_eps": 1e-5, "norm_bias": false, "attention_bias": false, "mlp_bias": false,
        "global_attn_every_n_layers": EVERY, "local_attention": 2 * REACH, "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0, "position_embedding_type": "absolute",
    })
}

fn tensors() -> NamedTensors {
    let mut state = 3;
    let mut tensors = NamedTensors::new();
    let mut set = |name: &str, shape: &[usize]| _ = tensors.insert(name.to_owned(), numbers(&mut state, shape));
    set("model.embeddings.tok_embeddings.weight", &[VOCAB, HIDDEN]);
    set("model.embeddings.norm.weight", &[HIDDEN]);
    set("model.final_norm.weight", &[HIDDEN]);
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("attn.Wqkv", vec![3 * HIDDEN, HIDDEN]),
            ("attn.Wo", vec![HIDDEN, HIDDEN]),
            ("mlp_norm", vec![HIDDEN]),
            ("mlp.Wi", vec![2 * FFN, HIDDEN]),
            ("mlp.Wo", vec![HIDDEN, FFN]),
        ] {
            set(&format!("model.layers.{layer}.{part}.weight"), &shape);
        }
        if layer > 0 {
            set(&format!("model.layers.{layer}.attn_norm.weight"), &[HIDDEN]);
        }
    }
    tensors
}

fn weight<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    &tensors[&format!("model.{name}.weight")].1
}

fn linear(tensors: &NamedTensors, name: &str, x: &[f64]) -> Vec<f64> {
    let rows = weight(tensors, name).chunks_exact(x.len());
    rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn norm(tensors: &NamedTensors, name: &str, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight(tensors, name)).map(|(x, w)| (x - mean) / (variance + 1e-5).sqrt() * f64::from(*w)).collect()
}

/// GELU by numerical integration of the normal density, from 0 to `x`.
fn gelu(x: f64) -> f64 {
    let steps = 2000;
    let width = x / f64::from(steps);
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let area: f64 = (0..steps).map(|step| density((f64::from(step) + 0.5) * width) * width).sum();
    x * (0.5 + area)
}

/// Rotates a head to its position.
fn rotated(head: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let half = HEAD / 2;
    let angle = |at: usize| position as f64 * theta.powf(-2.0 * (at % half) as f64 / HEAD as f64);
    let other = |at: usize| if at < half { -head[at + half] } else { head[at - half] };
    (0..HEAD).map(|at| head[at] * angle(at).cos() + other(at) * angle(at).sin()).collect()
}

fn attention(tensors: &NamedTensors, layer: usize, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let is_global = layer.is_multiple_of(EVERY);
    let theta = if is_global { 160_000.0 } else { 10_000.0 };
    let qkv: Vec<Vec<f64>> =
        rows.iter().map(|row| linear(tensors, &format!("layers.{layer}.attn.Wqkv"), row)).collect();
    let mut out = vec![vec![0.0; HIDDEN]; rows.len()];
    for head in 0..HEADS {
        let part = |which: usize, at: usize| &qkv[at][which * HIDDEN + head * HEAD..][..HEAD];
        for (query, out) in out.iter_mut().enumerate() {
            let asked = rotated(part(0, query), query, theta);
            let near = |key: &usize| is_global || key.abs_diff(query) <= REACH;
            let keys: Vec<usize> = (0..rows.len()).filter(near).collect();
            let score = |key: usize| {
                let key = rotated(part(1, key), key, theta);
                asked.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>() / (HEAD as f64).sqrt()
            };
            let weights: Vec<f64> = keys.iter().map(|&key| score(key).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (weight, &key) in weights.iter().zip(&keys) {
                for (at, value) in part(2, key).iter().enumerate() {
                    out[head * HEAD + at] += weight / total * value;
                }
            }
        }
    }
    out
}

/// Mean of the last layer's rows.
fn expected(tensors: &NamedTensors) -> Vec<f64> {
    let table = weight(tensors, "embeddings.tok_embeddings");
    let word = |id: &usize| table[id * HIDDEN..][..HIDDEN].iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let mut rows: Vec<Vec<f64>> = TEXT.iter().map(|id| norm(tensors, "embeddings.norm", &word(id))).collect();
    let add = |rows: &mut [Vec<f64>], more: &[Vec<f64>]| {
        rows.iter_mut().zip(more).for_each(|(row, more)| row.iter_mut().zip(more).for_each(|(x, y)| *x += y));
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normed: Vec<Vec<f64>> = match layer {
            0 => rows.clone(),
            _ => rows.iter().map(|row| norm(tensors, &name("attn_norm"), row)).collect(),
        };
        let attended = attention(tensors, layer, &normed);
        let attended: Vec<Vec<f64>> = attended.iter().map(|row| linear(tensors, &name("attn.Wo"), row)).collect();
        add(&mut rows, &attended);
        let inner = rows.iter().map(|row| {
            let inner = linear(tensors, &name("mlp.Wi"), &norm(tensors, &name("mlp_norm"), row));
            let gated: Vec<f64> = (0..FFN).map(|at| gelu(inner[at]) * inner[FFN + at]).collect();
            linear(tensors, &name("mlp.Wo"), &gated)
        });
        let inner: Vec<Vec<f64>> = inner.collect();
        add(&mut rows, &inner);
    }
    let rows: Vec<Vec<f64>> = rows.iter().map(|row| norm(tensors, "final_norm", row)).collect();
    (0..HIDDEN).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64).collect()
}

fn open(settings: &Value, tensors: &NamedTensors) -> Result<Embedder, ModelError> {
    Embedder::open(write(settings, tensors).path(), Arc::new(Team::new(2)))
}

#[test]
fn modernbert_agrees_with_a_plain_implementation() {
    let tensors = tensors();
    let embedder = open(&settings(), &tensors).unwrap();
    let text = "who wrote faust and the robbers a b faust who";
    let vectors = embedder.embed(&["a", text, "b b", text]).unwrap();
    let expected = expected(&tensors);
    assert!(expected.iter().any(|x| x.abs() > 0.05));
    for (x, y) in vectors[1].iter().zip(&expected) {
        assert!((f64::from(*x) - y).abs() < 1e-4, "{:?} and {expected:?}", vectors[1]);
    }
    assert_eq!(vectors[1], vectors[3]);
    assert_eq!(embedder.embed(&[text]).unwrap()[0], vectors[1], "a vector does not depend on its company");
    assert!(embedder.id().starts_with("modernbert-3x64-"));
}

#[test]
fn first_rows_do_not_depend_on_the_others() {
    // More pieces than a block of the attention has.
    let long = "who wrote faust and the robbers a b ".repeat(6);
    // The last layer attends to all pieces, then to near ones only.
    for every in [EVERY, LAYERS] {
        let mut settings = settings();
        settings["global_attn_every_n_layers"] = json!(every);
        let embedder = open(&settings, &tensors()).unwrap();
        let sequences = embedder.tokenize(&["a", long.as_str(), "b b"]).unwrap();
        assert_first_rows(&embedder.encoder, EncoderArithmetic::Exact, &sequences);
    }
}

#[test]
fn modernbert_settings_that_are_not_computed_are_refused() {
    let refused = |field: &str, value: Value| {
        let mut settings = settings();
        settings[field] = value;
        open(&settings, &tensors()).unwrap_err().to_string()
    };
    for (field, value) in [
        ("norm_bias", json!(true)),
        (
            "rope_parameters",
            json!({
                "full_attention": { "rope_theta": 2.0, "rope_type": "yarn" },
                "sliding_attention": { "rope_theta": 2.0 },
            }),
        ),
        ("layer_types", json!(["full_attention", "chunked_attention", "full_attention"])),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("layer_types", json!([])),
        ("global_attn_every_n_layers", json!(0)),
        ("local_rope_theta", json!(-1.0)),
        ("hidden_activation", json!("relu")),
    ] {
        let error = refused(field, value);
        assert!(error.contains("config.json") && (error.contains(field) || field == "hidden_activation"), "{error}");
    }
    // As transformers 5 states the same settings.
    let mut newer = settings();
    for field in ["global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "layer_norm_eps"] {
        newer.as_object_mut().unwrap().remove(field);
    }
    newer["norm_eps"] = json!(1e-5);
    newer["layer_types"] = json!(["full_attention", "sliding_attention", "full_attention"]);
    newer["rope_parameters"] = json!({
        "full_attention": { "rope_type": "default", "rope_theta": 160_000.0 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
    });
    let vectors = |settings: &Value| open(settings, &tensors()).unwrap().embed(&["who wrote faust a b"]).unwrap();
    assert_eq!(vectors(&newer), vectors(&settings()));
    // The rotations of the global layers apply to all where the local ones have none of their own.
    let mut same = settings();
    same["local_rope_theta"] = Value::Null;
    assert!(open(&same, &tensors()).is_ok());
}
