#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use waymark_agent::metric::{Cost, PricedSearch, Prices};
use waymark_agent::{Runtime, Sampling, Search, SearchError, SearchQuery};
use waymark_engine::Origin;
use waymark_index::{Evidence, GraphInfo, Manifest, Mode};
use waymark_models::weights::Weights;
use waymark_runtime::embedding::Embedding;

use super::*;
use crate::advantage::Advantage;
use crate::policy_loss::PolicyLossTerms;
use crate::recipe::{GrpoStage, Optimizer, TeacherSettings};
use crate::reward::{Efficiency, Reward, RewardChoice, RewardScorer};
use crate::rollout::{RolloutPlan, rollouts};
use crate::run::MetricsFile;
use crate::sample::{RewardValue, Sample};
use crate::schedule::ScheduleShape;
use crate::sft::VALIDATION;
use crate::store;
use crate::tiny::{self, Even, engine};

fn settings() -> Grpo {
    Grpo {
        learning_rate: 1e-2,
        schedule: ScheduleShape::Linear,
        warmup: 0.0,
        questions: 4,
        group: 6,
        mini_batch: 12,
        micro_batch: 6,
        pack_tokens: 400,
        loss: PolicyLossTerms::default(),
        advantage: Advantage::Grpo,
        routes: None,
        teacher: None,
        reference: GrpoReference::Initial,
        sampling: Sampling { temperature: Some(1.0), top_p: Some(0.95), ..Sampling::default() },
        concurrent: 16,
        skip_flat: false,
        recompute: true,
        cost: Cost::default(),
        thrift: 0.03,
        validation: 0,
        validate_every: 4,
        save_every: 3,
        keep_last: 2,
        stages: Vec::new(),
    }
}

fn goal(phase: &str) -> GrpoGoal {
    let reward = RewardScorer::new(Box::new(Even), Arc::new(Embedding::Mock));
    GrpoGoal { phase: phase.into(), steps: 6, reward, cost: Cost::default(), thrift: None }
}

/// Trains an adapter in `dir` and stops after each row for which `stop` returns `true`.
async fn run(weights: &Weights, dir: &Path, settings: &Grpo, stop: impl FnMut(&MetricsRow) -> bool + Send) -> Vec<f32> {
    run_with(tiny::learner(weights), weights, dir, settings, stop).await
}

/// Trains the parameters of `learner` from their current values.
async fn run_with(
    learner: Learner,
    weights: &Weights,
    dir: &Path,
    settings: &Grpo,
    stop: impl FnMut(&MetricsRow) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let (question_set, policy) = tiny::bandit(&runtime);
    let reference = learner.values().to_vec();
    let goals = ["grpo1", "grpo2"].map(goal);
    let setup = TestSetup {
        question_sets: &[question_set],
        policy: &policy,
        engine: &runtime.engine,
        goals: &goals,
        reference: &reference,
    };
    setup.train(learner, dir, settings, stop).await
}

/// Inputs of a test training run.
struct TestSetup<'a> {
    question_sets: &'a [QuestionSet],
    policy: &'a Policy,
    engine: &'a Engine,
    goals: &'a [GrpoGoal],
    reference: &'a [f32],
}

impl TestSetup<'_> {
    /// Trains the parameters of `learner` in `dir` and stops after each row for which `stop` returns `true`.
    async fn train(
        &self,
        mut learner: Learner,
        dir: &Path,
        settings: &Grpo,
        mut stop: impl FnMut(&MetricsRow) -> bool + Send,
    ) -> Vec<f32> {
        let Self { question_sets, policy, engine, goals, reference } = *self;
        let adapter_dir = tempfile::tempdir().unwrap();
        let training = GrpoTraining {
            settings,
            seed: 11,
            goals,
            earlier_steps: 0,
            scheduled_steps: 12,
            question_sets,
            policy,
            engine,
            reference,
            adapter_dir: adapter_dir.path().join("adapter"),
        };
        let mut ledger = RunLedger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
        let mut observer =
            |row: &MetricsRow| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        training.train(&mut learner, &mut ledger, &mut observer).await.unwrap();
        learner.values().to_vec()
    }
}

