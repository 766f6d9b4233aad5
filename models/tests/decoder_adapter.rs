//! Refusal of unsupported adapters, and reuse of adapter slots.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::fs;

use fixture::{decoder, path, whole};
use serde_json::{Value, json};
use tempfile::TempDir;
use waymark_models::ModelError;

/// A copy of the fixture's adapter with one setting changed.
fn changed(key: &str, value: Value) -> TempDir {
    let from = path("qwen3-adapters/full");
    let to = TempDir::new().unwrap();
    let config = fs::read_to_string(from.join("adapter_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config[key] = value;
    fs::write(to.path().join("adapter_config.json"), config.to_string()).unwrap();
    fs::copy(from.join("adapter_model.safetensors"), to.path().join("adapter_model.safetensors")).unwrap();
    to
}

#[test]
fn what_would_be_ignored_is_refused_by_name() {
    let mut decoder = decoder(&path("qwen3"));
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("fan_in_fan_out", json!(true)),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("trainable_token_indices", json!([1])),
        ("modules_to_save", json!(["norm"])),
        ("rank_pattern", json!({"(?!q_proj)": 8})),
        ("ensure_weight_tying", json!(true)),
    ] {
        let dir = changed(key, value);
        let error = decoder.load_adapter(dir.path()).unwrap_err();
        assert!(matches!(&error, ModelError::Unsupported { what, .. } if what.contains(key)), "{key}: {error}");
    }
}

#[test]
fn settings_without_their_tensors_are_refused() {
    let mut decoder = decoder(&path("qwen3"));
    for (key, value, reason) in [
        ("use_dora", json!(true), "lacks a magnitude vector, but use_dora is true"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save names lm_head, whose weight is missing"),
        ("rank_pattern", json!({"q_proj": 8}), "q_proj lora_A: shape [4, 48], expected [8, 48]"),
        ("rank_pattern", json!({"q_proj": 0}), "0 is not a usable number"),
        ("alpha_pattern", json!({"q_proj": "a"}), "is not a usable number"),
        ("lora_alpha", json!(1e300), "no finite lora_alpha"),
    ] {
        let error = decoder.load_adapter(changed(key, value).path()).unwrap_err().to_string();
        assert!(error.contains(reason), "{key}: {error}");
    }
    // PEFT saves the biases that there are, of which Qwen3 has none.
    decoder.load_adapter(changed("bias", json!("all")).path()).unwrap();
}

#[test]
fn patterns_change_the_scale_of_the_modules_that_they_match() {
    let mut decoder = decoder(&path("qwen3"));
    let tokens = [3, 1, 4, 1, 5];
    let mut with = |dir: &std::path::Path| {
        let slot = decoder.load_adapter(dir).unwrap();
        let logits = whole(&mut decoder, &tokens, Some(slot));
        decoder.unload_adapter(slot);
        logits
    };
    let alpha = serde_json::from_str::<Value>(
        &fs::read_to_string(path("qwen3-adapters/full").join("adapter_config.json")).unwrap(),
    )
    .unwrap()["lora_alpha"]
        .as_f64()
        .unwrap();
    let plain = with(&path("qwen3-adapters/full"));
    assert_eq!(with(changed("alpha_pattern", json!({".*": alpha})).path()), plain);
    assert_eq!(with(changed("alpha_pattern", json!({"proj": 2.0 * alpha})).path()), plain, "whole names match alone");
    let doubled = with(changed("lora_alpha", json!(2.0 * alpha)).path());
    assert_eq!(with(changed("alpha_pattern", json!({r"self_attn\.\w+|\w+_proj": 2.0 * alpha})).path()), doubled);
    assert!(doubled != plain);
}

#[test]
fn what_does_not_fit_or_is_damaged_is_named() {
    let mut decoder = decoder(&path("qwen3"));
    let error = decoder.load_adapter(changed("r", json!(8)).path()).unwrap_err().to_string();
    assert!(error.contains("shape [4, 48], expected [8, 48] for this base model"), "{error}");
    let error = decoder.load_adapter(changed("r", json!(0)).path()).unwrap_err().to_string();
    assert!(error.contains("no positive r"), "{error}");
    let dir = changed("lora_alpha", json!(8));
    let file = dir.path().join("adapter_model.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let error = decoder.load_adapter(dir.path()).unwrap_err();
    assert!(matches!(&error, ModelError::Corrupt { path, .. } if path == &file), "{error}");
    fs::remove_file(&file).unwrap();
    assert!(matches!(decoder.load_adapter(dir.path()).unwrap_err(), ModelError::Io { .. }));
    let mut other = fixture::decoder(&path("llama"));
    let error = other.load_adapter(&path("qwen3-adapters/full")).unwrap_err().to_string();
    assert!(error.contains("for this base model"), "{error}");
}

#[test]
fn slots_are_reused_and_keep_apart() {
    let mut decoder = decoder(&path("qwen3"));
    let tokens = [3, 1, 4, 1, 5];
    let plain = whole(&mut decoder, &tokens, None);
    let full = decoder.load_adapter(&path("qwen3-adapters/full")).unwrap();
    let rslora = decoder.load_adapter(&path("qwen3-adapters/rslora")).unwrap();
    let (with_full, with_rslora) =
        (whole(&mut decoder, &tokens, Some(full)), whole(&mut decoder, &tokens, Some(rslora)));
    assert!(plain != with_full && plain != with_rslora && with_full != with_rslora);
    decoder.unload_adapter(full);
    assert_eq!(whole(&mut decoder, &tokens, Some(rslora)), with_rslora);
    let again = decoder.load_adapter(&path("qwen3-adapters/rslora")).unwrap();
    assert_eq!(again, full, "the freed slot is taken first");
    assert_eq!(whole(&mut decoder, &tokens, Some(again)), with_rslora);
    assert_eq!(whole(&mut decoder, &tokens, None), plain);
}
