//! Agreement of the learner's scores with the decoder's logits, with and without an adapter that passes through a
//! file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod pulled;

use std::path::Path;
use std::sync::Arc;

use fixture::{decoder, decoder_in, path, whole};
use waymark_models::gradient::{Learner, Lora, Module, Pack, Precision, Score, ScoredModel, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{Arithmetic, ModelError};

fn learner(from: &Path, targets: &[Module], alpha: f32) -> Learner {
    learner_in(from, targets, alpha, Arithmetic::F32)
}

fn learner_in(from: &Path, targets: &[Module], alpha: f32, arithmetic: Arithmetic) -> Learner {
    let tune = Tune::Lora(Lora { rank: 4, alpha, targets: targets.to_vec(), seed: 1 });
    let weights = Weights::open(from).unwrap();
    let team = Arc::new(Team::new(2));
    let mut learner = Learner::load_with(&weights, team, &tune, arithmetic).unwrap();
    let values: Vec<f32> = (0..learner.values().len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 900.0).collect();
    learner.set_values(&values).unwrap();
    learner
}

fn sequence(tokens: &[u32]) -> Pack {
    let mut pack = Pack::new();
    pack.push(tokens, None);
    (1..tokens.len()).for_each(|index| pack.target(0, index));
    pack
}

/// Scores computed from the decoder's logits, in `f64`.
fn served(logits: &[Vec<f32>], tokens: &[u32]) -> Vec<(f64, f64)> {
    let score = |(logits, &token): (&Vec<f32>, &u32)| {
        let total = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        let logprobs: Vec<f64> = logits.iter().map(|&l| f64::from(l) - total).collect();
        (logprobs[token as usize], -logprobs.iter().map(|l| l.exp() * l).sum::<f64>())
    };
    logits.iter().zip(&tokens[1..]).map(score).collect()
}

/// Largest difference of log-probabilities and entropies. Infinite if any value is NaN.
fn difference(scores: &[Score], served: &[(f64, f64)]) -> f64 {
    assert_eq!(scores.len(), served.len());
    let both = |(score, &(logprob, entropy)): (&Score, &(f64, f64))| {
        [f64::from(score.logprob) - logprob, f64::from(score.entropy) - entropy]
    };
    let differences = scores.iter().zip(served).flat_map(both);
    // `f64::max` would drop a NaN.
    differences.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d.abs()) })
}

/// Compares a learner and a decoder in the same arithmetic, with and without an adapter saved by the learner.
fn agree(from: &Path, tokens: &[u32], targets: &[Module], arithmetic: Arithmetic) -> f64 {
    apart(from, tokens, targets, [arithmetic; 2])
}

/// Compares a learner and a decoder in the given arithmetics.
fn apart(from: &Path, tokens: &[u32], targets: &[Module], [trained, served_in]: [Arithmetic; 2]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("adapter");
    let mut learner = learner_in(from, targets, 6.0, trained);
    learner.save_adapter(&dir, "a base").unwrap();
    let mut decoder = decoder_in(from, served_in);
    let slot = decoder.load_adapter(&dir).unwrap();
    let pack = sequence(tokens);
    let mut apart = 0.0f64;
    let mut seen = Vec::new();
    for (model, slot) in [(ScoredModel::Base, None), (ScoredModel::Adapted, Some(slot))] {
        let scores = learner.score(&pack, model).unwrap();
        apart = apart.max(difference(&scores, &served(&whole(&mut decoder, tokens, slot), tokens)));
        seen.push(scores);
    }
    assert!(seen[0] != seen[1], "the adapter does nothing");
    apart
}

#[test]
fn tiny_models_score_as_they_are_served() {
    let tokens: Vec<u32> = (0..90u32).map(|i| i * i % 251).collect();
    for name in ["llama", "qwen2", "qwen3"] {
        for targets in [&Module::ALL[..], &[Module::OProj, Module::UpProj]] {
            let exact = agree(&path(name), &tokens, targets, Arithmetic::F32);
            assert!(exact < 1e-4, "{name}: {exact}");
            // A difference in the last digit may round an activation to the other neighboring bf16.
            let alike = agree(&path(name), &tokens, targets, Arithmetic::Bf16);
            assert!(alike < 1e-1, "{name}: {alike} in bf16");
            for mixed in [[Arithmetic::Bf16, Arithmetic::F32], [Arithmetic::F32, Arithmetic::Bf16]] {
                let unlike = apart(&path(name), &tokens, targets, mixed);
                println!("{name}, {} modules: {alike:.1e} both in bf16, {unlike:.1e} in {mixed:?}", targets.len());
                assert!(alike < unlike, "{name}: {alike} both in bf16, {unlike} in {mixed:?}");
            }
        }
    }
}