fn numbers(dir: &Path, name: &str) -> Vec<f64> {
    let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
    rows.iter().filter_map(|row| row.values.get(name).copied()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reward_rises_and_rollouts_agree_with_the_learner() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    run(&weights, &dir, &settings(), |_| false).await;
    let reward = numbers(&dir, "reward");
    assert_eq!(reward.len(), 12);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&reward[9..]) > mean(&reward[..3]) + 0.15, "{reward:?}");
    // The sampled tokens had, up to rounding, the probability that the update assumes.
    assert!(
        numbers(&dir, "logprob_drift_max").into_iter().all(|drift| drift < 1e-3),
        "{:?}",
        numbers(&dir, "logprob_drift_max")
    );
    assert!(numbers(&dir, "kl").into_iter().all(|kl| kl >= 0.0));
    assert_eq!(numbers(&dir, "updates"), [2.0; 12]);
    let rows = MetricsFile::read(&dir.join("metrics.jsonl")).unwrap();
    let steps = |phase: &str| rows.iter().filter(|row| row.phase == phase).map(|row| row.step).collect::<Vec<_>>();
    assert_eq!((steps("grpo1"), steps("grpo2")), ((1..=6).collect(), (7..=12).collect()));
    // Validation runs every four steps and at the end of a stage.
    assert_eq!(steps(VALIDATION), [0, 4, 6, 8, 12]);
    assert_eq!(numbers(&dir, "failed"), [0.0; 12]);
    let merits = numbers(&dir, "validation_merit");
    let best = RunLedger::open(&dir, "test = 1\n", Optimizer::default(), 2).unwrap().state().best;
    // Only the second stage counts, and the first of equal steps wins.
    let wanted = if merits[4] > merits[3] { (12, merits[4]) } else { (8, merits[3]) };
    assert!(
        best.is_some_and(|(step, merit)| step == wanted.0 && (merit - wanted.1).abs() < 1e-12),
        "{best:?} {merits:?}"
    );
    let samples = store::read(&dir.join("samples.jsonl")).unwrap();
    assert_eq!(samples.len(), 12 * 24);
    let group: Vec<f64> = samples[..6].iter().map(|sample| sample.advantage.unwrap()).collect();
    assert!(
        group.iter().sum::<f64>().abs() < 1e-9
            && samples[..6].iter().all(|sample| sample.question == samples[0].question)
    );
    assert!(samples.iter().all(|sample| sample.count(Origin::Policy) <= 8));
}

/// Prompts recur from step to step, so KV cached under earlier weights would show here.
#[tokio::test(flavor = "multi_thread")]
async fn all_weights_train_and_the_engine_uses_them_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let dir = temp.path().join("run");
    let settings = Grpo { learning_rate: 3e-3, ..settings() };
    let last = run_with(tiny::whole(&weights), &weights, &dir, &settings, |_| false).await;
    let reward = numbers(&dir, "reward");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&reward[9..]) > mean(&reward[..3]) + 0.15, "{reward:?}");
    let drift = numbers(&dir, "logprob_drift_max");
    assert!(drift.len() == 12 && drift.iter().all(|&drift| drift < 1e-3), "{drift:?}");
    // The weights that answered differ from the initial ones, and in the end every tensor does.
    let kl = numbers(&dir, "kl");
    assert!(kl.iter().all(|&kl| kl >= 0.0) && mean(&kl[9..]) > 1e-2, "{kl:?}");
    let first = tiny::whole(&weights);
    let samples = store::read(&dir.join("samples.jsonl")).unwrap();
    let masked: Vec<MaskedSequence> = samples[11 * 24..].iter().map(MaskedSequence::new).collect();
    let sequences: Vec<_> = masked.iter().map(MaskedSequence::sequence).collect();
    let stale = logprobs(&mut tiny::whole(&weights), &sequences, 1000, false).unwrap();
    let apart = |(sample, stale): (&Sample, &Vec<f32>)| {
        let sampled = sample.sampled_logprobs().into_iter().zip(sample.loss_mask()).zip(stale);
        sampled.filter_map(|((own, learnt), stale)| Some((own.filter(|_| learnt)? - stale).abs())).fold(0.0, f32::max)
    };
    let most = samples[11 * 24..].iter().zip(&stale).map(apart).fold(0.0, f32::max);
    assert!(most > 0.1, "the weights before would say the same: {most}");
    for parameter in first.parameters() {
        let name = &parameter.name;
        let range = parameter.range.clone();
        assert!(first.values()[range.clone()] != last[range], "{name} has learnt nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_ends_in_the_same_weights() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    for learner in [tiny::learner, tiny::whole] {
        interrupted(&weights, &temp.path().join(format!("{}", learner(&weights).values().len())), learner).await;
    }
}

