#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use waymark::agent::{Runtime, Sampling, Search, SearchError, SearchQuery};
use waymark::cli::embedding::Embedding;
use waymark::engine::Origin;
use waymark::metric::{Cost, Prices, Searched};
use waymark_index::{Evidence, GraphInfo, Manifest, Mode};
use waymark_models::weights::Weights;

use super::*;
use crate::advantage::Advantage;
use crate::policy_loss::Terms;
use crate::recipe::{Optimizer, Stage, Teacher};
use crate::reward::{Choice, Efficiency, Judge, Reward};
use crate::rollout::{Plan, rollouts};
use crate::run::Metrics;
use crate::sample::{Reward as Worth, Sample};
use crate::schedule::Shape;
use crate::sft::VALIDATION;
use crate::store;
use crate::tiny::{self, Even, engine};

fn settings() -> Grpo {
    Grpo {
        learning_rate: 1e-2,
        schedule: Shape::Linear,
        warmup: 0.0,
        questions: 4,
        group: 6,
        mini_batch: 12,
        micro_batch: 6,
        pack_tokens: 400,
        loss: Terms::default(),
        advantage: Advantage::Grpo,
        routes: None,
        teacher: None,
        reference: Reference::Initial,
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

fn goal(phase: &str) -> Goal {
    let reward = Judge::new(Box::new(Even), Arc::new(Embedding::Mock));
    Goal { phase: phase.into(), steps: 6, reward, cost: Cost::default(), thrift: None }
}

/// Trains an adapter in `dir`; breaks off after each row that `stop` says.
async fn run(weights: &Weights, dir: &Path, settings: &Grpo, stop: impl FnMut(&Row) -> bool + Send) -> Vec<f32> {
    run_with(tiny::learner(weights), weights, dir, settings, stop).await
}

/// Trains what `learner` learns, from its values on.
async fn run_with(
    learner: Learner,
    weights: &Weights,
    dir: &Path,
    settings: &Grpo,
    stop: impl FnMut(&Row) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let (field, policy) = tiny::bandit(&runtime);
    let reference = learner.values().to_vec();
    let goals = ["grpo1", "grpo2"].map(goal);
    let house =
        House { fields: &[field], policy: &policy, engine: &runtime.engine, goals: &goals, reference: &reference };
    house.train(learner, dir, settings, stop).await
}

/// Where a policy learns.
struct House<'a> {
    fields: &'a [Field],
    policy: &'a Policy,
    engine: &'a Engine,
    goals: &'a [Goal],
    reference: &'a [f32],
}

impl House<'_> {
    /// Trains what `learner` learns in `dir`; breaks off after each row that `stop` says.
    async fn train(
        &self,
        mut learner: Learner,
        dir: &Path,
        settings: &Grpo,
        mut stop: impl FnMut(&Row) -> bool + Send,
    ) -> Vec<f32> {
        let Self { fields, policy, engine, goals, reference } = *self;
        let exchange = tempfile::tempdir().unwrap();
        let campaign = Campaign {
            settings,
            seed: 11,
            goals,
            behind: 0,
            whole: 12,
            fields,
            policy,
            engine,
            reference,
            exchange: exchange.path().join("adapter"),
        };
        let mut ledger = Ledger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
        let mut watch = |row: &Row| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        campaign.train(&mut learner, &mut ledger, &mut watch).await.unwrap();
        learner.values().to_vec()
    }
}

