#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use waymark_agent::Sampling;
use waymark_agent::metric::{Cost, Prices};
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_runtime::embedding::Embedding;
use waymark_runtime::evaluate::Question;

use super::*;
use crate::hash;
use crate::recipe::dpo::{Branches, DpoReference};
use crate::recipe::{Labels, Optimizer, Ranker};
use crate::reward::RewardScorer;
use crate::run::{Checkpoints, RankerState};
use crate::sample_lines;
use crate::schedule::ScheduleShape;
use crate::tiny::{self, Even, engine};

fn settings() -> Dpo {
    Dpo {
        learning_rate: 1e-2,
        schedule: ScheduleShape::Constant,
        warmup: 0.0,
        questions: 4,
        group: 8,
        branches: None,
        batch: 3,
        pack_tokens: 400,
        beta: 0.2,
        reference: DpoReference::Round,
        ranker: None,
        sampling: Sampling { temperature: Some(1.0), top_p: Some(0.95), ..Sampling::default() },
        concurrent: 16,
        cost: Cost::default(),
        validation: 0,
        save_every: 2,
        keep_last: 2,
        stages: Vec::new(),
    }
}

fn goal(phase: &str, rounds: usize, begins: StageStart) -> DpoGoal {
    DpoGoal {
        phase: phase.into(),
        rounds,
        patience: 0,
        epochs: 2,
        begins,
        terms: DpoTerms { beta: 0.2, nll: 0.1 },
        reward: RewardScorer::new(Box::new(Even), Arc::new(Embedding::Mock)),
        rule: PairRule::Siblings(Siblings { margin: 0.1 }),
        cost: Cost::default(),
    }
}

/// Trains the parameters of `learner` in `dir`, two stages of rounds, and stops after each row for which `stop` returns
/// `true`.
async fn run(
    mut learner: Learner,
    weights: &Weights,
    dir: &Path,
    settings: &Dpo,
    rounds: [usize; 2],
    mut stop: impl FnMut(&MetricsRow) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let (question_set, policy) = tiny::bandit(&runtime);
    let initial = learner.values().to_vec();
    let adapter_dir = tempfile::tempdir().unwrap();
    let vocabulary = hash::vocabulary(&Tokenizer::bytes());
    let training = DpoTraining {
        settings,
        seed: 11,
        goals: &[goal("dpo1", rounds[0], StageStart::Last), goal("dpo2", rounds[1], StageStart::Best)],
        question_sets: &[question_set],
        policy: &policy,
        engine: &runtime.engine,
        vocabulary: &vocabulary,
        initial: &initial,
        adapter_dir: adapter_dir.path().join("adapter"),
    };
    let mut ledger = RunLedger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
    let mut observer = |row: &MetricsRow| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    training.train(&mut learner, &mut ledger, &mut observer).await.unwrap();
    learner.values().to_vec()
}

fn numbers(dir: &Path, name: &str) -> Vec<f64> {
    let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
    rows.iter().filter_map(|row| row.values.get(name).copied()).collect()
}

