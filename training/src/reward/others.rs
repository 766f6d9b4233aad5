//! The rewards of the other systems against vectors, some executed, some computed from the papers' formulas.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use waymark_models::gradient::Likeliest;

use super::evo_rag::{Stage, Steps};
use super::graph_r1::{Earned, GraphR1};
use super::graphrag_r1::{Attenuated, CostAware};
use super::path_router::{Routes, teacher_weight};
use super::searcher;
use crate::golden;

#[derive(Deserialize)]
struct Cases<T> {
    cases: Vec<T>,
}

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
    let Some(Cases { cases }) = golden::read::<Cases<Sequence>>("rewards_graphr1.json") else { return };
    assert!(!cases.is_empty());
    for case in cases {
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
    let Some(Cases { cases }) = golden::read::<Cases<Solution>>("rewards_r1searcher.json") else { return };
    assert!(!cases.is_empty());
    for Solution { name, solution, gold, qwen_zero, llama_stage1, llama_stage2 } in cases {
        for (found, expected) in [
            (searcher::zero(&solution, &gold), qwen_zero),
            (searcher::first_stage(&solution, &gold), llama_stage1.0),
            (searcher::second_stage(&solution, &gold), llama_stage2),
        ] {
            assert!((found - expected).abs() < 1e-6, "{name}: {found} {expected}");
        }
    }
}

#[derive(Deserialize)]
struct Derived {
    graphrag_r1_pra: Vec<Pra>,
    graphrag_r1_caf: Vec<Caf>,
    evo_rag_weights: Vec<Weights>,
    pathrouter_routing: Vec<Routed>,
    pathrouter_tkl_lambda: Vec<Teacher>,
    pathrouter_topk_forward_kl: Vec<Divergence>,
}

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
    let Some(derived) = golden::read::<Derived>("derived_formulas.json") else { return };
    assert!(!derived.graphrag_r1_pra.is_empty() && !derived.evo_rag_weights.is_empty());
    for Pra { first, k, n, expected } in derived.graphrag_r1_pra {
        let found = Attenuated { first, decay: k }.of(n);
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for Caf { f1, a, b, searches, expected } in derived.graphrag_r1_caf {
        let found = CostAware { scale: a, decay: b }.of(f1, searches);
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for Weights { stage, t, most, w } in derived.evo_rag_weights {
        let stage = if stage == 1 { Stage::First } else { Stage::Second };
        let difference = {
            let found = Steps::weights(stage, t, most);
            // Each weight by itself: a probe that has one reward only.
            probes().iter().map(|probe| (found.weighed(probe) - w.weighed(probe)).abs()).fold(0.0, f64::max)
        };
        assert!(difference < 1e-9, "{stage:?} {t}: {difference}");
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
    let Some(derived) = golden::read::<Derived>("derived_formulas.json") else { return };
    assert!(!derived.pathrouter_routing.is_empty() && !derived.pathrouter_tkl_lambda.is_empty());
    for Routed { em, f1, support, right, weight } in derived.pathrouter_routing {
        let route = Routes::default().route(em, f1, support);
        assert_eq!((u8::from(route.right), Routes::default().weight(route)), (right, weight), "{em} {f1} {support}");
    }
    for Teacher { step, lambda_bar, warmup, lambda } in derived.pathrouter_tkl_lambda {
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
    let Some(derived) = golden::read::<Derived>("derived_formulas.json") else { return };
    assert!(!derived.pathrouter_topk_forward_kl.is_empty());
    let logits = |probabilities: Vec<f32>| probabilities.into_iter().map(f32::ln).collect::<Vec<f32>>();
    for Divergence { teacher_probs, student_probs, count, kl } in derived.pathrouter_topk_forward_kl {
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