fn numbers(dir: &Path, name: &str) -> Vec<f64> {
    let rows = Metrics::read(&dir.join("metrics.jsonl")).unwrap();
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
    // What was sampled had, to rounding, the probability that the update takes it to have had.
    assert!(
        numbers(&dir, "logprob_drift_max").into_iter().all(|drift| drift < 1e-3),
        "{:?}",
        numbers(&dir, "logprob_drift_max")
    );
    assert!(numbers(&dir, "kl").into_iter().all(|kl| kl >= 0.0));
    assert_eq!(numbers(&dir, "updates"), [2.0; 12]);
    let rows = Metrics::read(&dir.join("metrics.jsonl")).unwrap();
    let steps = |phase: &str| rows.iter().filter(|row| row.phase == phase).map(|row| row.step).collect::<Vec<_>>();
    assert_eq!((steps("grpo1"), steps("grpo2")), ((1..=6).collect(), (7..=12).collect()));
    // Every four steps, and at the end of a stage.
    assert_eq!(steps(VALIDATION), [0, 4, 6, 8, 12]);
    assert_eq!(numbers(&dir, "failed"), [0.0; 12]);
    let merits = numbers(&dir, "validation_merit");
    let best = Ledger::open(&dir, "test = 1\n", Optimizer::default(), 2).unwrap().state().best;
    // Of the second stage alone, and the first of equals.
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

/// Prompts come again from step to step: what an engine had cached of them with the weights before would show here.
#[tokio::test(flavor = "multi_thread")]
async fn all_weights_learn_and_the_engine_has_them_at_once() {
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
    // And the weights that answered were others than those it began with: so is every tensor in the end.
    let kl = numbers(&dir, "kl");
    assert!(kl.iter().all(|&kl| kl >= 0.0) && mean(&kl[9..]) > 1e-2, "{kl:?}");
    let first = tiny::whole(&weights);
    let samples = store::read(&dir.join("samples.jsonl")).unwrap();
    let lessons: Vec<Lesson> = samples[11 * 24..].iter().map(Lesson::new).collect();
    let sequences: Vec<_> = lessons.iter().map(Lesson::sequence).collect();
    let stale = logprobs(&mut tiny::whole(&weights), &sequences, 1000, false).unwrap();
    let apart = |(sample, stale): (&Sample, &Vec<f32>)| {
        let sampled = sample.sampled_logprobs().into_iter().zip(sample.loss_mask()).zip(stale);
        sampled.filter_map(|((own, learnt), stale)| Some((own.filter(|_| learnt)? - stale).abs())).fold(0.0, f32::max)
    };
    let most = samples[11 * 24..].iter().zip(&stale).map(apart).fold(0.0, f32::max);
    assert!(most > 0.1, "the weights before would say the same: {most}");
    for parameter in first.parameters() {
        let (name, range) = (&parameter.name, parameter.range.clone());
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
    let (whole, parts) = (dir.join("whole"), dir.join("parts"));
    let settings = Grpo { recompute: false, skip_flat: true, reference: Reference::Base, ..settings() };
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

/// Leaving flat groups out changes nothing but what they would have added: with neither divergence nor entropy, nothing.
#[test]
fn flat_groups_carry_no_policy_gradient() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 48);
    let loss = Terms { kl: 0.0, entropy: 0.0, ..Terms::default() };
    let settings = Grpo { loss, ..settings() };
    let learnt: Vec<bool> = (0..30).map(|at| at >= 20).collect();
    let tokens: Vec<Vec<u32>> =
        (0..12u32).map(|own| (0..30).map(|at| (at * (1 + at / 20 * own)) % 48).collect()).collect();
    let gradients = |skip: bool| {
        let mut learner = tiny::learner(&weights);
        let sequences: Vec<_> = tokens.iter().map(|tokens| crate::pack::Sequence { tokens, learnt: &learnt }).collect();
        let old = logprobs(&mut learner, &sequences, 1000, false).unwrap();
        let flat = |own: usize| own % 6 < 3;
        let course = |own: usize| Course {
            sequence: sequences[own],
            old: &old[own],
            reference: &old[own],
            advantage: if flat(own) { 0.0 } else { own as f32 - 6.0 },
            taught: None,
            active: !(skip && flat(own)),
        };
        let courses: Vec<_> = (0..12).map(course).collect();
        let mut optimizer = AdamW::new(Optimizer::default(), learner.values().len());
        update(&mut learner, &mut optimizer, &courses, &settings, (1e-3, 0.0)).unwrap();
        optimizer.moments().0.to_vec()
    };
    let (all, some) = (gradients(false), gradients(true));
    let most = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0 && all.iter().zip(&some).all(|(a, b)| (a - b).abs() < 1e-4 * most));
}

/// All trajectories earn the same.
#[derive(Debug)]
struct Same;

impl Reward for Same {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        vec![Worth::default(); samples.len()]
    }
}

