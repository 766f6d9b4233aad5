//! Checkpoints of every format, intact and damaged.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod synthetic;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use synthetic::{HIDDEN, VOCAB, metadata, tensors, values, write_gguf, write_hf};
use waymark_models::ModelError;
use waymark_models::architecture::{DecoderConfig, LayerRotary, QkNorm};
use waymark_models::decoder::RopeScaling;
use waymark_models::weights::{Gguf, Weights};

fn largest_difference(weights: &Weights) -> f32 {
    let mut largest = 0f32;
    for (name, shape) in tensors() {
        let view = weights.tensor(&name).unwrap();
        assert_eq!(view.shape, shape, "{name}");
        let wanted = values(&name, shape.iter().product());
        let found = view.to_f32().unwrap();
        largest = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(largest, f32::max);
    }
    largest
}

#[test]
fn every_kind_gives_the_same_tensors_under_the_same_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // The bound is half a step of the coarsest scale for values in -1..1.
    let kinds = [
        (GgmlDType::F32, 0.0),
        (GgmlDType::F16, 5e-4),
        (GgmlDType::BF16, 4e-3),
        (GgmlDType::Q8_0, 5e-3),
        (GgmlDType::Q5_1, 0.04),
        (GgmlDType::Q5_0, 0.07),
        (GgmlDType::Q4_1, 0.07),
        (GgmlDType::Q4_0, 0.14),
    ];
    for (kind, bound) in kinds {
        for architecture in ["llama", "qwen2"] {
            write_gguf(&path, architecture, kind, Vec::new());
            let weights = Weights::open(&path).unwrap();
            let difference = largest_difference(&weights);
            assert!(difference <= bound, "{architecture} {kind:?}: {difference}");
            let config = weights.config();
            assert_eq!((config.vocab, config.layers, config.head_dim, config.kv_heads), (40, 2, 16, 2));
            assert!(
                config.tied_embeddings && !config.architecture.qkv_bias && config.architecture.qk_norm == QkNorm::None
            );
            assert_eq!((config.rope_base, config.rope_scaling.clone()), (20_000.0, RopeScaling::None));
        }
    }
    assert!(Weights::open(&path).unwrap().has("model.layers.1.mlp.up_proj.weight"));
    assert!(!Weights::open(&path).unwrap().has("lm_head.weight"));
}

#[test]
fn safetensors_are_read_whole_and_sharded() {
    let single = tempfile::tempdir().unwrap();
    let sharded = tempfile::tempdir().unwrap();
    write_hf(single.path(), "llama", false);
    write_hf(sharded.path(), "llama", true);
    for folder in [&single, &sharded] {
        let weights = Weights::open(folder.path()).unwrap();
        assert_eq!(largest_difference(&weights), 0.0);
        assert_eq!(weights.config().rope_base, 20_000.0);
    }
    assert_eq!(largest_difference(&Weights::open(&single.path().join("model.safetensors")).unwrap()), 0.0);
    // An index next to the single file is ignored, as in `transformers`.
    let index = "model.safetensors.index.json";
    std::fs::copy(sharded.path().join(index), single.path().join(index)).unwrap();
    assert_eq!(largest_difference(&Weights::open(single.path()).unwrap()), 0.0);
    std::fs::remove_file(sharded.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = Weights::open(sharded.path()).unwrap_err();
    assert!(error.to_string().contains("model-00002-of-00002"), "{error}");
}

#[test]
fn a_gguf_is_opened_beside_a_configuration_without_tensors() {
    let folder = tempfile::tempdir().unwrap();
    write_gguf(&folder.path().join("model.gguf"), "llama", GgmlDType::F32, Vec::new());
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    assert!(Weights::open(folder.path()).unwrap().gguf().is_some());
    write_hf(folder.path(), "llama", false);
    assert!(Weights::open(folder.path()).unwrap().gguf().is_none());
}

#[test]
fn an_index_cannot_point_outside_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), "llama", true);
    let index = r#"{"weight_map": {"model.norm.weight": "../model.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(matches!(Weights::open(folder.path()), Err(ModelError::Corrupt { .. })));
}

