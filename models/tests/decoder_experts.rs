//! Logits of families with experts, in both layouts, against `scripts/parity/experts.py`, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fixture::{decoder, parity};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use waymark_models::architecture::Experts;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::weights::{Weights, write_random};

const TOLERANCE: f32 = 1e-3;
const FAMILIES: [&str; 3] = ["qwen3-moe", "qwen2-moe", "mixtral"];

fn path(name: &str) -> PathBuf {
    fixture::path("../experts").join(name)
}

fn agrees(name: &str) {
    for from in [path(name), path(name).join("gguf")] {
        let difference = parity(&mut decoder(&from), &path(name).join("expected.safetensors"), None);
        println!("{}: max abs difference {difference:.2e}", from.display());
        assert!(difference < TOLERANCE, "{}: {difference}", from.display());
    }
}

#[test]
fn qwen3_moe_agrees_with_the_reference() {
    agrees("qwen3-moe");
}

#[test]
fn qwen2_moe_agrees_with_the_reference() {
    agrees("qwen2-moe");
}

#[test]
fn mixtral_agrees_with_the_reference() {
    agrees("mixtral");
}

#[test]
fn both_layouts_are_described_alike_and_have_as_many_parameters_as_the_file() {
    for name in FAMILIES {
        let hf = Weights::open(&path(name)).unwrap();
        let gguf = Weights::open(&path(name).join("gguf")).unwrap();
        assert_eq!(hf.config(), gguf.config(), "{name}");
        let bytes = std::fs::read(path(name).join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values: usize = file.iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum();
        assert_eq!(hf.config().parameters(), values as u64, "{name}");
        assert!(hf.has("model.layers.0.mlp.experts.1.up_proj.weight"), "{name}");
        assert!(gguf.has("model.layers.0.mlp.experts.1.up_proj.weight"), "{name}");
    }
}

#[test]
fn experts_are_read_from_the_configuration() {
    let experts = |name: &str| Weights::open(&path(name)).unwrap().config().architecture.experts.clone().unwrap();
    let plain = Experts { count: 8, per_token: 3, width: 40, normalized: true, shared: None, dense_layers: vec![1] };
    assert_eq!(experts("qwen3-moe"), plain);
    let shared =
        Experts { count: 6, per_token: 2, width: 24, normalized: false, shared: Some(64), dense_layers: Vec::new() };
    assert_eq!(experts("qwen2-moe"), shared);
    let mixtral =
        Experts { count: 4, per_token: 2, width: 48, normalized: true, shared: None, dense_layers: Vec::new() };
    assert_eq!(experts("mixtral"), mixtral);
    let every_other = changed("qwen2-moe", "decoder_sparse_step", json!(2)).unwrap();
    assert_eq!(every_other.config().architecture.experts.as_ref().unwrap().dense_layers, [0]);
    // The only layer that would have experts is listed as one without.
    let none = changed("qwen3-moe", "decoder_sparse_step", json!(2)).unwrap();
    assert_eq!(none.config().architecture.experts, None);
}

/// Opens a copy of a fixture with one field of its configuration changed.
fn changed(name: &str, key: &str, value: Value) -> Result<Weights, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(path(name).join("config.json")).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    Weights::open(folder.path()).map_err(|error| error.to_string())
}

/// Error of loading a copy of a fixture with one field of its configuration changed.
fn refused(name: &str, key: &str, value: Value) -> String {
    match changed(name, key, value) {
        Ok(weights) => Decoder::load(&weights, Arc::new(Team::new(1))).unwrap_err().to_string(),
        Err(error) => error,
    }
}

#[test]
fn numbers_that_do_not_fit_the_tensors_are_refused_by_name() {
    let error = refused("qwen3-moe", "num_experts", json!(9));
    assert!(error.contains("model.layers.0.mlp.gate.weight: shape [8, 32], expected [9, 32]"), "{error}");
    let error = refused("qwen3-moe", "mlp_only_layers", json!([]));
    assert!(error.contains("tensor model.layers.1.mlp.gate.weight: not in"), "{error}");
    let error = refused("qwen3-moe", "moe_intermediate_size", json!(48));
    assert!(error.contains("mlp.experts.0.gate_proj.weight: shape [40, 32], expected [48, 32]"), "{error}");
    let error = refused("qwen3-moe", "num_experts_per_tok", json!(9));
    assert!(error.contains("experts per token is 9, not from 1 to 8"), "{error}");
    let error = refused("qwen3-moe", "num_experts_per_tok", json!(null));
    assert!(error.contains("qwen3_moe without num_experts_per_tok"), "{error}");
    let error = refused("qwen2-moe", "shared_expert_intermediate_size", json!(null));
    assert!(error.contains("qwen2_moe without shared_expert_intermediate_size"), "{error}");
    let error = refused("mixtral", "num_local_experts", json!(5));
    assert!(error.contains("mlp.gate.weight: shape [4, 32], expected [5, 32]"), "{error}");
}

