//! Tests of rewards against vectors from executing the reference programs.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use serde_json::{Map, Value};
use waymark_agent::metric::{Cost, Prices, contains};
use waymark_agent::{EpisodeEnd, Timings, Usage};
use waymark_index::Mode;

use super::*;
use crate::outside::{by_parameter, cases};
use crate::sample::{RetrievalRecord, Sample};

/// Accepted answers: a list, or a single one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Golds {
    Many(Vec<String>),
    One(String),
}

#[derive(Deserialize)]
struct AnsweredCase {
    name: String,
    prompt: String,
    response: String,
    targets: Golds,
    searchr1_qa_em: f64,
    searchr1_qa_subem: f64,
    routerag_stage1_qa_em: Value,
    searchr1_extracted: Option<String>,
    routerag_extracted: Value,
    searchr1_format_is_valid: (bool, String),
    /// Rewards, under names that state their settings.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[test]
fn search_r1_and_route_rag() {
    for case in cases::<AnsweredCase>("rewards_searchr1_routerag", "cases") {
        let what = &case.name;
        let whole = format!("{}{}", case.prompt, case.response);
        let golds = match &case.targets {
            Golds::Many(golds) => golds.clone(),
            Golds::One(gold) => vec![gold.clone()],
        };
        let searched = extract::search_r1(&whole);
        assert_eq!(searched, case.searchr1_extracted.as_deref(), "{what}");
        let share = |holds: bool| f64::from(u8::from(holds));
        let em = searched.map_or(0.0, |answer| share(waymark_agent::metric::exact_match(answer, &golds)));
        assert_eq!(em, case.searchr1_qa_em, "{what}");
        assert_eq!(searched.map_or(0.0, |answer| share(contains(answer, &golds))), case.searchr1_qa_subem, "{what}");

        // In retrieved blocks, Search-R1 looks for each character of a single answer (`is_retrieval_correct`).
        let parts: Vec<String> = match &case.targets {
            Golds::Many(golds) => golds.clone(),
            Golds::One(gold) => gold.chars().map(String::from).collect(),
        };
        let marked = whole.split_once("<|im_start|>assistant");
        assert_eq!(marked.is_some_and(|(_, reply)| FormatState::of(reply)), case.searchr1_format_is_valid.0, "{what}");
        for (worths, expected) in by_parameter(&case.rest, "searchr1_format_score_") {
            let worths: Vec<f64> = worths.split('_').map(|worth| worth.parse().unwrap()).collect();
            let [structure, answer, retrieval] = worths[..] else { panic!("{worths:?}") };
            let bonus = FormatBonus { structure, answer, retrieval };
            let reply = marked.map_or(whole.as_str(), |(_, reply)| reply);
            let found = bonus.of(reply, searched, if em > 0.0 { &golds } else { &parts });
            assert!((found - expected.as_f64().unwrap()).abs() < 1e-9, "{what}: {bonus:?}");
        }
        route_rag(&case, &whole, &golds);
    }
}

fn route_rag(case: &AnsweredCase, whole: &str, golds: &[String]) {
    let what = &case.name;
    let found = extract::route_rag(whole);
    if case.routerag_extracted.is_object() {
        // The reference fails here; there must be no answer.
        assert_eq!(found, None, "{what}");
        return;
    }
    assert_eq!(found, case.routerag_extracted.as_str(), "{what}");
    let (_, reply) = whole.split_once("<|im_start|>assistant").unwrap();
    let em = ExactMatch::of(reply, golds);
    assert_eq!(Some(em), case.routerag_stage1_qa_em.as_f64(), "{what}");
    let sample = Sample { golds: golds.to_vec(), ..searched(reply, &[]) };
    assert_eq!(ExactMatch.score(&[sample])[0].total, em, "{what}");
    for (efficiency, expected) in by_parameter(&case.rest, "routerag_stage2_eff_") {
        let total = efficiency::efficiency_reward(em, efficiency.parse().unwrap());
        assert!((total - expected.as_f64().unwrap()).abs() < 1e-9, "{what}");
    }
}

#[derive(Deserialize)]
struct BatchCase {
    name: String,
    responses: Vec<String>,
    gold: Vec<String>,
    search_times: Vec<f64>,
    stage_1_rewards: Vec<f64>,
    stage_2_rewards: Vec<Value>,
    percentile95_linear: f64,
}

#[test]
fn route_rag_stage_2() {
    for case in cases::<BatchCase>("routerag_stage2_efficiency", "cases") {
        let samples: Vec<Sample> = (case.responses.iter().zip(&case.search_times))
            .map(|(text, &seconds)| Sample { golds: case.gold.clone(), ..searched(text, &[(Mode::Graph, seconds)]) })
            .collect();
        let first: Vec<f64> = ExactMatch.score(&samples).into_iter().map(|worth| worth.total).collect();
        assert_eq!(first, case.stage_1_rewards, "{}", case.name);
        assert!((percentile(&case.search_times, 0.95) - case.percentile95_linear).abs() < 1e-9, "{}", case.name);
        let second = Efficiency { cost: Cost::WallTime, pairing: Pairing::Own }.score(&samples);
        assert_eq!(second.len(), case.stage_2_rewards.len(), "{}", case.name);
        for (worth, expected) in second.iter().zip(&case.stage_2_rewards) {
            // Here the reference divides by zero; a correct answer must earn 1.
            let expected = expected.as_f64().unwrap_or(1.0);
            assert!((worth.total - expected).abs() < 1e-5, "{}: {} {expected}", case.name, worth.total);
        }
    }
}

#[derive(Deserialize)]
struct Balance {
    seqlens: Vec<usize>,
    world_size: usize,
    order: Vec<usize>,
}

#[test]
fn batch_balance_order() {
    for case in cases::<Balance>("batch_balance_order", "cases") {
        assert_eq!(balanced(&case.seqlens, case.world_size), Some(case.order), "{:?}", case.seqlens);
    }
    assert_eq!(balanced(&[1, 2, 3], 2), None);
    assert_eq!(balanced(&[], 2), Some(Vec::new()));
}

#[test]
fn balanced_pairing_swaps_costs_as_in_the_reference() {
    let sample = |length: usize, seconds| {
        let sample = searched("<answer>a</answer>", &[(Mode::Graph, seconds)]);
        Sample { tokens: vec![0; length], golds: vec!["a".to_owned()], ..sample }
    };
    let batch = [sample(10, 1.0), sample(40, 2.0), sample(30, 3.0), sample(20, 4.0)];
    let totals = |pairing| -> Vec<f64> {
        Efficiency { cost: Cost::WallTime, pairing }.score(&batch).iter().map(|worth| worth.total).collect()
    };
    let own = totals(Pairing::Own);
    assert!(own.windows(2).all(|pair| pair[0] > pair[1]), "{own:?}");
    let order = balanced(&[10, 40, 30, 20], 2).unwrap();
    let mixed = totals(Pairing::Balanced { gpus: 2 });
    assert!(order.iter().enumerate().all(|(place, &trajectory)| mixed[trajectory] == own[place]));
    assert_ne!(own, mixed);
    let sum = |totals: &[f64]| totals.iter().sum::<f64>();
    assert!((sum(&own) - 4.0).abs() < 1e-9 && (sum(&mixed) - 4.0).abs() < 1e-9, "the mean is right either way");
}

#[test]
fn forced_answers_earn_no_exact_match() {
    let reply =
        "<think>a</think><search>b</search><information>Rome</information><think>c</think><answer>Rome</answer>";
    let own = Sample { golds: vec!["Rome".to_owned()], ..searched(reply, &[(Mode::Passage, 0.1)]) };
    let batch = [own.clone(), Sample { forced: vec![(3, 2)], ..own }];
    let totals = |reward: &dyn Reward| reward.score(&batch).iter().map(|worth| worth.total).collect::<Vec<f64>>();
    assert_eq!(totals(&ExactMatch), [1.0, 0.0]);
    assert_eq!(totals(&Efficiency::default()), [1.0, 0.0]);
    assert_eq!(totals(&FormatBonus { structure: 0.2, answer: 0.1, retrieval: 0.1 }), [1.0, 0.0]);
}

#[test]
fn answers_of_protocols_without_tags_are_read() {
    let of = |text: &str| {
        let answer = Some("Rome".to_owned());
        let sample = Sample { golds: vec!["Rome".to_owned()], answer, ..searched(text, &[]) };
        ExactMatch.score(&[sample])[0].total
    };
    // An unclosed answer earns nothing, although the server shows it.
    assert_eq!(["Final answer: Rome", "Rome", "<answer>Rome"].map(of), [1.0, 1.0, 0.0]);
}

#[test]
fn efficiency_follows_the_cost_model() {
    let right = |modes: &[(Mode, f64)]| Sample { golds: vec!["a".to_owned()], ..searched("<answer>a</answer>", modes) };
    let batch = [
        right(&[]),
        right(&[(Mode::Passage, 9.0)]),
        right(&[(Mode::Graph, 1.0)]),
        right(&[(Mode::Graph, 0.0), (Mode::Hybrid, 0.0)]),
        Sample { golds: vec!["b".to_owned()], ..right(&[(Mode::Passage, 1.0)]) },
    ];
    let reward = Efficiency::default();
    let totals: Vec<f64> = reward.score(&batch).iter().map(|worth| worth.total).collect();
    assert!(totals[..4].windows(2).all(|pair| pair[0] > pair[1]), "{totals:?}");
    assert_eq!(totals[4], 0.0);
    assert!(totals[..4].iter().all(|total| (0.5..=1.5).contains(total)));
    let Cost::Model(Prices { graph, hybrid, .. }) = reward.cost else { panic!("not the default") };
    assert!((reward.score(&batch)[3].parts["cost"] - graph - hybrid).abs() < 1e-9);
}

/// Sample with a reply after searches without results, with the duration of each search.
pub(crate) fn searched(text: &str, searches: &[(Mode, f64)]) -> Sample {
    let evidence = searches.iter().zip(1..).map(|(&(mode, seconds), turn)| RetrievalRecord {
        turn,
        mode,
        query: "q".to_owned(),
        entities: Vec::new(),
        passages: Vec::new(),
        triples: Vec::new(),
        seconds,
        cached: false,
        error: None,
        withdrawn: None,
        hidden: None,
    });
    Sample {
        id: String::new(),
        question_id: String::new(),
        question: String::new(),
        kind: None,
        golds: Vec::new(),
        supporting: Vec::new(),
        partly: false,
        dataset: String::new(),
        protocol: "routerag".to_owned(),
        seed: 0,
        step: 0,
        branch: None,
        tokenizer: None,
        guessed: false,
        without: Vec::new(),
        tokens: Vec::new(),
        origins: Vec::new(),
        forced: Vec::new(),
        written_mode: None,
        logprobs: Vec::new(),
        prompt_tokens: 0,
        text: text.to_owned(),
        opened: None,
        actions: Vec::new(),
        evidence: evidence.collect(),
        support: None,
        answer: None,
        finish: EpisodeEnd::Stop,
        usage: Usage::default(),
        timings: Timings::default(),
        reward: None,
        advantage: None,
        preferred_to: Vec::new(),
    }
}
