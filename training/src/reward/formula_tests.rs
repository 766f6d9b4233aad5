//! Tests of the other systems' rewards against vectors, some from reference programs, some from the papers' formulas.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use waymark_models::gradient::Likeliest;

use super::evo_rag::{EvoRagStage, StepRewards};
use super::graph_r1::{GraphR1, GraphR1Score};
use super::graphrag_r1::{Attenuated, CostAware};
use super::path_router::{RouteWeights, teacher_weight};
use super::searcher;
use crate::outside::cases;

#[derive(Deserialize)]
struct SequenceCase {
    name: String,
    sequence: String,
    golds: Vec<String>,
    format: f64,
    answer_f1: f64,
    total: f64,
}

#[test]
fn graph_r1() {
    for case in cases::<SequenceCase>("rewards_graphr1", "cases") {
        let GraphR1Score { form, f1, total } = GraphR1::of(&case.sequence, &case.golds);
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

/// File of vectors computed from the papers' formulas.
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
struct StepWeightsCase {
    stage: u8,
    t: usize,
    #[serde(rename = "T_max")]
    most: usize,
    w: StepRewards,
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
    for StepWeightsCase { stage, t, most, w } in cases(DERIVED, "evo_rag_weights") {
        let stage = if stage == 1 { EvoRagStage::First } else { EvoRagStage::Second };
        let difference = {
            let found = StepRewards::weights(stage, t, most);
            // Compare each weight by itself, with a probe that has a single reward.
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
struct TeacherWeightCase {
    step: usize,
    lambda_bar: f64,
    #[serde(rename = "W")]
    warmup: usize,
    lambda: f64,
}

#[test]
fn path_router() {
    for Routed { em, f1, support, right, weight } in cases(DERIVED, "pathrouter_routing") {
        let route = RouteWeights::default().route(em, f1, support);
        assert_eq!(
            (u8::from(route.right), RouteWeights::default().weight(route)),
            (right, weight),
            "{em} {f1} {support}"
        );
    }
    for TeacherWeightCase { step, lambda_bar, warmup, lambda } in cases(DERIVED, "pathrouter_tkl_lambda") {
        assert!((teacher_weight(step, lambda_bar, warmup) - lambda).abs() < 1e-12, "step {step}");
    }
}

#[derive(Deserialize)]
struct DivergenceCase {
    teacher_probs: Vec<f32>,
    student_probs: Vec<f32>,
    #[serde(rename = "K")]
    count: usize,
    kl: f64,
}

/// Compares the top-k divergence with the vectors. The logarithms of probabilities serve as logits.
#[test]
fn path_routers_teacher() {
    let logits = |probabilities: Vec<f32>| probabilities.into_iter().map(f32::ln).collect::<Vec<f32>>();
    for DivergenceCase { teacher_probs, student_probs, count, kl } in cases(DERIVED, "pathrouter_topk_forward_kl") {
        let (found, _) = Likeliest::of(&logits(teacher_probs), count).divergence(&logits(student_probs));
        assert!((found - kl).abs() < 1e-6, "{count} tokens: {found} {kl}");
    }
}

/// Step rewards with a single 1.
fn probes() -> [StepRewards; 7] {
    let none = StepRewards::default();
    [
        StepRewards { retrieval_bonus: 1.0, ..none },
        StepRewards { retrieval_action: 1.0, ..none },
        StepRewards { overlap: 1.0, ..none },
        StepRewards { backtrack: 1.0, ..none },
        StepRewards { refusal: 1.0, ..none },
        StepRewards { step: 1.0, ..none },
        StepRewards { answer: 1.0, ..none },
    ]
}
