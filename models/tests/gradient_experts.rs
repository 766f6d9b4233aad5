//! Gradients of adapters on the attention of models with experts, against automatic differentiation in mlx-lm;
//! `scripts/parity/experts.py` writes the fixtures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::sync::Arc;

use fixture::{Tensors, decoder, difference, path, whole};
use waymark_models::Arithmetic;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, ScoredModel, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

const FAMILIES: [&str; 3] = ["qwen3-moe", "qwen2-moe", "mixtral"];
/// Bounds on losses and gradients in `bf16`, relative to `f32`.
const LOSS_APART: f32 = 0.03;
const COSINE: f64 = 0.95;
const COSINE_OF_ONE: f64 = 0.9;
const ATTENTION: [Module; 4] = [Module::QProj, Module::KProj, Module::VProj, Module::OProj];

fn lora(targets: &[Module]) -> Tune {
    Tune::Lora(Lora { rank: 2, alpha: 4.0, targets: targets.to_vec(), seed: 0 })
}

fn learner(name: &str, layout: &str, threads: usize) -> Learner {
    learner_in(name, layout, threads, Arithmetic::F32)
}

fn learner_in(name: &str, layout: &str, threads: usize, arithmetic: Arithmetic) -> Learner {
    let folder = path("../experts").join(name);
    let weights = Weights::open(&folder.join(layout)).unwrap();
    let team = Arc::new(Team::new(threads));
    let mut learner = Learner::load_with(&weights, team, &lora(&ATTENTION), arithmetic).unwrap();
    learner.load_adapter(&folder.join("adapter")).unwrap();
    learner
}

fn expected(name: &str) -> Tensors {
    Tensors::read(&path("../experts").join(name).join("adapter/expected.safetensors"))
}

fn pack(tokens: &[u32]) -> Pack {
    let mut pack = Pack::new();
    let segment = pack.push(tokens, None);
    (1..tokens.len()).for_each(|at| pack.target(segment, at));
    pack
}

/// Pack of so many sequences that several threads share the tokens of an expert.
fn large_pack(name: &str) -> Pack {
    let tokens = expected(name).integers("0.tokens");
    let mut pack = Pack::new();
    for sequence in 0..6 {
        let tokens: Vec<u32> = tokens.iter().map(|token| (token + sequence) % 64).collect();
        let segment = pack.push(&tokens, None);
        (1..tokens.len()).for_each(|at| pack.target(segment, at));
    }
    pack
}

/// Mean loss of a pack; leaves its gradients in the learner.
fn learn(learner: &mut Learner, pack: &Pack) -> f32 {
    let count = pack.targets().len() as f32;
    let mut loss = 0.0;
    learner.zero();
    let mut objective = |_: usize, score: Score| {
        loss -= score.logprob / count;
        Slope { logprob: -1.0 / count, entropy: 0.0 }
    };
    learner.learn(pack, &mut objective).unwrap();
    loss
}

#[test]
fn gradients_pass_through_experts_and_routers_as_in_mlx() {
    for name in FAMILIES {
        let expected = expected(name);
        let pack = pack(&expected.integers("0.tokens"));
        for layout in ["", "gguf"] {
            let mut learner = learner(name, layout, 2);
            let loss = learn(&mut learner, &pack);
            assert!((loss - expected.floats("loss")[0]).abs() < 1e-4, "{name} {layout}: loss {loss}");
            assert_eq!(learner.parameters().len(), learner.config().layers * 8);
            for parameter in learner.parameters() {
                let gradient = expected.floats(&parameter.name);
                let most = gradient.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let apart = difference(&learner.gradients()[parameter.range.clone()], &gradient);
                assert!(most > 1e-4 && apart < 1e-3 * most, "{name} {layout}, {}: {apart} of {most}", parameter.name);
            }
        }
    }
}