#[test]
fn configurations_with_unknown_features_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), "llama", false);
    let path = folder.path().join("config.json");
    let original: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let with = |key: &str, value: serde_json::Value| {
        let mut config = original.clone();
        config[key] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        Weights::open(folder.path())
    };
    let refused = |key: &str, value: serde_json::Value| with(key, value).unwrap_err().to_string();
    assert!(refused("model_type", "mamba".into()).contains("mamba"));
    assert!(refused("hidden_act", "gelu".into()).contains("gelu"));
    assert!(refused("rope_scaling", serde_json::json!({"rope_type": "longrope"})).contains("longrope"));
    assert!(refused("num_key_value_heads", 3.into()).contains("key-value"));
    assert!(refused("vocab_size", (1u64 << 40).into()).contains("vocabulary"));
    assert!(refused("rope_theta", 0.0.into()).contains("rope base"));
    assert!(refused("tie_word_embeddings", false.into()).contains("no lm_head.weight"));
    assert!(refused("partial_rotary_factor", 0.5.into()).contains("partial_rotary_factor 0.5"));
    let part = serde_json::json!({"rope_type": "default", "partial_rotary_factor": 0.25});
    assert!(refused("rope_parameters", part).contains("partial_rotary_factor 0.25"));
    assert!(with("partial_rotary_factor", 1.0.into()).is_ok());
    let yarn = |truncate: bool| serde_json::json!({"rope_type": "yarn", "factor": 4.0, "truncate": truncate});
    assert!(refused("rope_scaling", yarn(false)).contains("truncate"));
    assert!(with("rope_scaling", yarn(true)).is_ok());
    let llama3 = serde_json::json!({"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192});
    let config = with("rope_scaling", llama3).unwrap().config().clone();
    assert!(matches!(config.rope_scaling, RopeScaling::Llama3 { factor: 32.0, original_context: 8192, .. }));
    let linear = |names: &[&str]| {
        let mut rope = serde_json::json!({"factor": 2.0});
        names.iter().for_each(|name| rope[*name] = "linear".into());
        with("rope_scaling", rope).unwrap().config().rope_scaling.clone()
    };
    for names in [&["type"][..], &["rope_type"], &["type", "rope_type"]] {
        assert_eq!(linear(names), RopeScaling::Linear { factor: 2.0 }, "{names:?}");
    }
    let v5 = serde_json::json!({"rope_type": "default", "rope_theta": 1e6});
    assert_eq!(with("rope_parameters", v5).unwrap().config().rope_base, 1e6);
}

#[test]
fn a_window_counts_if_the_stretched_context_is_longer() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), "mistral", false);
    let path = folder.path().join("config.json");
    let original: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let window = |rope: serde_json::Value| {
        let mut config = original.clone();
        config["sliding_window"] = 256.into();
        config["rope_scaling"] = rope;
        std::fs::write(&path, config.to_string()).unwrap();
        let weights = Weights::open(folder.path()).unwrap();
        (weights.config().context, weights.config().architecture.layer(0).window)
    };
    assert_eq!(window(serde_json::Value::Null), (256, None));
    assert_eq!(window(serde_json::json!({"rope_type": "yarn", "factor": 4.0})), (1024, Some(256)));
}

#[test]
fn a_gguf_with_biases_that_nothing_adds_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let metadata = metadata("qwen2");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let zeros = |shape: &[usize]| {
        QTensor::quantize(&Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap(), GgmlDType::F32).unwrap()
    };
    let embedding = zeros(&[VOCAB, HIDDEN]);
    let bias = zeros(&[HIDDEN]);
    // The configuration reads no tensor of the file except the embedding matrix.
    let config = |name: &str| {
        let tensors = [("token_embd.weight", &embedding), (name, &bias)];
        gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
        Gguf::open(&path).unwrap().config()
    };
    assert!(config("blk.0.attn_q.bias").unwrap().architecture.qkv_bias);
    for name in ["blk.0.attn_output.bias", "blk.0.ffn_gate.bias", "blk.1.ffn_up.bias", "blk.1.ffn_down.bias"] {
        let error = config(name).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(name), "{error}");
    }
    for name in ["blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias"] {
        let error = config(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("without --fuse-qkv"), "{error}");
    }
}