#[test]
fn smollm2_scores_as_it_is_served() {
    let tokens: Vec<u32> = (0..70u32).map(|i| (i * i * 31 + 7) % 49_152).collect();
    let Some(policy) = pulled::policy_if_reachable() else { return };
    let apart = agree(&policy, &tokens, &Module::ALL[..4], Arithmetic::F32);
    let rounded = agree(&policy, &tokens, &Module::ALL[..4], Arithmetic::Bf16);
    println!("smollm2: max difference {apart:.1e}, {rounded:.1e} in bf16");
    assert!(apart < 1e-4 && rounded < 1e-1, "{apart} {rounded}");
}

/// A learner of all weights.
fn whole_learner(from: &Path) -> Learner {
    Learner::load(&Weights::open(from).unwrap(), Arc::new(Team::new(2)), &Tune::Full).unwrap()
}

#[test]
fn a_decoder_takes_all_weights_as_they_were_learned() {
    let tokens: Vec<u32> = (0..90u32).map(|i| i * i % 251).collect();
    let pack = sequence(&tokens);
    for name in ["llama", "qwen2", "qwen3"] {
        let from = path(name);
        let mut learner = whole_learner(&from);
        let mut decoder = decoder(&from);
        let before = served(&whole(&mut decoder, &tokens, None), &tokens);
        // Changes every tensor: matrices, norms and biases.
        learner.change(|values, _| {
            values.iter_mut().enumerate().for_each(|(at, value)| *value *= 1.0 + (at % 5) as f32 / 10.0)
        });
        let scores = learner.score(&pack, ScoredModel::Adapted).unwrap();
        assert!(difference(&scores, &before) > 1e-2, "{name}: the change does nothing");
        decoder.replace_weights(&learner.weights().unwrap()).unwrap();
        let apart = difference(&scores, &served(&whole(&mut decoder, &tokens, None), &tokens));
        assert!(apart < 1e-4, "{name}: {apart}");
    }
}

#[test]
fn weights_of_another_shape_are_refused_and_change_nothing() {
    let tokens: Vec<u32> = (0..40).collect();
    let mut decoder = decoder(&path("qwen3"));
    let before = whole(&mut decoder, &tokens, None);
    let other = whole_learner(&path("llama"));
    assert!(decoder.replace_weights(&other.weights().unwrap()).unwrap_err().to_string().contains("another shape"));
    let lacking =
        Weights::in_memory(decoder.config().clone(), [("model.norm.weight".to_owned(), vec![2])], vec![0.0; 2]);
    assert!(matches!(decoder.replace_weights(&lacking.unwrap()), Err(ModelError::Tensor { .. })));
    assert_eq!(whole(&mut decoder, &tokens, None), before);
    let few = Weights::in_memory(decoder.config().clone(), [("model.norm.weight".to_owned(), vec![2])], vec![0.0; 3]);
    assert!(few.unwrap_err().to_string().contains("3 values: the tensors need 2"));
}

#[test]
fn all_weights_are_taken_from_a_checkpoint() {
    let from = path("qwen3");
    let first = whole_learner(&from);
    let mut again = whole_learner(&from);
    again.change(|values, _| values.fill(0.25));
    again.load_weights(&Weights::open(&from).unwrap()).unwrap();
    assert_eq!(again.values(), first.values());
    assert!(again.load_weights(&Weights::open(&path("llama")).unwrap()).is_err());
    assert_eq!(again.values(), first.values());
    let mut adapter = learner(&from, &[Module::QProj], 8.0);
    assert!(adapter.weights().unwrap_err().to_string().contains("an adapter is trained"));
    assert!(adapter.load_weights(&Weights::open(&from).unwrap()).is_err());
}

#[test]
fn an_adapter_comes_back_as_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("runs/adapter");
    std::fs::create_dir(folder.path().join("runs")).unwrap();
    let from = path("qwen3");
    let first = learner(&from, &[Module::VProj, Module::GateProj], 8.0);
    let mut again = learner(&from, &[Module::VProj, Module::GateProj], 8.0);
    again.set_values(&vec![0.25; first.values().len()]).unwrap();
    again.save_adapter(&dir, "a base").unwrap();
    first.save_adapter(&dir, "a base").unwrap();
    let left: Vec<_> =
        std::fs::read_dir(dir.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["adapter"], "nothing else is left");
    again.load_adapter(&dir).unwrap();
    assert_eq!(again.values(), first.values());
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("adapter_config.json")).unwrap()).unwrap();
    for (key, value) in [
        ("peft_type", serde_json::json!("LORA")),
        ("task_type", serde_json::json!("CAUSAL_LM")),
        ("r", serde_json::json!(4)),
        ("lora_alpha", serde_json::json!(8)),
        ("bias", serde_json::json!("none")),
        ("base_model_name_or_path", serde_json::json!("a base")),
        ("target_modules", serde_json::json!(["v_proj", "gate_proj"])),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    let mut scaled = learner(&from, &[Module::VProj, Module::GateProj], 4.0);
    assert!(scaled.load_adapter(&dir).unwrap_err().to_string().contains("scale 2"));
    for other in [&Module::ALL[..], &[Module::VProj]] {
        let mut other = learner(&from, other, 8.0);
        let before = other.values().to_vec();
        assert!(other.load_adapter(&dir).is_err());
        assert_eq!(other.values(), before);
    }
}

