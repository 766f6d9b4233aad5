//! Logits of small random checkpoints of every further family, in both layouts, against `scripts/parity/families.py`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;

use super::{Decoder, KvCache};
use crate::architecture::{LayerRotary, NormPlacement, QkNorm};
use crate::batch::{BLOCK, ForwardBatch, LogitPositions, Logits};
use crate::kernel::Team;
use crate::weights::Weights;

const TOLERANCE: f32 = 1e-3;
const FAMILIES: [&str; 8] = ["mistral", "smollm3", "phi3", "phi4-mini", "granite", "olmo2", "gemma2", "gemma3"];

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families")).join(name)
}

fn decoder(from: &Path) -> Decoder {
    Decoder::load(&Weights::open(from).unwrap(), Arc::new(Team::new(2))).unwrap()
}

/// Logits of tokens from position `start` on, in a cache whose blocks are in order.
fn logits(decoder: &mut Decoder, kv: &mut KvCache, start: usize, tokens: &[u32]) -> Vec<f32> {
    let blocks = (start + tokens.len()).div_ceil(BLOCK) as u32;
    let mut batch = ForwardBatch::new();
    batch.push(tokens, start, &(0..blocks).collect::<Vec<_>>(), None, LogitPositions::All);
    let mut logits = Logits::new();
    decoder.forward(&batch, kv, &mut logits).unwrap();
    (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect()
}

/// Largest difference from the expected logits. Infinite if any value is NaN.
fn difference(decoder: &mut Decoder, expected: &Path) -> f32 {
    let bytes = std::fs::read(expected).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: String| -> Vec<[u8; 4]> {
        file.tensor(&name).unwrap().data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
    };
    let integers = |name: String| words(name).into_iter().map(u32::from_le_bytes).collect::<Vec<_>>();
    let vocab = decoder.config().vocab;
    let mut most = 0f32;
    for case in 0..2 {
        let tokens = integers(format!("{case}.tokens"));
        let mut kv = decoder.kv_cache(tokens.len().div_ceil(BLOCK));
        let ours = logits(decoder, &mut kv, 0, &tokens);
        let wanted: Vec<f32> = words(format!("{case}.logits")).into_iter().map(f32::from_le_bytes).collect();
        let positions = integers(format!("{case}.positions"));
        assert_eq!(wanted.len(), positions.len() * vocab);
        for (position, wanted) in positions.into_iter().zip(wanted.chunks_exact(vocab)) {
            for (ours, wanted) in ours[position as usize * vocab..][..vocab].iter().zip(wanted) {
                let difference = (ours - wanted).abs();
                most = if difference.is_nan() { f32::INFINITY } else { most.max(difference) };
            }
        }
    }
    most
}

fn agrees(name: &str) {
    let folder = path(name);
    let expected = folder.join("expected.safetensors");
    for from in [folder.clone(), folder.join("gguf")] {
        // A GGUF of Mistral is one of Llama.
        if name == "mistral" && from != folder {
            continue;
        }
        let difference = difference(&mut decoder(&from), &expected);
        println!("{}: max abs difference {difference:.2e}", from.display());
        assert!(difference < TOLERANCE, "{}: {difference}", from.display());
    }
}

#[test]
fn mistral_agrees_with_the_reference() {
    agrees("mistral");
}

#[test]
fn smollm3_agrees_with_the_reference() {
    agrees("smollm3");
}

#[test]
fn phi3_agrees_with_the_reference() {
    agrees("phi3");
}

#[test]
fn phi4_mini_agrees_with_the_reference() {
    agrees("phi4-mini");
}

#[test]
fn granite_agrees_with_the_reference() {
    agrees("granite");
}

#[test]
fn olmo2_agrees_with_the_reference() {
    agrees("olmo2");
}

#[test]
fn gemma2_agrees_with_the_reference() {
    agrees("gemma2");
}

#[test]
fn gemma3_agrees_with_the_reference() {
    agrees("gemma3");
}

#[test]
fn both_layouts_are_described_alike() {
    for name in FAMILIES.into_iter().filter(|name| *name != "mistral") {
        let hf = Weights::open(&path(name)).unwrap();
        let gguf = Weights::open(&path(name).join("gguf")).unwrap();
        let mut one = hf.config().clone();
        let two = gguf.config().clone();
        // A checkpoint may state the usual scale, which a GGUF leaves out.
        one.rope_scaling = two.rope_scaling.clone();
        assert_eq!(one, two, "{name}");
        assert_eq!(hf.config().parameters(), gguf.config().parameters(), "{name}");
    }
}

#[test]
fn features_are_read_from_the_configuration() {
    let architecture = |name: &str| Weights::open(&path(name)).unwrap().config().architecture.clone();
    let gemma3 = architecture("gemma3");
    assert_eq!((gemma3.norms, gemma3.qk_norm, gemma3.embedding_scale), (NormPlacement::Around, QkNorm::Head, 4.0));
    assert_eq!((gemma3.layer(0).window, gemma3.layer(0).rotary), (Some(20), LayerRotary::Local));
    assert_eq!((gemma3.layer(5).window, gemma3.layer(5).rotary), (None, LayerRotary::Global));
    assert_eq!(gemma3.local_rope_base, Some(100.0));
    assert_eq!(architecture("smollm3").layer(3).rotary, LayerRotary::None);
    assert_eq!(architecture("phi4-mini").rotary_dim, Some(12));
    assert_eq!(Weights::open(&path("phi4-mini")).unwrap().config().context, 96);
    assert_eq!(architecture("olmo2").qk_norm, QkNorm::Whole);
    assert_eq!(architecture("gemma2").score_cap, Some(5.0));
    let granite = architecture("granite");
    assert_eq!((granite.attention_scale, granite.residual_scale, granite.logit_scale), (Some(0.15), 0.22, 0.125));
}

#[test]
fn logits_do_not_depend_on_the_split_into_chunks() {
    let tokens: Vec<u32> = (0..90).map(|index| index * 7 % 64).collect();
    for name in ["mistral", "gemma2", "gemma3"] {
        let mut decoder = decoder(&path(name));
        let mut kv = decoder.kv_cache(6);
        let at_once = logits(&mut decoder, &mut kv, 0, &tokens);
        let mut kv = decoder.kv_cache(6);
        let parts = [0..33, 33..34, 34..90];
        let piecewise = parts.map(|range| logits(&mut decoder, &mut kv, range.start, &tokens[range])).concat();
        assert!(at_once == piecewise, "{name}");
    }
}

#[test]
fn logits_do_not_depend_on_the_positions_that_get_some() {
    let tokens: Vec<u32> = (0..90).map(|index| index * 7 % 64).collect();
    let table: Vec<u32> = (0..6).collect();
    let experts = ["../experts/qwen3-moe", "../experts/qwen2-moe", "../experts/mixtral"];
    for name in FAMILIES.into_iter().chain(experts) {
        let mut decoder = decoder(&path(name));
        let vocab = decoder.config().vocab;
        let mut kv = decoder.kv_cache(6);
        // All tokens get logits, so all of them pass through the whole last layer.
        let all = logits(&mut decoder, &mut kv, 0, &tokens);
        let mut kv = decoder.kv_cache(7);
        let mut batch = ForwardBatch::new();
        let mut some = Logits::new();
        for (range, want) in [
            (0..33, LogitPositions::Last),
            (33..50, LogitPositions::Nothing),
            (50..60, LogitPositions::All),
            (60..90, LogitPositions::Last),
        ] {
            batch.clear();
            batch.push(&tokens[..5], 0, &[6], None, LogitPositions::Nothing);
            batch.push(&tokens[range.clone()], range.start, &table, None, want);
            decoder.forward(&batch, &mut kv, &mut some).unwrap();
            let expected = &all[(range.end - some.rows()) * vocab..range.end * vocab];
            assert!(*some.as_mut_slice() == *expected, "{name}: {want:?} of {range:?}");
        }
    }
}

#[test]
fn a_cache_of_one_layer_suffices_for_whole_sequences() {
    let tokens: Vec<u32> = (0..90).map(|index| index * 7 % 64).collect();
    let table: Vec<u32> = (0..6).collect();
    for name in ["mistral", "gemma2", "gemma3"] {
        let mut decoder = decoder(&path(name));
        let mut all = decoder.kv_cache(6);
        let mut single = KvCache::single_layer(decoder.config(), 6);
        let mut batch = ForwardBatch::new();
        batch.push(&tokens, 0, &table, None, LogitPositions::Nothing);
        let mut rows = [Vec::new(), Vec::new()];
        decoder.hidden_states(&batch, &mut all, &mut rows[0]).unwrap();
        decoder.release_scratch();
        decoder.hidden_states(&batch, &mut single, &mut rows[1]).unwrap();
        assert!(rows[0].iter().any(|x| *x != 0.0) && rows[0] == rows[1], "{name}");
        assert_eq!(single.bytes(), KvCache::single_layer_bytes(decoder.config(), 6), "{name}");
        assert_eq!(all.bytes(), decoder.config().layers * single.bytes(), "{name}");
        batch.clear();
        batch.push(&tokens[80..], 80, &table, None, LogitPositions::Nothing);
        let error = decoder.hidden_states(&batch, &mut single, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("80 earlier tokens"), "{name}: {error}");
    }
}

/// Configuration of a copy of a fixture with one field changed, refused at opening.
fn refused(name: &str, key: &str, value: serde_json::Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path(name).join("config.json")).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    Weights::open(folder.path()).map(drop).unwrap_err().to_string()
}