#[test]
fn threads_and_recomputed_layers_change_no_bit_and_a_limit_takes_less_memory() {
    for name in FAMILIES {
        let pack = large_pack(name);
        let mut one = learner(name, "", 1);
        let mut other = learner(name, "", 3);
        let all = other.bytes_of(&pack);
        other.set_limit(Some(0));
        let least = other.bytes_of(&pack);
        assert!(least < all, "{name}: {least} of {all} bytes");
        other.set_limit(Some(least));
        assert_eq!(learn(&mut one, &pack), learn(&mut other, &pack));
        assert!(one.gradients() == other.gradients(), "{name}");
        assert!(one.bytes_of(&pack) > one.bytes_of(&self::pack(&[1, 2, 3])), "{name}");
    }
}

/// The router is computed in `f32`, but from inputs that attention in `bf16` has rounded, so a token near the
/// boundary between two experts may choose the other one. Hence the wide bounds, for random weights of 32 values per row.
#[test]
fn gradients_in_bf16_are_close_to_those_in_f32() {
    for name in FAMILIES {
        let pack = pack(&expected(name).integers("0.tokens"));
        let mut exact = learner_in(name, "", 2, Arithmetic::F32);
        let mut rounded = learner_in(name, "", 2, Arithmetic::Bf16);
        let loss = learn(&mut exact, &pack);
        let apart = (learn(&mut rounded, &pack) - loss).abs() / loss;
        let mut least = 1.0f64;
        for parameter in exact.parameters() {
            let [expected, found] = [&exact, &rounded].map(|learner| &learner.gradients()[parameter.range.clone()]);
            let cosine = cosine(expected, found);
            println!("{name}, {}: cosine {cosine:.5}", parameter.name);
            least = least.min(cosine);
        }
        let whole = cosine(exact.gradients(), rounded.gradients());
        println!("{name}: losses {apart:.1e} apart, cosine {whole:.5}, at least {least:.5} per parameter");
        assert!(apart > 0.0 && apart < LOSS_APART, "{name}: losses are {apart} apart");
        assert!(whole > COSINE && least > COSINE_OF_ONE, "{name}: cosine {whole}, at least {least} per parameter");
    }
}

#[test]
fn in_bf16_too_threads_and_recomputed_layers_change_no_bit() {
    for name in FAMILIES {
        let pack = large_pack(name);
        let mut one = learner_in(name, "", 1, Arithmetic::Bf16);
        let loss = learn(&mut one, &pack);
        for threads in [2, 3] {
            let mut other = learner_in(name, "", threads, Arithmetic::Bf16);
            assert_eq!(learn(&mut other, &pack), loss, "{name} with {threads} threads");
            other.set_limit(Some(0));
            let least = other.bytes_of(&pack);
            other.set_limit(Some(least));
            assert_eq!(learn(&mut other, &pack), loss, "{name}, recomputed");
            assert!(one.gradients() == other.gradients(), "{name} with {threads} threads");
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn the_learner_scores_what_the_decoder_serves() {
    for name in FAMILIES {
        let tokens = expected(name).integers("0.tokens");
        let folder = path("../experts").join(name);
        let mut decoder = decoder(&folder);
        let slot = decoder.load_adapter(&folder.join("adapter")).unwrap();
        let logits = whole(&mut decoder, &tokens, Some(slot));
        let scores = learner(name, "", 2).score(&pack(&tokens), ScoredModel::Adapted).unwrap();
        for ((logits, token), score) in logits.iter().zip(&tokens[1..]).zip(scores) {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
            let served = logits[*token as usize] - most - sum.ln();
            assert!((served - score.logprob).abs() < 1e-4, "{name}: {served}, {}", score.logprob);
        }
    }
}

#[test]
fn what_is_not_trained_is_refused_with_the_way_out() {
    let weights = Weights::open(&path("../experts/qwen2-moe")).unwrap();
    let refused = |tune: &Tune| {
        let team = Arc::new(Team::new(1));
        Learner::load_with(&weights, team, tune, Arithmetic::F32).unwrap_err().to_string()
    };
    let error = refused(&lora(&Module::ALL));
    assert!(error.contains("adapter on gate_proj") && error.contains("trained on q_proj"), "{error}");
    let error = refused(&Tune::Full);
    assert!(error.contains("experts (qwen2_moe)") && error.contains("adapter on q_proj"), "{error}");
}