/// Two groups of three, of which nothing is learnt but what the teacher says.
fn teaching() -> Grpo {
    Grpo {
        learning_rate: 5e-3,
        schedule: Shape::Constant,
        questions: 2,
        group: 3,
        mini_batch: 3,
        micro_batch: 2,
        pack_tokens: 3000,
        loss: Terms { kl: 0.0, entropy: 0.0, ..Terms::default() },
        teacher: Some(Teacher { tokens: 32, weight: 1.0, warmup: 2, enough: 0.1 }),
        skip_flat: true,
        ..settings()
    }
}

/// One turn in PathRouter's form, with nothing to search in.
fn answering() -> Policy {
    let budget = "turns = 0\nturn_tokens = 12\nsampled_tokens = 16\n";
    let text = format!("name = \"taught\"\nprotocol = \"path-router\"\n[budget]\n{budget}");
    Policy::parse(&text, Path::new("policy.toml")).unwrap()
}

/// Trains an adapter that has moved away from the reference, in PathRouter's form, on questions of which nothing is found.
async fn taught(
    weights: &Weights,
    dir: &Path,
    settings: &Grpo,
    reward: fn() -> Box<dyn Reward>,
    stop: impl FnMut(&Row) -> bool + Send,
) -> Vec<f32> {
    let runtime = engine(weights);
    let policy = answering();
    let question = |text: &str| {
        let support = vec!["Faust A tragedy in two parts by Goethe.".to_owned(), "Goethe A poet of Weimar.".to_owned()];
        Question { question: text.into(), support, ..Question::default() }
    };
    let questions = ["Who wrote Faust?", "Where did he live?", "When was that?"].map(question).to_vec();
    let field = Field { questions, ..field(runtime.clone()) };
    let mut learner = tiny::learner(weights);
    let reference = learner.values().to_vec();
    tiny::nudge(&mut learner);
    let goal = |phase| Goal { reward: Judge::new(reward(), Arc::new(Embedding::Mock)), ..goal(phase) };
    let goals = ["grpo1", "grpo2"].map(goal);
    let house =
        House { fields: &[field], policy: &policy, engine: &runtime.engine, goals: &goals, reference: &reference };
    house.train(learner, dir, settings, stop).await
}

/// Also where all of a group have earned the same, and flat groups are left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_drawn_to_what_its_teacher_says_also_where_it_was_interrupted() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let (whole, parts) = (temp.path().join("whole"), temp.path().join("parts"));
    let (settings, same) = (teaching(), || -> Box<dyn Reward> { Box::new(Same) });
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
async fn where_enough_is_found_nobody_is_taught() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let teacher = |enough| Some(Teacher { enough, ..Teacher::default() });
    let even = || -> Box<dyn Reward> { Box::new(Even) };
    let mut ends = Vec::new();
    for (name, teacher) in [("without", None), ("enough", teacher(0.0)), ("poor", teacher(0.1))] {
        let (dir, settings) = (temp.path().join(name), Grpo { teacher, ..teaching() });
        ends.push(taught(&weights, &dir, &settings, even, |row| row.step == 3).await);
        let poor = [vec![], vec![0.0; 3], vec![1.0; 3]];
        assert_eq!(numbers(&dir, "poor"), poor[ends.len() - 1], "{name}");
        assert!(name == "poor" || numbers(&dir, "teacher_kl").iter().all(|&apart| apart == 0.0), "{name}");
    }
    assert_eq!(ends[0], ends[1]);
    assert_ne!(ends[0], ends[2]);
}