async fn interrupted(weights: &Weights, dir: &Path, learner: fn(&Weights) -> Learner) {
    std::fs::create_dir(dir).unwrap();
    let whole = dir.join("whole");
    let parts = dir.join("parts");
    let settings = Grpo { recompute: false, skip_flat: true, reference: GrpoReference::Base, ..settings() };
    let wanted = run_with(learner(weights), weights, &whole, &settings, |_| false).await;
    for stop in [2, 4, 11] {
        run_with(learner(weights), weights, &parts, &settings, |row| row.step == stop).await;
    }
    assert_eq!(run_with(learner(weights), weights, &parts, &settings, |_| false).await, wanted);
    for name in ["reward", "kl", "gradient_norm", "bandit/em"] {
        assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
    }
    let tokens = |dir: &Path| -> Vec<_> {
        let samples = store::read(&dir.join("samples.jsonl")).unwrap();
        samples.into_iter().map(|sample| (sample.id, sample.tokens)).collect()
    };
    assert_eq!(tokens(&parts), tokens(&whole));
}

/// Without divergence and entropy, skipping flat groups does not change the gradient.
#[test]
fn flat_groups_carry_no_policy_gradient() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 48);
    let loss = PolicyLossTerms { kl: 0.0, entropy: 0.0, ..PolicyLossTerms::default() };
    let settings = Grpo { loss, ..settings() };
    let learnt: Vec<bool> = (0..30).map(|at| at >= 20).collect();
    let tokens: Vec<Vec<u32>> =
        (0..12u32).map(|own| (0..30).map(|at| (at * (1 + at / 20 * own)) % 48).collect()).collect();
    let gradients = |skip: bool| {
        let mut learner = tiny::learner(&weights);
        let sequences: Vec<_> =
            tokens.iter().map(|tokens| crate::pack::TrainingSequence { tokens, learnt: &learnt }).collect();
        let old = logprobs(&mut learner, &sequences, 1000, false).unwrap();
        let flat = |own: usize| own % 6 < 3;
        let trajectory = |own: usize| LossTrajectory {
            sequence: sequences[own],
            old: &old[own],
            reference: &old[own],
            advantage: if flat(own) { 0.0 } else { own as f32 - 6.0 },
            taught: None,
            active: !(skip && flat(own)),
        };
        let trajectories: Vec<_> = (0..12).map(trajectory).collect();
        let mut optimizer = AdamW::new(Optimizer::default(), learner.values().len());
        update(&mut learner, &mut optimizer, &trajectories, &settings, (1e-3, 0.0)).unwrap();
        optimizer.moments().0.to_vec()
    };
    let all = gradients(false);
    let some = gradients(true);
    let most = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0 && all.iter().zip(&some).all(|(a, b)| (a - b).abs() < 1e-4 * most));
}

/// Reward that is the same for all trajectories.
#[derive(Debug)]
struct Same;

impl Reward for Same {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        vec![RewardValue::default(); samples.len()]
    }
}

