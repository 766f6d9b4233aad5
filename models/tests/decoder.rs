//! Logits of small random checkpoints and adapters against `transformers` and `peft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{decoder, difference, parity, path, whole};

const TOLERANCE: f32 = 1e-3;

fn agrees(name: &str) {
    let mut decoder = decoder(&path(name));
    let difference = parity(&mut decoder, &path(name.trim_end_matches("-sharded")).join("expected.safetensors"), None);
    println!("{name}: max abs difference {difference:.2e}");
    assert!(difference < TOLERANCE, "{name}: {difference}");
}

#[test]
fn qwen2_agrees_with_transformers() {
    agrees("qwen2");
}

#[test]
fn qwen2_in_shards_agrees_with_transformers() {
    agrees("qwen2-sharded");
}

#[test]
fn qwen3_agrees_with_transformers() {
    agrees("qwen3");
}

#[test]
fn llama_with_own_output_and_scaled_rope_agrees_with_transformers() {
    agrees("llama");
}

#[test]
fn adapters_agree_with_peft_and_leave_no_trace() {
    let mut decoder = decoder(&path("qwen3"));
    let before = whole(&mut decoder, &[1, 2, 3, 4, 5], None);
    for name in ["full", "rslora"] {
        let dir = path("qwen3-adapters").join(name);
        let slot = decoder.load_adapter(&dir).expect("the adapter loads");
        let with = parity(&mut decoder, &dir.join("expected.safetensors"), Some(slot));
        let without = parity(&mut decoder, &dir.join("expected.safetensors"), None);
        println!("{name}: max abs difference {with:.2e}, without the adapter {without:.2e}");
        assert!(with < TOLERANCE, "{name}: {with}");
        assert!(without > 0.1, "the adapter changes nothing: {without}");
        decoder.unload_adapter(slot);
    }
    let after = whole(&mut decoder, &[1, 2, 3, 4, 5], None);
    assert_eq!(difference(&before.concat(), &after.concat()), 0.0);
}
