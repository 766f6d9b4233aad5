//! The rewards of the other systems against vectors, some executed, some computed from the papers' formulas.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use waymark_models::gradient::Likeliest;

use super::evo_rag::{Stage, Steps};
use super::graph_r1::{Earned, GraphR1};
use super::graphrag_r1::{Attenuated, CostAware};
use super::path_router::{Routes, teacher_weight};
use super::searcher;
use crate::outside::cases;

#[derive(Deserialize)]
struct Sequence {
    name: String,
    sequence: String,
    golds: Vec<String>,
    format: f64,
    answer_f1: f64,
    total: f64,
}

#[test]
fn graph_r1() {
    for case in cases::<Sequence>("rewards_graphr1", "cases") {
        let Earned { form, f1, total } = GraphR1::of(&case.sequence, &case.golds);
        for (found, expected) in [(form, case.format), (f1, case.answer_f1), (total, case.total)] {
            assert!((found - expected).abs() < 1e-6, "{}: {found} {expected}", case.name);
        }
    }
}

#[derive(Deserialize)]
struct Solution {
    name: String,
    solution: String,
    gold: String,
    qwen_zero: f64,
    llama_stage1: (f64, f64),
    llama_stage2: f64,
}

#[test]
fn r1_searcher() {
    for case in cases("rewards_r1searcher", "cases") {
        let Solution { name, solution, gold, qwen_zero, llama_stage1, llama_stage2 } = case;
        for (found, expected) in [
            (searcher::zero(&solution, &gold), qwen_zero),
            (searcher::first_stage(&solution, &gold), llama_stage1.0),
            (searcher::second_stage(&solution, &gold), llama_stage2),
        ] {
            assert!((found - expected).abs() < 1e-6, "{name}: {found} {expected}");
        }
    }
}

/// The file of what was computed from the papers' formulas.
const DERIVED: &str = "derived_formulas";

#[derive(Deserialize)]
struct Pra {
    #[serde(rename = "R0")]
    first: f64,
    k: f64,
    n: usize,
    #[serde(rename = "R")]
    expected: f64,
}

#[derive(Deserialize)]
struct Caf {
    f1: f64,
    a: f64,
    b: f64,
    #[serde(rename = "N")]
    searches: usize,
    #[serde(rename = "R")]
    expected: f64,
}

#[derive(Deserialize)]
struct Weights {
    stage: u8,
    t: usize,
    #[serde(rename = "T_max")]
    most: usize,
    w: Steps,
}

#[test]
fn derived_formulas() {
    for Pra { first, k, n, expected } in cases(DERIVED, "graphrag_r1_pra") {
        let found = Attenuated { first, decay: k }.of(n);
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for Caf { f1, a, b, searches, expected } in cases(DERIVED, "graphrag_r1_caf") {
        let found = CostAware { scale: a, decay: b }.of(f1, searches);
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for Weights { stage, t, most, w } in cases(DERIVED, "evo_rag_weights") {
        let stage = if stage == 1 { Stage::First } else { Stage::Second };
        let difference = {
            let found = Steps::weights(stage, t, most);
            // Each weight by itself: a probe that has one reward only.
            probes().iter().map(|probe| (found.weighed(probe) - w.weighed(probe)).abs()).fold(0.0, f64::max)
        };
        assert!(difference < 1e-6, "{stage:?} {t}: {difference}");
    }
}

#[derive(Deserialize)]
struct Routed {
    em: f64,
    f1: f64,
    #[serde(rename = "P")]
    support: f64,
    #[serde(rename = "C")]
    right: u8,
    weight: f64,
}

#[derive(Deserialize)]
struct Teacher {
    step: usize,
    lambda_bar: f64,
    #[serde(rename = "W")]
    warmup: usize,
    lambda: f64,
}

#[test]
fn path_router() {
    for Routed { em, f1, support, right, weight } in cases(DERIVED, "pathrouter_routing") {
        let route = Routes::default().route(em, f1, support);
        assert_eq!((u8::from(route.right), Routes::default().weight(route)), (right, weight), "{em} {f1} {support}");
    }
    for Teacher { step, lambda_bar, warmup, lambda } in cases(DERIVED, "pathrouter_tkl_lambda") {
        assert!((teacher_weight(step, lambda_bar, warmup) - lambda).abs() < 1e-12, "step {step}");
    }
}

#[derive(Deserialize)]
struct Divergence {
    teacher_probs: Vec<f32>,
    student_probs: Vec<f32>,
    #[serde(rename = "K")]
    count: usize,
    kl: f64,
}

/// By what the update draws a policy to its teacher: probabilities are logits but for their logarithm.
#[test]
fn path_routers_teacher() {
    let logits = |probabilities: Vec<f32>| probabilities.into_iter().map(f32::ln).collect::<Vec<f32>>();
    for Divergence { teacher_probs, student_probs, count, kl } in cases(DERIVED, "pathrouter_topk_forward_kl") {
        let (found, _) = Likeliest::of(&logits(teacher_probs), count).divergence(&logits(student_probs));
        assert!((found - kl).abs() < 1e-6, "{count} tokens: {found} {kl}");
    }
}

/// Rewards of which one is 1 and the others are 0.
fn probes() -> [Steps; 7] {
    let none = Steps::default();
    [
        Steps { retrieval_bonus: 1.0, ..none },
        Steps { retrieval_action: 1.0, ..none },
        Steps { overlap: 1.0, ..none },
        Steps { backtrack: 1.0, ..none },
        Steps { refusal: 1.0, ..none },
        Steps { step: 1.0, ..none },
        Steps { answer: 1.0, ..none },
    ]
}