/// Two groups of three, trained on the teacher's term alone.
fn settings_with_teacher() -> Grpo {
    Grpo {
        learning_rate: 5e-3,
        schedule: ScheduleShape::Constant,
        questions: 2,
        group: 3,
        mini_batch: 3,
        micro_batch: 2,
        pack_tokens: 3000,
        loss: PolicyLossTerms { kl: 0.0, entropy: 0.0, ..PolicyLossTerms::default() },
        teacher: Some(TeacherSettings { tokens: 32, weight: 1.0, warmup: 2, enough: 0.1 }),
        skip_flat: true,
        ..settings()
    }
}

/// Policy with a single PathRouter turn and no search.
fn answering() -> Policy {
    let budget = "turns = 0\nturn_tokens = 12\nsampled_tokens = 16\n";
    let text = format!("name = \"taught\"\nprotocol = \"path-router\"\n[budget]\n{budget}");
    Policy::parse(&text, Path::new("policy.toml")).unwrap()
}

/// Trains an adapter that differs from the reference, in PathRouter's format, on questions for which no support is
/// found.
async fn taught(
    weights: &Weights,
    dir: &Path,
    settings: &Grpo,
    reward: fn() -> Box<dyn Reward>,
    stop: impl FnMut(&MetricsRow) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let policy = answering();
    let question = |text: &str| {
        let support = vec!["Faust A tragedy in two parts by Goethe.".to_owned(), "Goethe A poet of Weimar.".to_owned()];
        Question { question: text.into(), support, ..Question::default() }
    };
    let questions = ["Who wrote Faust?", "Where did he live?", "When was that?"].map(question).to_vec();
    let question_set = QuestionSet { questions, ..question_set(runtime.clone()) };
    let mut learner = tiny::learner(weights);
    let reference = learner.values().to_vec();
    tiny::nudge(&mut learner);
    let goal = |phase| GrpoGoal { reward: RewardScorer::new(reward(), Arc::new(Embedding::Mock)), ..goal(phase) };
    let goals = ["grpo1", "grpo2"].map(goal);
    let setup = TestSetup {
        question_sets: &[question_set],
        policy: &policy,
        engine: &runtime.engine,
        goals: &goals,
        reference: &reference,
    };
    setup.train(learner, dir, settings, stop).await
}