/// A trajectory that is too long with the passages before it is learnt from as any other.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_for_the_teacher_is_left_out() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let (runtime, settings, policy) = (engine(&weights), teaching(), answering());
    let question =
        |support: String| Question { question: "who?".into(), support: vec![support], ..Question::default() };
    let (short, long) = (question("a passage".into()), question("a long one ".repeat(400)));
    let fields = [field(runtime.clone())];
    let plan = Plan { sampling: &settings.sampling, group: 2, concurrent: 4, seed: 2, step: 1, cost: Cost::default() };
    let made = rollouts(&policy, &[(&fields[0], &short), (&fields[0], &long)], &plan).await.unwrap().rollouts;
    let mut learner = tiny::learner(&weights);
    let reference = learner.values().to_vec();
    let campaign = Campaign {
        settings: &settings,
        seed: 11,
        goals: &[goal("grpo1")],
        behind: 0,
        whole: 6,
        fields: &fields,
        policy: &policy,
        engine: &runtime.engine,
        reference: &reference,
        exchange: PathBuf::new(),
    };
    let (taught, row) = campaign.teach(Row::new(1, "grpo1", 0.0), &made, &mut learner).unwrap();
    assert_eq!(taught.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!((row.values["poor"], row.values["teacher_left_out"]), (1.0, 2.0));
    for (taught, rollout) in taught.iter().flatten().zip(&made) {
        let own = rollout.sample.loss_mask();
        let learnt = (0..own.len()).filter(|&token| own[token]);
        assert!(taught.said.iter().map(|(token, _)| *token).eq(learnt), "{}", rollout.sample.text);
        assert!(taught.said.iter().all(|(_, likeliest)| likeliest.ids().len() == 32));
    }
}

/// Finds nothing.
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

fn field(runtime: Runtime) -> Field {
    Field { name: "turns".into(), runtime, index: None, questions: Vec::new(), validation: Vec::new() }
}

/// An index whose graph has so many nodes.
fn index(nodes: u64) -> Manifest {
    let embedder = waymark_index::Embedder { id: "none".into(), dims: 1 };
    let graph = GraphInfo { source: "corpus".into(), triples: 1, phrases: nodes - 10, facts: 1, edges: 1 };
    let build = waymark_index::Build { version: "0".into(), analyzer: "none".into(), connectivity: 1, expansion: 1 };
    let (corpus, files) = ("large".into(), std::collections::BTreeMap::new());
    Manifest { format: 2, snapshot: 1, corpus, passages: 10, embedder, graph: Some(graph), build, files, checksum: 0 }
}

/// The engine decodes token by token over cached KV, with observations in between; the learner sees the whole at once.
#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_agree_after_observations_too() {
    const TOLERANCE: f32 = 1e-3;
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let mut runtime = engine(&weights);
    runtime.searcher = Some(Arc::new(Nothing));
    let policy = searching();
    let field = field(runtime);
    let question = Question { question: "who?".into(), ..Question::default() };
    let (settings, cost) = (settings(), Cost::default());
    let plan = Plan { sampling: &settings.sampling, group: 3, concurrent: 3, seed: 2, step: 1, cost };
    let made = rollouts(&policy, &[(&field, &question)], &plan).await.unwrap().rollouts;
    let lessons: Vec<Lesson> = made.iter().map(|rollout| Lesson::new(&rollout.sample)).collect();
    let sequences: Vec<_> = lessons.iter().map(Lesson::sequence).collect();
    let own = logprobs(&mut tiny::learner(&weights), &sequences, 8192, false).unwrap();
    let mut after = 0;
    for (rollout, own) in made.iter().zip(&own) {
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

/// Offers no search the first few times, and no episode can begin then.
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
async fn a_rollout_that_fails_is_played_again_and_one_that_fails_twice_ends_the_step() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let (policy, runtime) = (searching(), engine(&weights));
    let question = Question { question: "who?".into(), ..Question::default() };
    let settings = settings();
    // One at a time, so that it is known who is late.
    let plan = Plan { sampling: &settings.sampling, group: 2, concurrent: 1, seed: 2, step: 1, cost: Cost::default() };
    let play = async |late: usize| {
        let mut runtime = runtime.clone();
        runtime.searcher = Some(Arc::new(Late(AtomicUsize::new(late))));
        rollouts(&policy, &[(&field(runtime), &question)], &plan).await
    };
    let tokens = |batch: &Batch| batch.rollouts.iter().map(|one| one.sample.tokens.clone()).collect::<Vec<_>>();
    let wanted = play(0).await.unwrap();
    let again = play(1).await.unwrap();
    assert_eq!((wanted.failed, again.failed), (0, 1));
    assert_eq!(tokens(&wanted), tokens(&again));
    let error = play(2).await.unwrap_err().to_string();
    assert!(error.contains("turns") && error.contains("\"who?\"") && error.contains("twice"), "{error}");
}

