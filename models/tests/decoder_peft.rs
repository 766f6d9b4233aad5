//! Adapters that `peft` made for small random checkpoints of every dense family: logits as they are served, and gradients
//! as they are trained; `scripts/parity/adapters.py` writes the fixtures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use fixture::{Tensors, decoder, decoder_in, difference, parity, path, step, table, whole};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, Arithmetic, ForwardBatch, LogitPositions};

const TOLERANCE: f32 = 1e-3;

fn base(family: &str) -> PathBuf {
    match family {
        "llama" | "qwen2" | "qwen3" => path(family),
        _ => path("../families").join(family),
    }
}

fn adapters(family: &str) -> PathBuf {
    path("../adapters").join(family)
}

/// Compares the logits of all adapters of a family.
fn serves(family: &str, kinds: &[&str]) {
    let folder = adapters(family);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), kinds.len(), "kinds of adapters");
    let mut decoder = decoder(&base(family));
    for kind in kinds {
        let dir = folder.join(kind);
        let slot = decoder.load_adapter(&dir).unwrap();
        let with = parity(&mut decoder, &dir.join("expected.safetensors"), Some(slot));
        let without = parity(&mut decoder, &dir.join("expected.safetensors"), None);
        println!("{family}/{kind}: max abs difference {with:.2e}, without the adapter {without:.2e}");
        assert!(with < TOLERANCE, "{family}/{kind}: {with}");
        assert!(without > 0.1, "{family}/{kind} changes nothing: {without}");
        let tokens: Vec<u32> = (0..20).map(|at| at * 7 % 64).collect();
        let all = whole(&mut decoder, &tokens, Some(slot));
        assert!(last(&mut decoder, &tokens, slot) == all[19..], "{family}/{kind}: the last logits alone differ");
        decoder.unload_adapter(slot);
    }
}

/// Logits of the last token with an adapter, from a step in which no other token gets logits.
fn last(decoder: &mut Decoder, tokens: &[u32], slot: AdapterSlot) -> Vec<Vec<f32>> {
    let mut kv = decoder.kv_cache(4);
    let mut batch = ForwardBatch::new();
    batch.push(tokens, 0, &table(0, tokens.len()), None, LogitPositions::Nothing);
    batch.push(tokens, 0, &table(2, tokens.len()), Some(slot), LogitPositions::Last);
    step(decoder, &batch, &mut kv)
}

/// Projections of PEFT's module: the learner's names, with their rows in the fused tensor. `None` for one of its own.
fn parts(family: &str, name: &str, rows: usize) -> Option<Vec<(String, Range<usize>)>> {
    let split = |fused: &str, names: &[(&str, Range<usize>)]| {
        name.contains(fused)
            .then(|| names.iter().map(|(part, rows)| (name.replace(fused, part), rows.clone())).collect::<Vec<_>>())
    };
    if family != "phi3" {
        return None;
    }
    // Two query heads and one of keys and values, of the same width.
    let quarter = rows / 4;
    let qkv = [("q_proj", 0..2 * quarter), ("k_proj", 2 * quarter..3 * quarter), ("v_proj", 3 * quarter..rows)];
    split("qkv_proj", &qkv)
        .or_else(|| split("gate_up_proj", &[("gate_proj", 0..rows / 2), ("up_proj", rows / 2..rows)]))
}

/// Compares the loss and the gradients of a family's plain adapter.
fn trains(family: &str) {
    let dir = adapters(family).join("plain");
    let expected = Tensors::read(&dir.join("expected.safetensors"));
    let saved = Tensors::read(&dir.join("adapter_model.safetensors"));
    let tune = Tune::Lora(Lora { rank: 2, alpha: 5.0, targets: Module::ALL.to_vec(), seed: 0 });
    let weights = Weights::open(&base(family)).unwrap();
    let mut learner = Learner::load(&weights, Arc::new(Team::new(2)), &tune).unwrap();
    if family == "phi3" {
        let mut values = vec![0.0; learner.values().len()];
        each_parameter(family, &saved, &learner, |_, from, to| values[to].copy_from_slice(from));
        learner.set_values(&values).unwrap();
    } else {
        learner.load_adapter(&dir).unwrap();
    }
    let tokens = expected.integers("0.tokens");
    let prompt = expected.integers("prompt")[0] as usize;
    let mut pack = Pack::new();
    let segment = pack.push(&tokens, None);
    (prompt..tokens.len()).for_each(|at| pack.target(segment, at));
    let count = (tokens.len() - prompt) as f32;
    let mut loss = 0.0;
    learner.zero();
    let mut objective = |_: usize, score: Score| {
        loss -= score.logprob / count;
        Slope { logprob: -1.0 / count, entropy: 0.0 }
    };
    learner.learn(&pack, &mut objective).unwrap();
    let wanted = expected.floats("loss")[0];
    assert!((loss - wanted).abs() < 1e-4 * wanted, "{family}: loss {loss}, not {wanted}");
    let mut worst = 0f32;
    let gradients = learner.gradients();
    each_gradient(family, &saved, &expected, &learner, |name, wanted, found| {
        let most = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let apart = difference(&found(gradients), wanted);
        worst = worst.max(apart / most);
        assert!(most > 0.0 && apart < 1e-3 * most, "{family} {name}: {apart} apart of {most}");
    });
    println!("{family}: gradients differ by at most {worst:.1e} of the largest in their tensor");
}