#[test]
fn one_part_of_a_gguf_is_refused_with_the_command_that_joins_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("little-00002-of-00003.gguf");
    let write = |count: u16| {
        write_gguf(&path, "llama", GgmlDType::F32, vec![("split.count".to_owned(), Value::U16(count))]);
        Weights::open(&path)
    };
    let error = write(3).unwrap_err();
    let command = format!("--merge {}", folder.path().join("little-00001-of-00003.gguf").display());
    assert!(matches!(error, ModelError::Layout { .. }) && error.to_string().contains(&command), "{error}");
    // Joined files say 0.
    for count in [0, 1] {
        write(count).unwrap();
    }
}

/// Returns the configuration of a GGUF with `further` metadata, which replace those of the little decoder with the same
/// key. The configuration reads no tensor of the file except the embedding matrix.
fn gguf_config(architecture: &str, further: &[(&str, Value)]) -> Result<DecoderConfig, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut metadata: HashMap<String, Value> = metadata(architecture).into_iter().collect();
    metadata.extend(further.iter().map(|(key, value)| (format!("{architecture}.{key}"), value.clone())));
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let embedding = Tensor::zeros((VOCAB, HIDDEN), DType::F32, &Device::Cpu).unwrap();
    let embedding = QTensor::quantize(&embedding, GgmlDType::F32).unwrap();
    let tensors = [("token_embd.weight", &embedding)];
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    Gguf::open(&path).unwrap().config()
}

#[test]
fn early_files_of_phi3_with_a_short_context_get_its_window() {
    let window = |layers: u32, context: u32, stated: Option<u32>| {
        let mut further = vec![("block_count", Value::U32(layers)), ("context_length", Value::U32(context))];
        further.extend(stated.map(|window| ("attention.sliding_window", Value::U32(window))));
        let architecture = gguf_config("phi3", &further).unwrap().architecture;
        let windows: Vec<_> = (0..layers as usize).map(|layer| architecture.layer(layer).window).collect();
        assert!(windows.iter().all(|window| *window == windows[0]), "{windows:?}");
        windows[0]
    };
    assert_eq!([32, 40].map(|layers| window(layers, 4096, None)), [Some(2047); 2]);
    assert_eq!(window(32, 4096, Some(1024)), Some(1024));
    // Other context lengths, Phi-4 and Phi-4-mini.
    for (layers, context) in [(32, 8192), (32, 131_072), (40, 16_384), (24, 4096)] {
        assert_eq!(window(layers, context, None), None, "{layers} layers, {context} tokens");
    }
}

#[test]
fn layers_of_gemma3_are_local_where_the_file_says_so() {
    let config = |further: &[(&str, Value)]| {
        let layers = [("block_count", Value::U32(7))];
        gguf_config("gemma3", &[&layers[..], further].concat())
    };
    let layers = |further: &[(&str, Value)]| {
        let architecture = config(further).unwrap().architecture;
        [0, 1, 5].map(|index| architecture.layer(index)).map(|layer| (layer.window, layer.rotary))
    };
    let window = |size: u32| ("attention.sliding_window", Value::U32(size));
    let pattern = |value: Value| ("attention.sliding_window_pattern", value);
    let flags = |flags: &[bool]| pattern(Value::Array(flags.iter().copied().map(Value::Bool).collect()));
    let global = (None, LayerRotary::Global);
    let local = (Some(4), LayerRotary::Local);
    assert_eq!(layers(&[window(4)]), [local, local, global]);
    // A window that covers the context keeps the rotation of its layers.
    let covered = (None, LayerRotary::Local);
    assert_eq!(layers(&[window(256)]), [covered, covered, global]);
    // Without a window, as in Rnj-1, all layers are alike.
    assert_eq!(layers(&[]), [global; 3]);
    assert_eq!(layers(&[window(0)]), [global; 3]);
    assert_eq!(layers(&[window(4), pattern(Value::U32(2))]), [local, global, global]);
    assert_eq!(layers(&[window(4), pattern(Value::U32(1))]), [global; 3]);
    assert_eq!(layers(&[window(4), flags(&[true, false, true, true, true, true, false])]), [local, global, local]);
    let error = config(&[window(4), flags(&[true; 6])]).unwrap_err();
    assert!(error.to_string().contains("each of 7 layers"), "{error}");
}

