//! Tests of GRPO, with what they share.
#![allow(clippy::unwrap_used)]

mod learning;
mod rollouts;
mod teacher;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use waymark_agent::metric::Cost;
use waymark_agent::{Runtime, Sampling};
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_runtime::embedding::Embedding;

use super::*;
use crate::advantage::Advantage;
use crate::hash;
use crate::policy_loss::PolicyLossTerms;
use crate::recipe::Optimizer;
use crate::reward::RewardScorer;
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::run::MetricsFile;
use crate::schedule::ScheduleShape;
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
        evidence: EvidenceMeasure::default(),
        first_modes: Vec::new(),
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
        let vocabulary = hash::vocabulary(&Tokenizer::bytes());
        let training = GrpoTraining {
            settings,
            seed: 11,
            goals,
            earlier_steps: 0,
            scheduled_steps: 12,
            question_sets,
            policy,
            engine,
            vocabulary: &vocabulary,
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

fn searching() -> Policy {
    let text = "name = \"turns\"\nprotocol = \"routerag\"\n[budget]\nturns = 2\nturn_tokens = 24\n";
    Policy::parse(text, Path::new("policy.toml")).unwrap()
}

fn question_set(runtime: Runtime) -> QuestionSet {
    QuestionSet { name: "turns".into(), runtime, index: None, questions: Vec::new(), validation: Vec::new() }
}