/// What a search costs is the same in the reward, in the numbers and in the choice of the best step, and grows with the
/// graph of the index that it is made in.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_price_for_a_search() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let runtime = engine(&weights);
    let (small, large) = (field(runtime.clone()), Field { index: Some(index(200_000)), ..field(runtime) });
    let stated = Cost::Model(Prices { nodes: 7, ..Prices::default() });
    assert_eq!(large.price(stated), stated);
    assert_eq!(large.price(Cost::WallTime), Cost::WallTime);
    let policy = Policy::parse("name = \"a\"\nprotocol = \"plain\"\n[budget]\nsampled_tokens = 4\n", Path::new("p"));
    let question = Question { question: "who?".into(), ..Question::default() };
    let stage = |reward| Goal::of(&Stage { steps: 1, reward }, 2, &settings(), Arc::new(Embedding::Mock));
    let goal = stage(Choice::Efficiency(Efficiency::default()));
    let settings = settings();
    let plan = Plan { sampling: &settings.sampling, group: 2, concurrent: 2, seed: 2, step: 1, cost: goal.cost };
    let made = rollouts(&policy.unwrap(), &[(&small, &question), (&large, &question)], &plan).await;
    let mut made = made.unwrap().rollouts;
    for (rollout, field) in made.iter_mut().zip([&small, &small, &large, &large]) {
        let searched = Searched { mode: Mode::Graph, passages: 3, seconds: 9.0, cached: false };
        rollout.row.cost = field.price(goal.cost).of(&searched);
        rollout.sample.text = "<answer>a</answer>".into();
        rollout.sample.golds = vec!["a".into()];
    }
    assert!((made[2].row.cost - made[0].row.cost - 1.0).abs() < 1e-12, "200 kilonodes at 0.005");
    let worth = goal.reward.score(&made).unwrap();
    assert!(worth.iter().zip(&made).all(|(worth, rollout)| worth.parts["cost"] == rollout.row.cost));
    assert!(worth[0].total > worth[2].total);
    // All are right: the mean reward does not tell cheap from dear, the merit does.
    let of = |rollouts: &[Rollout]| goal.merit(rollouts).unwrap();
    assert!((of(&made[..2]) - (1.0 - 0.03 * made[0].row.cost)).abs() < 1e-12 && of(&made[..2]) > of(&made[2..]));
    assert_eq!(stage(Choice::ExactMatch).merit(&made).unwrap(), 1.0);
}

#[tokio::test]
async fn stages_one_by_one_go_on_with_rate_and_questions() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let (runtime, settings) = (engine(&weights), settings());
    let question = |at: usize| Question { question: format!("question {at}?"), ..Question::default() };
    let fields = [Field { questions: (0..9).map(question).collect(), ..field(runtime.clone()) }];
    let policy = searching();
    let goals = ["grpo1", "grpo2"].map(goal);
    let of = |part: std::ops::Range<usize>, behind: u64| Campaign {
        settings: &settings,
        seed: 11,
        goals: &goals[part],
        behind,
        whole: 12,
        fields: &fields,
        policy: &policy,
        engine: &runtime.engine,
        reference: &[],
        exchange: PathBuf::new(),
    };
    let (all, second) = (of(0..2, 0), of(1..2, 6));
    assert_eq!((all.steps(), second.steps()), (12, 6));
    for step in 1..=6 {
        assert_eq!(second.rate(step), all.rate(6 + step));
        let asked = |campaign: &Campaign<'_>, step| -> Vec<String> {
            campaign.questions(step).into_iter().map(|(_, question)| question.question.clone()).collect()
        };
        assert_eq!(asked(&second, step), asked(&all, 6 + step));
        assert_eq!((all.goal(6 + step).0.phase.as_str(), all.goal(6 + step).1), ("grpo2", 6));
        assert_eq!((second.goal(step).0.phase.as_str(), second.goal(step).1), ("grpo2", 0));
    }
    assert!(all.rate(12) > 0.0 && all.rate(12) < second.rate(1));
    assert_eq!(all.goal(0).0.phase, "grpo1");
}