#[test]
fn variants_that_no_pass_computes_are_refused_by_name() {
    assert!(refused("gemma2", "hidden_activation", "relu".into()).contains("gelu_pytorch_tanh in gemma2"));
    assert!(refused("gemma3", "use_bidirectional_attention", true.into()).contains("bidirectional"));
    assert!(refused("mistral", "is_causal", false.into()).contains("is_causal"));
    assert!(refused("gemma3", "layer_types", serde_json::json!(["full_attention"])).contains("1 entries for 6 layers"));
    assert!(
        refused(
            "smollm3",
            "layer_types",
            serde_json::json!(["sliding_attention", "full_attention", "full_attention", "full_attention"])
        )
        .contains("sliding_attention")
    );
    assert!(refused("smollm3", "no_rope_layers", serde_json::json!([1, 0])).contains("no_rope_layers"));
    assert!(refused("granite", "partial_rotary_factor", 0.5.into()).contains("partial_rotary_factor"));
    assert!(refused("granite", "residual_multiplier", 0.0.into()).contains("residual scale 0"));
    assert!(refused("phi4-mini", "partial_rotary_factor", 1.0.into()).contains("rope factors"));
    assert!(refused("mistral", "model_type", "llama4".into()).contains("chunked attention"));
    assert!(refused("mistral", "model_type", "qwen3_next".into()).contains("linear attention"));
}