fn mean(part: &[f64]) -> f64 {
    part.iter().sum::<f64>() / part.len() as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn preferred_trajectories_become_more_probable() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    for reference in [DpoReference::Initial, DpoReference::Round, DpoReference::None] {
        let dir = temp.path().join(format!("{reference:?}"));
        let settings = Dpo { reference, ..settings() };
        run(tiny::learner(&weights), &weights, &dir, &settings, [6, 2], |_| false).await;
        let reward = numbers(&dir, "reward");
        let pairs = numbers(&dir, progress::PAIRS);
        assert_eq!((reward.len(), pairs.len()), (8, 8));
        assert!(mean(&reward[6..]) > mean(&reward[..2]) + 0.1, "{reference:?}: {reward:?}");
        let chosen = numbers(&dir, "chosen_reward");
        let rejected = numbers(&dir, "rejected_reward");
        assert!(chosen.iter().zip(&rejected).all(|(chosen, rejected)| *chosen > rejected + 0.099));
        // Four pairs per round, three per step, two epochs: one rollout step and four optimizer steps.
        let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
        assert_eq!(samples.len(), 8 * 32);
        let steps: Vec<u64> = samples.chunk_by(|a, b| a.step == b.step).map(|round| round[0].step).collect();
        let lasts: Vec<u64> = pairs.iter().map(|&pairs| 1 + 2 * (pairs as u64).div_ceil(3)).collect();
        assert_eq!(steps, (0..8).map(|at| 1 + lasts[..at].iter().sum::<u64>()).collect::<Vec<_>>());
        // Other commands refuse the samples of another vocabulary.
        let vocabulary = hash::vocabulary(&Tokenizer::bytes());
        assert!(samples.iter().all(|sample| sample.tokenizer.as_ref() == Some(&vocabulary)));
        // The reference likelihoods of a pair are stored. If the policy itself is the reference, all margins start at
        // zero.
        let mut preferred = samples.iter().flat_map(|sample| &sample.preferred_to);
        assert!(preferred.all(|pair| pair.turn == 0 && pair.reference.is_some() == (reference != DpoReference::None)));
        let margins = numbers(&dir, "margin");
        assert_eq!(margins[0].abs() < 1e-4, reference != DpoReference::None, "{margins:?}");
        assert_eq!(numbers(&dir, "preference_loss").len(), margins.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_without_a_warm_up_learns_from_its_first_step() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    // One batch holds all pairs of a round.
    let settings = Dpo { batch: 1000, ..settings() };
    let initial = tiny::learner(&weights).values().to_vec();
    let first = |row: &MetricsRow| row.values.contains_key("learning_rate");
    let learned = run(tiny::learner(&weights), &weights, &dir, &settings, [1, 1], first).await;
    assert_eq!(numbers(&dir, "learning_rate"), [1e-2]);
    assert!(learned != initial, "the only batch taught nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_ends_in_the_same_weights() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    for learner in [tiny::learner, tiny::whole] {
        let dir = temp.path().join(format!("{}", learner(&weights).values().len()));
        std::fs::create_dir(&dir).unwrap();
        let whole = dir.join("whole");
        let parts = dir.join("parts");
        let settings = Dpo { reference: DpoReference::Initial, ..settings() };
        let wanted = run(learner(&weights), &weights, &whole, &settings, [2, 2], |_| false).await;
        // The stops cover a round's rollouts, its steps, its end, and the next stage, which restores the best round.
        let last = numbers(&whole, ROUND_END)[1] as u64;
        for stop in [1, 3, 5, 8, last, last + 1, last + 3] {
            run(learner(&weights), &weights, &parts, &settings, [2, 2], |row| row.step == stop).await;
        }
        let found = run(learner(&weights), &weights, &parts, &settings, [2, 2], |_| false).await;
        assert!(found == wanted, "{} values", wanted.len());
        for name in ["reward", "loss", "margin", "gradient_norm", "bandit/em", progress::PAIRS] {
            assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
        }
        let read = |dir: &Path| -> Vec<_> {
            let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
            samples.into_iter().map(|sample| (sample.id, sample.tokens, sample.preferred_to)).collect()
        };
        assert_eq!(read(&parts), read(&whole));
    }
}

/// One trajectory per question, whose only state is continued.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_with_branches_ends_in_the_same_weights() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let whole = temp.path().join("whole");
    let parts = temp.path().join("parts");
    let settings = Dpo { group: 1, branches: Some(Branches { width: 8, states: 0 }), ..settings() };
    let wanted = run(tiny::learner(&weights), &weights, &whole, &settings, [3, 1], |_| false).await;
    assert_eq!(numbers(&whole, "branches"), [28.0; 4]);
    let pairs = numbers(&whole, progress::PAIRS);
    assert!(pairs.iter().all(|&pairs| pairs > 0.0), "siblings make pairs: {pairs:?}");
    let last = numbers(&whole, ROUND_END)[1] as u64;
    for stop in [1, 3, last, last + 1] {
        run(tiny::learner(&weights), &weights, &parts, &settings, [3, 1], |row| row.step == stop).await;
    }
    assert!(run(tiny::learner(&weights), &weights, &parts, &settings, [3, 1], |_| false).await == wanted);
    let read = |dir: &Path| -> Vec<_> {
        let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
        samples.into_iter().map(|sample| (sample.id, sample.branch, sample.tokens, sample.preferred_to)).collect()
    };
    assert_eq!(read(&parts), read(&whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_can_start_from_the_best_earlier_round() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    let settings = Dpo { keep_last: 100, ..settings() };
    run(tiny::learner(&weights), &weights, &dir, &settings, [3, 1], |_| false).await;
    let ends = numbers(&dir, ROUND_END);
    let checkpoints = Checkpoints::new(dir.join("checkpoints"), 100);
    let at = |round: usize, further: u64| checkpoints.load(ends[round] as u64 + further, Optimizer::default()).unwrap();
    // No answer is ever right, and the first of equal rounds is the best.
    let begun = at(2, 1);
    assert_eq!(begun.state.best, Some((ends[0] as u64, 0.0)));
    assert!(begun.values == at(0, 0).values && begun.values != at(2, 0).values);
    assert_eq!(begun.optimizer.steps(), 0);
}

/// A stage whose reward has a cost model of its own prices searches by it, in rollouts and in measurements.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_has_the_price_of_its_stage_in_measurements() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    let mut runtime = engine(&weights);
    runtime.searcher = Some(Arc::new(tiny::OnePassage));
    let question = Question { question: "where?".into(), ..Question::default() };
    let question_set = QuestionSet {
        name: "set".into(),
        runtime: runtime.clone(),
        index: None,
        questions: vec![question.clone()],
        validation: vec![question],
    };
    let cost = Cost::Model(Prices { passage: 3.0, shown: 0.0, ..Prices::default() });
    let settings = settings();
    let training = DpoTraining {
        settings: &settings,
        seed: 11,
        goals: &[DpoGoal { cost, ..goal("dpo1", 1, StageStart::Last) }],
        question_sets: &[question_set],
        policy: &tiny::searching(),
        engine: &runtime.engine,
        vocabulary: "",
        initial: &[],
        adapter_dir: temp.path().join("adapter"),
    };
    let mut ledger = RunLedger::open(&dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
    // Stops at the first row, which is the measurement before the first round.
    let mut observer = |_: &MetricsRow| -> ControlFlow<()> { ControlFlow::Break(()) };
    training.train(&mut tiny::learner(&weights), &mut ledger, &mut observer).await.unwrap();
    assert_eq!(numbers(&dir, "set/retrieval_cost"), [3.0]);
}

/// Ranker that trains fast enough for a few rounds.
fn ranker(heads: usize) -> Ranker {
    Ranker { margin: 0.1, heads, labels: Labels::Total, learning_rate: 1e-2, epochs: 2, batch: 8, ..Ranker::default() }
}

/// Ranker of the latest checkpoint.
fn heads(dir: &Path) -> Option<RankerState> {
    let latest = Checkpoints::new(dir.join("checkpoints"), 2).latest(Optimizer::default()).unwrap();
    latest.unwrap().ranker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ranker_is_trained_and_measured_without_changing_the_policy() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let plain = temp.path().join("plain");
    let ranked = temp.path().join("ranked");
    let settings = |ranker| Dpo { ranker, ..settings() };
    let wanted = run(tiny::learner(&weights), &weights, &plain, &settings(None), [2, 1], |_| false).await;
    // Two of the bandit's five questions are held out.
    let own = settings(Some(Ranker { held_out: 0.4, ..ranker(HEADS) }));
    assert!(run(tiny::learner(&weights), &weights, &ranked, &own, [2, 1], |_| false).await == wanted);
    for name in ["reward", "loss", "margin", progress::PAIRS] {
        assert_eq!(numbers(&ranked, name), numbers(&plain, name), "{name}");
    }
    assert!(heads(&plain).is_none());
    let found = heads(&ranked).unwrap();
    assert!(found.values.len() == 7 * 64 && found.values.iter().any(|&value| value != 0.0));
    let learned = numbers(&ranked, "ranker_pairs");
    let measured = numbers(&ranked, "ranker_held_out");
    // A question has no pair if the policy always gives the same answer.
    let held = measured.iter().filter(|&&pairs| pairs > 0.0).count();
    assert!(learned.len() == 3 && held > 1 && learned.iter().all(|&pairs| pairs > 0.0), "{learned:?} {measured:?}");
    // The ranker started anew with the second stage: two epochs of eight pairs per step.
    assert_eq!(found.optimizer.steps(), 2 * (learned[2] as u64).div_ceil(8));
    assert_eq!((numbers(&ranked, "ranker_loss").len(), numbers(&ranked, "ranker_accuracy/answer").len()), (held, held));
    // Its scores of both sides of each pair are stored.
    let samples = sample_lines::read(&ranked.join("samples.jsonl")).unwrap();
    let mut preferred = samples.iter().flat_map(|sample| &sample.preferred_to);
    assert!(preferred.all(|pair| pair.scores.as_ref().is_some_and(|(own, other)| own.len() == 7 && other.len() == 7)));
    let samples = sample_lines::read(&plain.join("samples.jsonl")).unwrap();
    assert!(samples.iter().flat_map(|sample| &sample.preferred_to).all(|pair| pair.scores.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_ends_in_the_same_heads() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    for learner in [tiny::learner, tiny::whole] {
        let dir = temp.path().join(format!("{}", learner(&weights).values().len()));
        std::fs::create_dir(&dir).unwrap();
        let whole = dir.join("whole");
        let parts = dir.join("parts");
        let settings = Dpo { ranker: Some(Ranker { selects: true, held_out: 0.4, ..ranker(1) }), ..settings() };
        let wanted = run(learner(&weights), &weights, &whole, &settings, [2, 2], |_| false).await;
        let last = numbers(&whole, ROUND_END)[1] as u64;
        // The stops cover a round's first step, in which the ranker trains, the step after it, and the start of the
        // next stage.
        for stop in [1, 2, last - 1, last, last + 1, last + 2] {
            run(learner(&weights), &weights, &parts, &settings, [2, 2], |row| row.step == stop).await;
        }
        assert!(run(learner(&weights), &weights, &parts, &settings, [2, 2], |_| false).await == wanted);
        assert!(heads(&whole).is_some() && heads(&parts) == heads(&whole));
        for name in ["ranker_training_loss", "ranker_loss", "ranker_accuracy", "loss", progress::PAIRS] {
            assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trajectories_preferred_by_a_ranker_become_more_probable() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    let settings = Dpo { ranker: Some(Ranker { selects: true, held_out: 0.0, ..ranker(1) }), ..settings() };
    run(tiny::learner(&weights), &weights, &dir, &settings, [8, 1], |_| false).await;
    let reward = numbers(&dir, "reward");
    let pairs = numbers(&dir, progress::PAIRS);
    assert!(pairs.iter().any(|&pairs| pairs > 0.0), "{pairs:?}");
    assert!(mean(&reward[5..8]) > mean(&reward[..2]) + 0.05, "{reward:?}");
    assert!(numbers(&dir, "ranker_accuracy").is_empty(), "nothing is held out");
    // By the ranker's score, whatever the rewards, the chosen side leads by the required margin.
    let samples = sample_lines::read(&dir.join("samples.jsonl")).unwrap();
    for pair in samples.iter().flat_map(|sample| &sample.preferred_to) {
        let (own, other) = pair.scores.as_ref().unwrap();
        assert!(own[0] - other[0] >= 0.1 - 1e-12, "{own:?} {other:?}");
    }
}