/// Calls `body` with each parameter of the learner, its values in PEFT's tensors, and its place.
fn each_parameter(family: &str, saved: &Tensors, learner: &Learner, mut body: impl FnMut(&str, &[f32], Range<usize>)) {
    for name in saved.names() {
        let values = saved.floats(&name);
        let place = |name: &str| learner.parameters().iter().find(|own| own.name == name).unwrap().range.clone();
        let rank = 2;
        match parts(family, &name, values.len() / rank) {
            None => body(&name, &values, place(&name)),
            // A is shared by all parts; B has rows of its own for each.
            Some(parts) => parts.into_iter().for_each(|(part, rows)| {
                let whole = name.ends_with("lora_A.weight");
                let own = if whole { 0..values.len() } else { rows.start * rank..rows.end * rank };
                body(&part, &values[own], place(&part));
            }),
        }
    }
}

/// Returns the learner's gradient of one of PEFT's tensors.
type FoundGradient<'a> = &'a dyn Fn(&[f32]) -> Vec<f32>;

/// Calls `body` with the name of each of PEFT's tensors, its gradient, and a way to the learner's.
fn each_gradient(
    family: &str,
    saved: &Tensors,
    expected: &Tensors,
    learner: &Learner,
    mut body: impl FnMut(&str, &[f32], FoundGradient<'_>),
) {
    for name in saved.names() {
        let wanted = expected.floats(&format!("gradient.{name}"));
        let place = |name: &str| learner.parameters().iter().find(|own| own.name == name).unwrap().range.clone();
        let places: Vec<Range<usize>> = match parts(family, &name, wanted.len() / 2) {
            None => vec![place(&name)],
            Some(parts) => parts.iter().map(|(part, _)| place(part)).collect(),
        };
        let summed = name.ends_with("lora_A.weight");
        body(&name, &wanted, &|gradients| {
            let own = places.iter().map(|place| gradients[place.clone()].to_vec());
            // A matrix shared by several projections gets the sum of their gradients.
            match summed {
                true => own.reduce(|a, b| a.iter().zip(b).map(|(a, b)| a + b).collect()).unwrap(),
                false => own.flatten().collect(),
            }
        });
    }
}

macro_rules! families {
    ($($family:ident: $($kind:literal)*;)*) => {
        mod serving {
            $(#[test] fn $family() { super::serves(stringify!($family), &["plain", "dora", $($kind),*]); })*
        }
        mod training {
            $(#[test] fn $family() { super::trains(stringify!($family)); })*
        }
    };
}

families! {
    llama:;
    qwen2: "all-biases" "own-biases";
    qwen3: "lora-bias";
    mistral: "saved";
    smollm3:;
    phi3:;
    granite: "lora-bias";
    olmo2: "vocabulary";
    gemma2: "vocabulary";
    gemma3: "saved";
}

#[test]
fn adapters_of_every_kind_share_a_step_and_change_no_bit_of_each_other() {
    let mut decoder = decoder(&base("mistral"));
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    let slots: Vec<_> = ["plain", "dora", "saved"]
        .iter()
        .map(|kind| Some(decoder.load_adapter(&adapters("mistral").join(kind)).unwrap()))
        .chain([None])
        .collect();
    let alone: Vec<_> = slots.iter().map(|slot| whole(&mut decoder, &tokens, *slot)).collect();
    let mut kv = decoder.kv_cache(slots.len());
    let mut batch = waymark_models::ForwardBatch::new();
    for (block, slot) in slots.iter().enumerate() {
        batch.push(&tokens, 0, &[block as u32], *slot, waymark_models::LogitPositions::All);
    }
    let together = fixture::step(&mut decoder, &batch, &mut kv);
    assert_eq!(together, alone.concat());
}

#[test]
fn trained_lengths_hold_in_every_arithmetic() {
    for arithmetic in [Arithmetic::Bf16, Arithmetic::Int16] {
        let mut decoder = decoder_in(&base("olmo2"), arithmetic);
        let dir = adapters("olmo2").join("dora");
        let slot = decoder.load_adapter(&dir).unwrap();
        let with = parity(&mut decoder, &dir.join("expected.safetensors"), Some(slot));
        // Weights and activations of 8 significant bits.
        assert!(with < 0.2, "{arithmetic}: {with}");
    }
}

#[test]
fn weights_are_not_replaced_under_an_adapter_that_was_made_for_them() {
    let weights = Weights::open(&base("mistral")).unwrap();
    let mut decoder = decoder(&base("mistral"));
    let slot = decoder.load_adapter(&adapters("mistral").join("dora")).unwrap();
    let error = decoder.replace_weights(&weights).unwrap_err().to_string();
    assert!(error.contains("unload it first"), "{error}");
    decoder.unload_adapter(slot);
    decoder.load_adapter(&adapters("mistral").join("plain")).unwrap();
    decoder.replace_weights(&weights).unwrap();
}

#[test]
fn what_serving_alone_computes_is_refused_in_training() {
    let tune = Tune::Lora(Lora { rank: 2, alpha: 3.0, targets: Module::ALL.to_vec(), seed: 0 });
    let weights = Weights::open(&base("llama")).unwrap();
    let mut learner = Learner::load(&weights, Arc::new(Team::new(1)), &tune).unwrap();
    let error = learner.load_adapter(&adapters("llama").join("dora")).unwrap_err().to_string();
    assert!(error.contains("use_dora true in training") && error.contains("merge_and_unload"), "{error}");
}
