#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use waymark::agent::{Runtime, Sampling, Search, SearchError, SearchQuery};
use waymark::engine::{CpuBackend, EngineConfig, KvBudget, Origin};
use waymark_index::{Evidence, Mode};
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;

use super::*;
use crate::advantage::Advantage;
use crate::policy_loss::Terms;
use crate::recipe::Optimizer;
use crate::rollout::{Plan, rollouts};
use crate::run::Metrics;
use crate::sample::{Reward as Worth, Sample};
use crate::schedule::Shape;
use crate::sft::VALIDATION;
use crate::{store, tiny};

/// A bandit with an arm per token: the share of even ones.
#[derive(Debug)]
struct Even;

impl Reward for Even {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let share = |sample: &Sample| {
            let own = &sample.tokens[sample.prompt_tokens..];
            own.iter().filter(|&&token| token % 2 == 0).count() as f64 / own.len().max(1) as f64
        };
        samples.iter().map(|sample| Worth { total: share(sample), ..Worth::default() }).collect()
    }
}

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
        reference: Reference::Initial,
        sampling: Sampling { temperature: Some(1.0), top_p: Some(0.95), ..Sampling::default() },
        concurrent: 16,
        skip_flat: false,
        recompute: true,
        cost: waymark::metric::Cost::default(),
        validation: 0,
        validate_every: 4,
        save_every: 3,
        keep_last: 2,
        stages: Vec::new(),
    }
}

fn engine(weights: &Weights) -> Runtime {
    let tokenizer = Arc::new(Tokenizer::bytes());
    let decoder = Decoder::load(weights, Arc::new(Team::new(2))).unwrap();
    let backend = CpuBackend::new(decoder, "tiny", weights.generation(), KvBudget::Blocks(512)).unwrap();
    let engine = Engine::start(Box::new(backend), EngineConfig::default(), tokenizer.table()).unwrap();
    Runtime::new(engine, tokenizer, None, vec![257], None)
}

/// Trains in `dir`; breaks off after each row that `stop` says.
async fn run(weights: &Weights, dir: &Path, settings: &Grpo, mut stop: impl FnMut(&Row) -> bool + Send) -> Vec<f32> {
    let question = |text: &str| Question { id: text.into(), question: text.into(), ..Question::default() };
    let runtime = engine(weights);
    let field = Field {
        name: "bandit".into(),
        runtime: runtime.clone(),
        questions: ["which arm?", "which arm now?", "and now, which arm?", "this one?", "that one?"]
            .map(question)
            .to_vec(),
        validation: vec![question("what is measured?")],
    };
    let text = "name = \"bandit\"\nprotocol = \"plain\"\n[budget]\nturn_tokens = 8\nsampled_tokens = 8\n";
    let policy = Policy::parse(text, Path::new("policy.toml")).unwrap();
    let mut learner = tiny::learner(weights);
    let reference = learner.values().to_vec();
    let exchange = tempfile::tempdir().unwrap();
    let campaign = Campaign {
        settings,
        seed: 11,
        goals: &[
            Goal { phase: "grpo1".into(), steps: 6, reward: Box::new(Even) },
            Goal { phase: "grpo2".into(), steps: 6, reward: Box::new(Even) },
        ],
        fields: &[field],
        policy: &policy,
        engine: &runtime.engine,
        reference: &reference,
        exchange: exchange.path().join("adapter"),
    };
    let mut ledger = Ledger::open(dir, "test = 1\n", Optimizer::default(), settings.keep_last).unwrap();
    let mut watch = |row: &Row| if stop(row) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    campaign.train(&mut learner, &mut ledger, &mut watch).await.unwrap();
    learner.values().to_vec()
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
    assert_eq!(steps(VALIDATION), [0, 4, 8, 12]);
    let samples = store::read(&dir.join("samples.jsonl")).unwrap();
    assert_eq!(samples.len(), 12 * 24);
    let group: Vec<f64> = samples[..6].iter().map(|sample| sample.advantage.unwrap()).collect();
    assert!(
        group.iter().sum::<f64>().abs() < 1e-9
            && samples[..6].iter().all(|sample| sample.question == samples[0].question)
    );
    assert!(samples.iter().all(|sample| sample.count(Origin::Policy) <= 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_training_ends_in_the_same_weights() {
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let (whole, parts) = (temp.path().join("whole"), temp.path().join("parts"));
    let settings = Grpo { recompute: false, skip_flat: true, reference: Reference::Base, ..settings() };
    let wanted = run(&weights, &whole, &settings, |_| false).await;
    for stop in [2, 4, 11] {
        run(&weights, &parts, &settings, |row| row.step == stop).await;
    }
    assert_eq!(run(&weights, &parts, &settings, |_| false).await, wanted);
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
            active: !(skip && flat(own)),
        };
        let courses: Vec<_> = (0..12).map(course).collect();
        let mut optimizer = AdamW::new(Optimizer::default(), learner.values().len());
        update(&mut learner, &mut optimizer, &courses, &settings, 1e-3).unwrap();
        optimizer.moments().0.to_vec()
    };
    let (all, some) = (gradients(false), gradients(true));
    let most = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0 && all.iter().zip(&some).all(|(a, b)| (a - b).abs() < 1e-4 * most));
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

/// The engine decodes token by token over cached KV, with observations in between; the learner sees the whole at once.
#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_agree_after_observations_too() {
    const TOLERANCE: f32 = 1e-3;
    let temp = tempfile::tempdir().unwrap();
    let weights = tiny::weights(temp.path(), 259);
    let mut runtime = engine(&weights);
    runtime.searcher = Some(Arc::new(Nothing));
    let text = "name = \"turns\"\nprotocol = \"routerag\"\n[budget]\nturns = 2\nturn_tokens = 24\n";
    let policy = Policy::parse(text, Path::new("policy.toml")).unwrap();
    let field = Field { name: "turns".into(), runtime, questions: Vec::new(), validation: Vec::new() };
    let question = Question { question: "who?".into(), ..Question::default() };
    let (settings, cost) = (settings(), waymark::metric::Cost::default());
    let plan = Plan { sampling: &settings.sampling, group: 3, concurrent: 3, seed: 2, step: 1, cost };
    let made = rollouts(&policy, &[(&field, &question)], &plan).await.unwrap();
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