#[test]
fn routers_and_families_that_no_pass_computes_are_refused_by_name() {
    for (kind, words) in [
        ("gpt_oss", "attention sinks"),
        ("llama4", "chunked attention"),
        ("deepseek_v3", "sigmoid router with a bias"),
        ("deepseek_v2", "latent attention"),
        ("glm4_moe", "sigmoid router"),
    ] {
        let error = refused("mixtral", "model_type", json!(kind));
        assert!(error.contains(words) && error.contains("mixtral"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path("qwen3-moe").join("config.json"), folder.path().join("config.json")).unwrap();
    let bias = ("model.layers.2.mlp.gate.bias".to_owned(), vec![8], vec![0.0; 8]);
    save(folder.path(), "model.safetensors", &[tensors("qwen3-moe"), vec![bias]].concat());
    let error = Weights::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("router of experts (model.layers.2.mlp.gate.bias)"), "{error}");
}

#[test]
fn random_checkpoints_have_no_experts() {
    let weights = Weights::open(&path("qwen2-moe")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = write_random(folder.path(), weights.config(), 1).unwrap_err().to_string();
    assert!(error.contains("do not support experts"), "{error}");
}

#[test]
fn experts_merged_as_in_memory_are_read_alike() {
    for name in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(path(name).join("config.json"), folder.path().join("config.json")).unwrap();
        save(folder.path(), "model.safetensors", &merged(&Weights::open(&path(name)).unwrap(), tensors(name)));
        let apart = parity(&mut decoder(folder.path()), &path(name).join("expected.safetensors"), None);
        assert!(apart < TOLERANCE, "{name}: {apart}");
    }
}

/// Tensors with all experts of a layer in `gate_up_proj` and `down_proj`, as `transformers` 5 has them in memory.
fn merged(weights: &Weights, mut tensors: Vec<NamedValues>) -> Vec<NamedValues> {
    let config = weights.config();
    let experts = config.architecture.experts.as_ref().unwrap();
    tensors.retain(|(name, ..)| !name.contains(".experts."));
    for (name, ..) in &mut tensors {
        *name = name.replace("block_sparse_moe", "mlp");
    }
    for layer in (0..config.layers).filter(|layer| config.architecture.experts(*layer).is_some()) {
        let path = format!("model.layers.{layer}.mlp.experts");
        let values = |expert: usize, part: &str| {
            weights.tensor(&format!("{path}.{expert}.{part}_proj.weight")).unwrap().to_f32().unwrap()
        };
        let all = |parts: &[&str]| {
            (0..experts.count).flat_map(|expert| parts.iter().flat_map(move |part| values(expert, part))).collect()
        };
        let wide = vec![experts.count, 2 * experts.width, config.hidden];
        tensors.push((format!("{path}.gate_up_proj"), wide, all(&["gate", "up"])));
        let down = vec![experts.count, config.hidden, experts.width];
        tensors.push((format!("{path}.down_proj"), down, all(&["down"])));
    }
    tensors
}

type NamedValues = (String, Vec<usize>, Vec<f32>);

/// Tensors of a fixture in `f32`.
fn tensors(name: &str) -> Vec<NamedValues> {
    let weights = Weights::open(&path(name)).unwrap();
    let bytes = std::fs::read(path(name).join("model.safetensors")).unwrap();
    let names: Vec<String> =
        SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(ToString::to_string).collect();
    let read = |name: String| {
        let view = weights.tensor(&name).unwrap();
        (name, view.shape.clone(), view.to_f32().unwrap())
    };
    names.into_iter().map(read).collect()
}

fn save(folder: &Path, file: &str, tensors: &[NamedValues]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(folder.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Writes an adapter of rank 2 in PEFT's layout on one projection of the first layer.
fn write_adapter(dir: &Path, path: &str, [out, inn]: [usize; 2]) {
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
    std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    let name = |side: &str| format!("base_model.model.model.layers.0.{path}.lora_{side}.weight");
    let pair = [(name("A"), vec![2, inn], vec![0.1; 2 * inn]), (name("B"), vec![out, 2], vec![0.1; 2 * out])];
    save(dir, "adapter_model.safetensors", &pair);
}

#[test]
fn adapters_on_attention_agree_with_the_reference() {
    for name in FAMILIES {
        let adapter = path(name).join("adapter");
        for from in [path(name), path(name).join("gguf")] {
            let mut decoder = decoder(&from);
            let slot = decoder.load_adapter(&adapter).unwrap();
            let expected = adapter.join("expected.safetensors");
            let adapted = parity(&mut decoder, &expected, Some(slot));
            assert!(adapted < TOLERANCE, "{}: {adapted}", from.display());
            assert!(parity(&mut decoder, &expected, None) > 0.1, "{}: the adapter changes nothing", from.display());
        }
    }
}

#[test]
fn adapters_on_experts_are_refused_with_the_way_out() {
    let mut decoder = decoder(&path("qwen3-moe"));
    let mut refused = |path: &str, shape: [usize; 2]| {
        let dir = tempfile::tempdir().unwrap();
        write_adapter(dir.path(), path, shape);
        decoder.load_adapter(dir.path()).unwrap_err().to_string()
    };
    for (path, shape) in [("mlp.experts.3.up_proj", [40, 32]), ("mlp.gate", [8, 32])] {
        let error = refused(path, shape);
        assert!(error.contains(path) && error.contains("q_proj, k_proj, v_proj and o_proj"), "{error}");
    }
    let error = refused("mlp.gate_proj", [48, 32]);
    assert!(error.contains("layer 0 of the base model has experts"), "{error}");
}
