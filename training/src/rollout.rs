//! Rollouts: the policy answers questions in the loop and the engine it is served by.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use waymark::agent::{AgentError, EpisodeOptions, Policy, Runtime, Sampling};
use waymark::engine::{Engine, Lease};
use waymark::evaluate::{self, Question};
use waymark::metric::Cost;
use waymark_index::Manifest;
use waymark_models::gradient::{Learner, Tune};

use crate::TrainError;
use crate::order;
use crate::reward::tearag::is_composed;
use crate::sample::{Sample, Task};

/// From one line about rollouts that take long to the next.
const PAUSE: Duration = Duration::from_secs(60);

/// Questions over one index.
#[derive(Debug, Clone)]
pub struct Field {
    /// What it is called in samples and in numbers.
    pub name: String,
    /// The engine with the index that its questions are asked over.
    pub runtime: Runtime,
    /// What that index is: a walk over its graph costs as much as the graph is large.
    pub index: Option<Manifest>,
    /// Questions to learn from.
    pub questions: Vec<Question>,
    /// Questions to measure with.
    pub validation: Vec<Question>,
}

impl Field {
    /// How many of the questions to learn from are of several hops, as [`is_composed`] says; the others count as single ones.
    pub fn composed(&self) -> usize {
        self.questions.iter().filter(|question| is_composed(&question.support)).count()
    }

    /// How searches over this index are priced: see [`Cost::over`].
    pub fn price(&self, cost: Cost) -> Cost {
        self.index.as_ref().map_or(cost, |index| cost.over(index))
    }
}

/// How rollouts are made.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// How tokens are drawn, where the policy is not to sample as it does when it is served.
    pub sampling: &'a Sampling,
    /// Trajectories of a question.
    pub group: usize,
    /// Episodes that run at the same time.
    pub concurrent: usize,
    /// Where everything random starts.
    pub seed: u64,
    /// The step of training.
    pub step: u64,
    /// How searches are priced in the row of a trajectory, where the index does not say: see [`Field::price`].
    pub cost: Cost,
}

/// A trajectory with the group it belongs to, and what evaluation says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// The question, by its place in the batch.
    pub group: usize,
    /// What is kept of it.
    pub sample: Sample,
    /// What it is worth as an answer.
    pub row: evaluate::Row,
    /// Texts of the passages that its question takes; empty where they are not known.
    pub support: Vec<String>,
}

/// What a batch of questions brought.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// The trajectories, those of a question side by side, in the order of the questions.
    pub rollouts: Vec<Rollout>,
    /// Episodes that failed and were played again.
    pub failed: usize,
}

/// `policy` with the learner's values, in `engine`. No cached KV of others is used: an adapter is of a new generation, and is
/// unloaded with the policy; all weights take the place of the engine's, which rests. Adapters get there through the folder
/// `exchange`.
///
/// # Errors
/// When engine or file system refuse.
pub async fn serve(policy: &Policy, engine: &Engine, exchange: &Path, learner: &Learner) -> Result<Policy, TrainError> {
    let lease = match learner.tune() {
        Tune::Lora(_) => {
            learner.save_adapter(exchange, "rollout")?;
            Some(engine.lease_adapter(exchange.to_owned()).await?)
        }
        Tune::Full => {
            engine.replace_weights(learner.weights()?).await?;
            None
        }
    };
    Ok(unhurried(policy, lease))
}

/// `policy` as it makes rollouts: not guided, with the adapter that `lease` holds, and bounded by tokens alone, since many
/// episodes share the machine, and a clock would make them differ.
pub fn unhurried(policy: &Policy, lease: Option<Lease>) -> Policy {
    let mut policy = Policy { lease, guided: false, ..policy.clone() };
    policy.budget.seconds = 86_400.0;
    policy
}