#[test]
fn malformed_rope_parameters_are_refused_by_name() {
    let wrong = serde_json::json!({"rope_type": "linear", "factor": "8"});
    let plain = serde_json::json!({"rope_theta": 1e4});
    for (value, word) in [
        (serde_json::json!({"full_attention": wrong, "sliding_attention": plain}), "full_attention.factor: invalid"),
        (serde_json::json!({"full_attention": plain, "sliding_attention": 1}), "sliding_attention is not an object"),
        (serde_json::json!({"full_attention": plain}), "has no sliding_attention"),
        (serde_json::json!({"sliding_attention": plain}), "has no full_attention"),
        (wrong, "rope_parameters.factor: invalid"),
    ] {
        let error = refused("gemma3", "rope_parameters", value);
        assert!(error.contains("config.json") && error.contains("rope_parameters"), "{error}");
        assert!(error.contains(word), "{error}, expected {word}");
    }
}

/// Writes an adapter of rank 2 with the given tensors.
fn write_adapter(dir: &Path, tensors: &[(&str, Vec<usize>, Vec<f32>)]) {
    let config = serde_json::json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
    std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let name = format!("base_model.model.model.layers.1.self_attn.{name}.weight");
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(dir.join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn an_adapter_on_a_fused_projection_equals_adapters_on_its_parts() {
    let mut decoder = decoder(&path("phi3"));
    let values = |count: usize| (0..count).map(|at| ((at * 37 % 41) as f32 - 20.0) / 40.0).collect::<Vec<f32>>();
    let a = values(2 * 32);
    let b = values(64 * 2);
    let [whole, parts, both] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let pair = |name: &'static [&'static str; 2], rows: std::ops::Range<usize>| {
        let b = b[rows.start * 2..rows.end * 2].to_vec();
        [(name[0], vec![2, 32], a.clone()), (name[1], vec![rows.len(), 2], b)]
    };
    let fused = pair(&["qkv_proj.lora_A", "qkv_proj.lora_B"], 0..64);
    write_adapter(whole.path(), &fused);
    let q = pair(&["q_proj.lora_A", "q_proj.lora_B"], 0..32);
    let k = pair(&["k_proj.lora_A", "k_proj.lora_B"], 32..48);
    let v = pair(&["v_proj.lora_A", "v_proj.lora_B"], 48..64);
    write_adapter(parts.path(), &[q.clone(), k, v].concat());
    write_adapter(both.path(), &[fused, q].concat());
    let tokens = [1, 5, 9, 2, 60];
    let mut with = |dir: &Path| {
        let slot = decoder.load_adapter(dir).unwrap();
        let mut kv = decoder.kv_cache(1);
        let mut batch = ForwardBatch::new();
        batch.push(&tokens, 0, &[0], Some(slot), LogitPositions::Last);
        let mut logits = Logits::new();
        decoder.forward(&batch, &mut kv, &mut logits).unwrap();
        logits.row(0).to_vec()
    };
    let adapted = with(whole.path());
    assert_eq!(adapted, with(parts.path()));
    let mut kv = decoder.kv_cache(1);
    let plain = logits(&mut decoder, &mut kv, 0, &tokens);
    let change = adapted.iter().zip(&plain[plain.len() - adapted.len()..]).map(|(a, b)| (a - b).abs());
    assert!(change.fold(0.0, f32::max) > 0.01, "the adapter changes nothing");
    let refused = decoder.load_adapter(both.path()).unwrap_err().to_string();
    assert!(refused.contains("q_proj and on self_attn.qkv_proj"), "{refused}");
}
