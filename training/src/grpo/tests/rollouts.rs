//! Rollouts with searches: log-probabilities, repetition after failures, and prices.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use waymark_agent::metric::{PricedSearch, Prices};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::Origin;
use waymark_index::{Evidence, GraphInfo, Manifest, Mode};

use super::*;
use crate::recipe::GrpoStage;
use crate::reward::{Efficiency, Reward, RewardChoice};
use crate::rollout::{RolloutSettings, rollouts};
use crate::sample::{RewardValue, Sample};

/// Search without results.
#[derive(Debug)]
struct Nothing;

impl Search for Nothing {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move { Ok(Evidence::of(1, query.wanted.mode, Vec::new())) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph, Mode::Hybrid]
    }
}

/// Manifest of an index whose graph has this many nodes.
fn index(nodes: u64) -> Manifest {
    let embedder = waymark_index::EmbedderInfo {
        id: "none".into(),
        dims: 1,
        prompts: waymark_index::Prompts::default(),
        source: None,
    };
    let graph = GraphInfo { source: "corpus".into(), triples: 1, phrases: nodes - 10, facts: 1, edges: 1 };
    let build =
        waymark_index::BuildInfo { version: "0".into(), analyzer: "none".into(), connectivity: 1, expansion: 1 };
    let corpus = "large".into();
    let files = std::collections::BTreeMap::new();
    Manifest {
        format: 2,
        snapshot: 1,
        corpus,
        passages: 10,
        embedder,
        graph: Some(graph),
        build,
        files,
        delta: None,
        checksum: 0,
    }
}

/// The engine decodes token by token over cached KV with observations in between, while the learner processes the whole
/// sequence at once.
#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_agree_after_observations_too() {
    const TOLERANCE: f32 = 1e-3;
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let mut runtime = engine(&weights);
    runtime.searcher = Some(Arc::new(Nothing));
    let policy = searching();
    let question_set = question_set(runtime);
    let question = Question { question: "who?".into(), ..Question::default() };
    let settings = settings();
    let cost = Cost::default();
    let rollout_settings =
        RolloutSettings { group: 3, step: 1, cost, ..RolloutSettings::new(&settings.sampling, 3, 2) };
    let batch = rollouts(&policy, &[(&question_set, &question)], &rollout_settings).await.unwrap().rollouts;
    let masked: Vec<MaskedSequence> = batch.iter().map(|rollout| MaskedSequence::new(&rollout.sample)).collect();
    let sequences: Vec<_> = masked.iter().map(MaskedSequence::sequence).collect();
    let own = logprobs(&mut tiny::learner(&weights), &sequences, 8192, ScoredModel::Adapted).unwrap();
    let mut after = 0;
    for (rollout, own) in batch.iter().zip(&own) {
        let sample = &rollout.sample;
        let first = sample.origins.iter().take_while(|span| span.0 != Origin::Environment).map(|span| span.1).sum();
        assert!(sample.count(Origin::Environment) > 0, "no observation in {}", sample.text);
        for (at, (sampled, learned)) in sample.sampled_logprobs().into_iter().zip(sample.loss_mask()).enumerate() {
            let Some(sampled) = sampled.filter(|_| learned) else { continue };
            assert!((sampled - own[at]).abs() < TOLERANCE, "token {at}: {sampled} sampled, {} learned", own[at]);
            after += usize::from(at > first);
        }
    }
    assert!(after > 0, "nothing was sampled after an observation");
}

/// Search that offers no mode the first few times, so that no episode can start.
#[derive(Debug)]
struct Late(AtomicUsize);

impl Search for Late {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Nothing.search(query)
    }

    fn modes(&self) -> Vec<Mode> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { Vec::new() } else { Nothing.modes() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_rollout_is_repeated_and_a_second_failure_ends_the_step() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let policy = searching();
    let runtime = engine(&weights);
    let question = Question { question: "who?".into(), ..Question::default() };
    let settings = settings();
    // Episodes run one at a time, so that the order of failures is known.
    let rollout_settings = RolloutSettings { group: 2, step: 1, ..RolloutSettings::new(&settings.sampling, 1, 2) };
    let play = async |late: usize| {
        let mut runtime = runtime.clone();
        runtime.searcher = Some(Arc::new(Late(AtomicUsize::new(late))));
        rollouts(&policy, &[(&question_set(runtime), &question)], &rollout_settings).await
    };
    let tokens =
        |batch: &SampledRollouts| batch.rollouts.iter().map(|one| one.sample.tokens.clone()).collect::<Vec<_>>();
    let wanted = play(0).await.unwrap();
    let again = play(1).await.unwrap();
    assert_eq!((wanted.failed, again.failed), (0, 1));
    assert_eq!(tokens(&wanted), tokens(&again));
    let error = play(2).await.unwrap_err().to_string();
    assert!(error.contains("turns") && error.contains("\"who?\"") && error.contains("twice"), "{error}");
}