/// Lets `policy` answer, as it is served, the questions that the fields are measured with, once each. Always with the same
/// seeds: what differs from one measurement to the next is the policy.
///
/// # Errors
/// As [`rollouts`].
pub async fn measure(
    policy: &Policy,
    fields: &[Field],
    concurrent: usize,
    seed: u64,
    cost: Cost,
) -> Result<Vec<Rollout>, TrainError> {
    let asked: Vec<(&Field, &Question)> =
        fields.iter().flat_map(|field| field.validation.iter().map(move |question| (field, question))).collect();
    let (sampling, seed) = (Sampling::default(), order::seed(seed, "validation", 0));
    let plan = Plan { sampling: &sampling, group: 1, concurrent, seed, step: 0, cost };
    Ok(rollouts(policy, &asked, &plan).await?.rollouts)
}

/// Lets `policy` answer each of `questions` several times. What comes back is in their order, whatever the order they
/// ended in. An episode that fails is played once more, with the same seed, and says so in the log.
///
/// # Errors
/// [`TrainError::Rollout`] when an episode fails twice. A group without it would be another group, so there is none.
pub async fn rollouts(
    policy: &Policy,
    questions: &[(&Field, &Question)],
    plan: &Plan<'_>,
) -> Result<Batch, TrainError> {
    let count = questions.len() * plan.group;
    let episodes = (0..count).map(|place| async move {
        let (field, question) = questions[place / plan.group];
        (place, stubborn(policy, field, question, plan, place).await)
    });
    let mut running = futures::stream::iter(episodes).buffer_unordered(plan.concurrent.max(1));
    let (mut done, mut failed, mut told) = (Vec::with_capacity(count), 0, Instant::now());
    while let Some((place, played)) = running.next().await {
        let ((sample, row), again) = played?;
        failed += usize::from(again);
        let (_, question) = questions[place / plan.group];
        done.push((place, Rollout { group: place / plan.group, sample, row, support: question.support.clone() }));
        if told.elapsed() >= PAUSE {
            told = Instant::now();
            tracing::info!(step = plan.step, done = done.len(), of = count, "rolling out");
        }
    }
    done.sort_by_key(|(place, _)| *place);
    Ok(Batch { rollouts: done.into_iter().map(|(_, rollout)| rollout).collect(), failed })
}

type Played = (Sample, evaluate::Row);

/// An episode, and whether it took a second attempt.
async fn stubborn(
    policy: &Policy,
    field: &Field,
    question: &Question,
    plan: &Plan<'_>,
    place: usize,
) -> Result<(Played, bool), TrainError> {
    let error = match one(policy, field, question, plan, place).await {
        Ok(played) => return Ok((played, false)),
        Err(error) => error,
    };
    let (step, asked) = (plan.step, &question.question);
    tracing::warn!(step, field = field.name, question = asked, %error, "a rollout failed and is played again");
    let played = one(policy, field, question, plan, place).await.map_err(|source| TrainError::Rollout {
        field: field.name.clone(),
        question: asked.clone(),
        source: Box::new(source),
    })?;
    Ok((played, true))
}

async fn one(
    policy: &Policy,
    field: &Field,
    question: &Question,
    plan: &Plan<'_>,
    place: usize,
) -> Result<Played, AgentError> {
    let seed = order::seed(plan.seed ^ plan.step.rotate_left(32), "rollout", place as u64);
    let options = EpisodeOptions {
        id: Some(format!("step-{}-{}-{}", plan.step, place / plan.group, place % plan.group)),
        sampling: plan.sampling.clone(),
        seed,
        guided: Some(false),
        ..EpisodeOptions::default()
    };
    let trajectory = evaluate::play(&field.runtime, policy, &question.question, options).await?;
    let cost = field.price(plan.cost);
    let row = evaluate::Row::of(&field.runtime, policy, false, question, &trajectory, &cost);
    let task = Task {
        question_id: question.key().to_owned(),
        question: question.question.clone(),
        golds: question.answers.clone(),
        supporting: question.supporting.clone(),
        partly: !question.supporting_complete,
        dataset: field.name.clone(),
        protocol: policy.protocol.name().to_owned(),
        seed,
        step: plan.step,
    };
    Ok((Sample { support: row.support_f1, ..Sample::from_trajectory(trajectory, task) }, row))
}