#[test]
fn half_precision_rounds_every_value() {
    let folder = tempfile::tempdir().unwrap();
    let from = path("llama");
    let size = |dir: &Path| -> usize {
        let bytes = std::fs::read(dir.join("adapter_model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.iter().map(|(_, tensor)| tensor.data().len()).sum()
    };
    let first = learner(&from, &Module::ALL, 8.0);
    let whole = folder.path().join("whole");
    first.save_adapter(&whole, "a base").unwrap();
    assert_eq!(size(&whole), 4 * first.values().len());
    for precision in [Precision::F16, Precision::Bf16] {
        let round = |value: f32| match precision {
            Precision::F32 => value,
            Precision::F16 => half::f16::from_f32(value).to_f32(),
            Precision::Bf16 => half::bf16::from_f32(value).to_f32(),
        };
        let dir = folder.path().join(format!("{precision:?}"));
        first.save_adapter_as(&dir, "a base", precision).unwrap();
        assert_eq!(size(&dir), 2 * first.values().len(), "{precision:?}");
        let mut again = learner(&from, &Module::ALL, 8.0);
        again.load_adapter(&dir).unwrap();
        let expected: Vec<f32> = first.values().iter().map(|&value| round(value)).collect();
        assert_eq!(again.values(), expected, "{precision:?}");
        assert_ne!(again.values(), first.values(), "{precision:?}");
        decoder(&from).load_adapter(&dir).unwrap();
    }
    let mut large = learner(&from, &[Module::QProj], 8.0);
    large.change(|values, _| values[3] = 1e5);
    let dir = folder.path().join("large");
    let error = large.save_adapter_as(&dir, "a base", Precision::F16).unwrap_err().to_string();
    assert!(error.contains("q_proj.lora_A") && error.contains("100000"), "{error}");
    assert!(!dir.exists());
    large.save_adapter_as(&dir, "a base", Precision::Bf16).unwrap();
}

#[test]
fn nothing_but_an_adapter_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("adapter");
    let learner = learner(&path("llama"), &[Module::QProj], 8.0);
    learner.save_adapter(&dir, "first").unwrap();
    std::fs::write(dir.join("README.md"), "notes").unwrap();
    learner.save_adapter(&dir, "second").unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("README.md")).unwrap(), "notes");
    std::fs::write(dir.join("thesis.tex"), "").unwrap();
    let error = learner.save_adapter(&dir, "third").unwrap_err().to_string();
    assert!(error.contains("holds thesis.tex"), "{error}");
    let config = || std::fs::read_to_string(dir.join("adapter_config.json")).unwrap();
    assert!(dir.join("thesis.tex").exists() && config().contains("second"));
    std::fs::remove_file(dir.join("thesis.tex")).unwrap();
    // State left by a process killed between the two renames.
    let old = folder.path().join(".adapter.old");
    std::fs::rename(&dir, &old).unwrap();
    std::fs::write(old.join("thesis.tex"), "").unwrap();
    assert!(learner.save_adapter(&dir, "third").is_err());
    assert!(config().contains("second"), "it has its name back");
    assert!(!old.exists());
}

#[test]
fn values_that_are_no_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("adapter");
    let from = path("llama");
    let mut learner = learner(&from, &[Module::QProj], 8.0);
    learner.save_adapter(&dir, "a base").unwrap();
    let file = dir.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let error = learner.load_adapter(&dir).unwrap_err();
    assert!(matches!(error, ModelError::Corrupt { .. }));
    let error = error.to_string();
    assert!(error.contains("layers.") && error.contains("q_proj.lora_") && error.contains("NaN"), "{error}");
    assert!(learner.values().iter().all(|value| value.is_finite()));
    assert!(decoder(&from).load_adapter(&dir).is_err());
    learner.change(|values, _| values[0] = f32::INFINITY);
    assert!(learner.save_adapter(&dir, "a base").unwrap_err().to_string().contains("inf"));
}