/// The teacher's term also applies to flat groups while `skip_flat` is on.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_approaches_its_teacher_and_resumes_identically() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let whole = temp.path().join("whole");
    let parts = temp.path().join("parts");
    let settings = settings_with_teacher();
    let same = || -> Box<dyn Reward> { Box::new(Same) };
    let wanted = taught(&weights, &whole, &settings, same, |_| false).await;
    let apart = numbers(&whole, "teacher_kl");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(apart.len() == 12 && mean(&apart[9..]) < 0.7 * mean(&apart[..3]), "{apart:?}");
    assert_eq!(numbers(&whole, "teacher_weight"), [[0.5].as_slice(), &[1.0; 11]].concat());
    assert_eq!((numbers(&whole, "poor"), numbers(&whole, "teacher_left_out")), (vec![1.0; 12], vec![0.0; 12]));
    assert_eq!((numbers(&whole, "updates"), numbers(&whole, "flat_groups")), (vec![2.0; 12], vec![1.0; 12]));
    let losses = numbers(&whole, "loss");
    assert!((losses[0] - 0.5 * apart[0]).abs() < 1e-9 && (losses[5] - apart[5]).abs() < 1e-9, "{losses:?} {apart:?}");
    for stop in [2, 5] {
        taught(&weights, &parts, &settings, same, |row| row.step == stop).await;
    }
    assert_eq!(taught(&weights, &parts, &settings, same, |_| false).await, wanted);
    for name in ["teacher_kl", "gradient_norm", "loss"] {
        assert_eq!(numbers(&parts, name), numbers(&whole, name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_enough_support_no_trajectory_is_taught() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let teacher = |enough| Some(TeacherSettings { enough, ..TeacherSettings::default() });
    let even = || -> Box<dyn Reward> { Box::new(Even) };
    let mut ends = Vec::new();
    for (name, teacher) in [("without", None), ("enough", teacher(0.0)), ("poor", teacher(0.1))] {
        let dir = temp.path().join(name);
        let settings = Grpo { teacher, ..settings_with_teacher() };
        ends.push(taught(&weights, &dir, &settings, even, |row| row.step == 3).await);
        let poor = [vec![], vec![0.0; 3], vec![1.0; 3]];
        assert_eq!(numbers(&dir, "poor"), poor[ends.len() - 1], "{name}");
        assert!(name == "poor" || numbers(&dir, "teacher_kl").iter().all(|&apart| apart == 0.0), "{name}");
    }
    assert_eq!(ends[0], ends[1]);
    assert_ne!(ends[0], ends[2]);
}

/// A trajectory that is too long with the passages in front is still trained on, but not taught.
#[tokio::test(flavor = "multi_thread")]
async fn a_trajectory_too_long_for_the_teacher_is_not_taught() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let settings = settings_with_teacher();
    let policy = answering();
    let question =
        |support: String| Question { question: "who?".into(), support: vec![support], ..Question::default() };
    let short = question("a passage".into());
    let long = question("a long one ".repeat(400));
    let question_sets = [question_set(runtime.clone())];
    let plan =
        RolloutPlan { sampling: &settings.sampling, group: 2, concurrent: 4, seed: 2, step: 1, cost: Cost::default() };
    let batch =
        rollouts(&policy, &[(&question_sets[0], &short), (&question_sets[0], &long)], &plan).await.unwrap().rollouts;
    let mut learner = tiny::learner(&weights);
    let reference = learner.values().to_vec();
    let training = GrpoTraining {
        settings: &settings,
        seed: 11,
        goals: &[goal("grpo1")],
        earlier_steps: 0,
        scheduled_steps: 6,
        question_sets: &question_sets,
        policy: &policy,
        engine: &runtime.engine,
        reference: &reference,
        adapter_dir: PathBuf::new(),
    };
    let (taught, row) = training.teach(MetricsRow::new(1, "grpo1", 0.0), &batch, &mut learner).unwrap();
    assert_eq!(taught.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!((row.values["poor"], row.values["teacher_left_out"]), (1.0, 2.0));
    for (taught, rollout) in taught.iter().flatten().zip(&batch) {
        let own = rollout.sample.loss_mask();
        let learnt = (0..own.len()).filter(|&token| own[token]);
        assert!(taught.by_token.iter().map(|(token, _)| *token).eq(learnt), "{}", rollout.sample.text);
        assert!(taught.by_token.iter().all(|(_, likeliest)| likeliest.ids().len() == 32));
    }
}

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

fn searching() -> Policy {
    let text = "name = \"turns\"\nprotocol = \"routerag\"\n[budget]\nturns = 2\nturn_tokens = 24\n";
    Policy::parse(text, Path::new("policy.toml")).unwrap()
}

fn question_set(runtime: Runtime) -> QuestionSet {
    QuestionSet { name: "turns".into(), runtime, index: None, questions: Vec::new(), validation: Vec::new() }
}

/// Manifest of an index whose graph has this many nodes.
fn index(nodes: u64) -> Manifest {
    let embedder = waymark_index::EmbedderInfo { id: "none".into(), dims: 1 };
    let graph = GraphInfo { source: "corpus".into(), triples: 1, phrases: nodes - 10, facts: 1, edges: 1 };
    let build =
        waymark_index::BuildInfo { version: "0".into(), analyzer: "none".into(), connectivity: 1, expansion: 1 };
    let corpus = "large".into();
    let files = std::collections::BTreeMap::new();
    Manifest { format: 2, snapshot: 1, corpus, passages: 10, embedder, graph: Some(graph), build, files, checksum: 0 }
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
    let plan = RolloutPlan { sampling: &settings.sampling, group: 3, concurrent: 3, seed: 2, step: 1, cost };
    let batch = rollouts(&policy, &[(&question_set, &question)], &plan).await.unwrap().rollouts;
    let masked: Vec<MaskedSequence> = batch.iter().map(|rollout| MaskedSequence::new(&rollout.sample)).collect();
    let sequences: Vec<_> = masked.iter().map(MaskedSequence::sequence).collect();
    let own = logprobs(&mut tiny::learner(&weights), &sequences, 8192, false).unwrap();
    let mut after = 0;
    for (rollout, own) in batch.iter().zip(&own) {
        let sample = &rollout.sample;
        let first = sample.origins.iter().take_while(|span| span.0 != Origin::Environment).map(|span| span.1).sum();
        assert!(sample.count(Origin::Environment) > 0, "no observation in {}", sample.text);
        for (at, (sampled, learnt)) in sample.sampled_logprobs().into_iter().zip(sample.loss_mask()).enumerate() {
            let Some(sampled) = sampled.filter(|_| learnt) else { continue };
            assert!((sampled - own[at]).abs() < TOLERANCE, "token {at}: {sampled} sampled, {} learnt", own[at]);
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
    let plan =
        RolloutPlan { sampling: &settings.sampling, group: 2, concurrent: 1, seed: 2, step: 1, cost: Cost::default() };
    let play = async |late: usize| {
        let mut runtime = runtime.clone();
        runtime.searcher = Some(Arc::new(Late(AtomicUsize::new(late))));
        rollouts(&policy, &[(&question_set(runtime), &question)], &plan).await
    };
    let tokens = |batch: &RolloutBatch| batch.rollouts.iter().map(|one| one.sample.tokens.clone()).collect::<Vec<_>>();
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
    let stage = |reward| GrpoGoal::of(&GrpoStage { steps: 1, reward }, 2, &settings(), Arc::new(Embedding::Mock));
    let goal = stage(RewardChoice::Efficiency(Efficiency::default()));
    let settings = settings();
    let plan = RolloutPlan { sampling: &settings.sampling, group: 2, concurrent: 2, seed: 2, step: 1, cost: goal.cost };
    let batch = rollouts(&policy.unwrap(), &[(&small, &question), (&large, &question)], &plan).await;
    let mut batch = batch.unwrap().rollouts;
    for (rollout, question_set) in batch.iter_mut().zip([&small, &small, &large, &large]) {
        let searched = PricedSearch { mode: Mode::Graph, passages: 3, seconds: 9.0, cached: false };
        rollout.row.cost = question_set.price(goal.cost).of(&searched);
        rollout.sample.text = "<answer>a</answer>".into();
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

#[tokio::test]
async fn separate_stages_continue_rate_and_questions() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let settings = settings();
    let question = |at: usize| Question { question: format!("question {at}?"), ..Question::default() };
    let question_sets = [QuestionSet { questions: (0..9).map(question).collect(), ..question_set(runtime.clone()) }];
    let policy = searching();
    let goals = ["grpo1", "grpo2"].map(goal);
    let of = |part: std::ops::Range<usize>, earlier_steps: u64| GrpoTraining {
        settings: &settings,
        seed: 11,
        goals: &goals[part],
        earlier_steps,
        scheduled_steps: 12,
        question_sets: &question_sets,
        policy: &policy,
        engine: &runtime.engine,
        reference: &[],
        adapter_dir: PathBuf::new(),
    };
    let all = of(0..2, 0);
    let second = of(1..2, 6);
    assert_eq!((all.steps(), second.steps()), (12, 6));
    for step in 1..=6 {
        assert_eq!(second.rate(step), all.rate(6 + step));
        let asked = |training: &GrpoTraining<'_>, step| -> Vec<String> {
            training.questions(step).into_iter().map(|(_, question)| question.question.clone()).collect()
        };
        assert_eq!(asked(&second, step), asked(&all, 6 + step));
        assert_eq!((all.goal(6 + step).0.phase.as_str(), all.goal(6 + step).1), ("grpo2", 6));
        assert_eq!((second.goal(step).0.phase.as_str(), second.goal(step).1), ("grpo2", 0));
    }
    assert!(all.rate(12) > 0.0 && all.rate(12) < second.rate(1));
    assert_eq!(all.goal(0).0.phase, "grpo1");
}