/// A search has the same price in the reward, in the metrics and in the choice of the best step. It grows with the
/// graph of its index.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_has_one_price_everywhere() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let small = question_set(runtime.clone());
    let large = QuestionSet { index: Some(index(200_000)), ..question_set(runtime) };
    let stated = Cost::Model(Prices { nodes: 7, ..Prices::default() });
    assert_eq!(large.price(stated), stated);
    assert_eq!(large.price(Cost::WallTime), Cost::WallTime);
    let policy = Policy::parse("name = \"a\"\nprotocol = \"plain\"\n[budget]\nsampled_tokens = 4\n", Path::new("p"));
    let question = Question { question: "who?".into(), ..Question::default() };
    let stage = |reward| {
        GrpoGoal::of(
            &GrpoStage { steps: 1, reward, allow_traps: Vec::new() },
            2,
            &settings(),
            Arc::new(Embedding::Mock),
        )
    };
    let goal = stage(RewardChoice::Efficiency(Efficiency::default()));
    let settings = settings();
    let rollout_settings =
        RolloutSettings { group: 2, step: 1, cost: goal.cost, ..RolloutSettings::new(&settings.sampling, 2, 2) };
    let batch = rollouts(&policy.unwrap(), &[(&small, &question), (&large, &question)], &rollout_settings).await;
    let mut batch = batch.unwrap().rollouts;
    for (rollout, question_set) in batch.iter_mut().zip([&small, &small, &large, &large]) {
        let searched = PricedSearch { mode: Mode::Graph, passages: 3, seconds: 9.0, cached: false };
        rollout.row.cost = question_set.price(goal.cost).of(&searched);
        rollout.sample.text = "<answer>a</answer>".into();
        rollout.sample.answer = Some("a".into());
        rollout.sample.golds = vec!["a".into()];
    }
    assert!((batch[2].row.cost - batch[0].row.cost - 1.0).abs() < 1e-12, "200 kilonodes at 0.005");
    let worth = goal.reward.score(&batch).unwrap();
    assert!(worth.iter().zip(&batch).all(|(worth, rollout)| worth.parts["cost"] == rollout.row.cost));
    assert!(worth[0].total > worth[2].total);
    // All answers are right, so the mean reward does not distinguish cheap from expensive ones, but the merit does.
    let of = |rollouts: &[Rollout]| goal.merit(rollouts).unwrap();
    assert!((of(&batch[..2]) - (1.0 - 0.03 * batch[0].row.cost)).abs() < 1e-12 && of(&batch[..2]) > of(&batch[2..]));
    assert_eq!(stage(RewardChoice::ExactMatch).merit(&batch).unwrap(), 1.0);
}

/// Reward that is the measure of the evidence.
#[derive(Debug)]
struct Supported;

impl Reward for Supported {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let worth = |sample: &Sample| sample.support.unwrap_or_default();
        samples.iter().map(|sample| RewardValue { total: worth(sample), ..RewardValue::default() }).collect()
    }
}

/// Otherwise the best step would be chosen by another reward than the one that is trained.
#[tokio::test(flavor = "multi_thread")]
async fn validation_measures_evidence_as_the_recipe_says() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let mut runtime = engine(&weights);
    runtime.searcher = Some(Arc::new(tiny::OnePassage));
    let policy = tiny::searching();
    // Half of the words of the passage that is found.
    let support = vec!["Paris lies in France".into()];
    let question = Question { question: "where?".into(), support, ..Question::default() };
    let questions = vec![question.clone()];
    let question_set = QuestionSet { questions, validation: vec![question], ..question_set(runtime.clone()) };
    let reward = RewardScorer::new(Box::new(Supported), Arc::new(Embedding::Mock));
    let goals = [GrpoGoal { reward, ..goal("grpo1") }];
    for (evidence, merit) in [(EvidenceMeasure::SfF1, 2.0 / 3.0), (EvidenceMeasure::Recall, 1.0)] {
        let dir = temp.path().join(format!("{evidence:?}"));
        let learner = tiny::learner(&weights);
        let reference = learner.values().to_vec();
        let setup = TestSetup {
            question_sets: std::slice::from_ref(&question_set),
            policy: &policy,
            engine: &runtime.engine,
            goals: &goals,
            reference: &reference,
        };
        // Stops at the first row, which is the measurement before the first step.
        setup.train(learner, &dir, &Grpo { evidence, ..settings() }, |_| true).await;
        let measured = numbers(&dir, "validation_merit");
        assert!(measured.len() == 1 && (measured[0] - merit).abs() < 1e-9, "{evidence:?}: {measured:?}");
    }
}