#[test]
fn a_size_that_is_the_same_in_each_layer_is_read() {
    let sizes = |values: [u32; 2]| Value::Array(values.map(Value::U32).to_vec());
    let with = |key: &str, value: Value| gguf_config("llama", &[(key, value)]);
    assert_eq!(with("attention.head_count_kv", sizes([1, 1])).unwrap().kv_heads, 1);
    assert_eq!(with("feed_forward_length", sizes([32, 32])).unwrap().ffn, 32);
    let error = with("attention.head_count_kv", sizes([2, 1])).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains("head_count_kv"), "{error}");
    let error = with("attention.head_count_kv", Value::String("two".to_owned())).unwrap_err();
    assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains("integer"), "{error}");
}

#[test]
fn content_has_an_id() {
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.gguf");
    let two = folder.path().join("two.gguf");
    write_gguf(&one, "llama", GgmlDType::F32, Vec::new());
    std::fs::copy(&one, &two).unwrap();
    let id = Weights::open(&one).unwrap().id();
    assert_eq!(id, Weights::open(&two).unwrap().id());
    let mut bytes = std::fs::read(&two).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    std::fs::write(&two, bytes).unwrap();
    assert_ne!(id, Weights::open(&two).unwrap().id());
}

#[test]
fn the_configuration_is_part_of_the_id() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), "llama", false);
    let id = Weights::open(folder.path()).unwrap().id();
    assert_eq!(id, Weights::open(folder.path()).unwrap().id());
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["rope_theta"] = 30_000.0.into();
    std::fs::write(&path, config.to_string()).unwrap();
    assert_ne!(id, Weights::open(folder.path()).unwrap().id());
}

/// Reads everything that loading a model reads.
fn use_everything(path: &Path) -> Result<(), ModelError> {
    let weights = Weights::open(path)?;
    for (name, _) in tensors() {
        weights.tensor(&name)?.to_f32()?;
    }
    if let Some(gguf) = weights.gguf() {
        let _ = (gguf.texts("tokenizer.ggml.tokens"), gguf.numbers("tokenizer.ggml.token_type").map(Iterator::count));
    }
    Ok(())
}

fn little_gguf(path: &Path) -> Vec<u8> {
    let tokens = (0..40).map(|id| Value::String(format!("token {id}"))).collect();
    let types = (0..40).map(|_| Value::I32(1)).collect();
    let extra = vec![
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(tokens)),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(types)),
    ];
    write_gguf(path, "llama", GgmlDType::Q8_0, extra);
    use_everything(path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_truncated_gguf_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("little.gguf");
    let whole = little_gguf(&path);
    // The last tensor is padded to the alignment of 32.
    for len in (0..whole.len() - 32).step_by(37) {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Weights::open(&path).unwrap_err();
        assert!(matches!(error, ModelError::Corrupt { .. }), "{len}: {error}");
        assert!(error.to_string().contains("little.gguf"), "{len}: {error}");
    }
}

#[test]
fn a_truncated_safetensors_file_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), "llama", false);
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(997) {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Weights::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("model.safetensors"), "{len}: {error}");
    }
}

#[test]
fn absurd_counts_are_refused_without_allocating() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absurd.gguf");
    let mut head = b"GGUF\x03\0\0\0".to_vec();
    for (tensors, entries) in [(u64::MAX, 0), (0, u64::MAX), (1 << 40, 1 << 40)] {
        let mut bytes = head.clone();
        bytes.extend(u64::to_le_bytes(tensors));
        bytes.extend(u64::to_le_bytes(entries));
        std::fs::write(&path, bytes).unwrap();
        assert!(Gguf::open(&path).unwrap_err().to_string().contains("number of"));
    }
    // One entry: an array of 2^60 texts.
    head.extend([0u64.to_le_bytes(), 1u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
    head.push(b'k');
    head.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
    head.extend((1u64 << 60).to_le_bytes());
    std::fs::write(&path, head).unwrap();
    assert!(Gguf::open(&path).unwrap_err().to_string().contains("1152921504606846976"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        wide in proptest::option::of((any::<prop::sample::Index>(), any::<u64>())),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("little.gguf");
        let mut bytes = little_gguf(&path);
        // Nine in ten changes hit the header, where they can do harm.
        for (at, value) in changes {
            let reach = if value % 10 == 0 { bytes.len() } else { 2500 };
            let at = at.index(reach);
            bytes[at] = value;
        }
        if let Some((at, value)) = wide {
            let at = at.index(2500);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(&path, bytes).unwrap();
        let _ = use_everything(&path);
    }
}
