//! Rollouts: the policy answers questions in the loop and the engine it is served by.

use futures::StreamExt;
use waymark::agent::{EpisodeOptions, Policy, Runtime, Sampling};
use waymark::evaluate::{self, Question};
use waymark::metric::Cost;

use crate::TrainError;
use crate::order;
use crate::sample::{Sample, Task};

/// Questions over one index.
#[derive(Debug, Clone)]
pub struct Field {
    /// What it is called in samples and in numbers.
    pub name: String,
    /// The engine with the index that its questions are asked over.
    pub runtime: Runtime,
    /// Questions to learn from.
    pub questions: Vec<Question>,
    /// Questions to measure with.
    pub validation: Vec<Question>,
}

/// How rollouts are made.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// How tokens are drawn.
    pub sampling: &'a Sampling,
    /// Trajectories of a question.
    pub group: usize,
    /// Episodes that run at the same time.
    pub concurrent: usize,
    /// Where everything random starts.
    pub seed: u64,
    /// The step of training.
    pub step: u64,
    /// How searches are priced in the row of a trajectory.
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
}

/// Lets `policy` answer each of `questions` several times. What comes back is in their order, whatever the order they
/// ended in. An episode that fails is left out, and says so in the log.
///
/// # Errors
/// When not one episode came to its end: the last one's.
pub async fn rollouts(
    policy: &Policy,
    questions: &[(&Field, &Question)],
    plan: &Plan<'_>,
) -> Result<Vec<Rollout>, TrainError> {
    let count = questions.len() * plan.group;
    let episodes = (0..count).map(|place| async move {
        let (field, question) = questions[place / plan.group];
        (place, one(policy, field, question, plan, place).await)
    });
    let mut running = futures::stream::iter(episodes).buffer_unordered(plan.concurrent.max(1));
    let (mut done, mut failure) = (Vec::with_capacity(count), None);
    while let Some((place, rollout)) = running.next().await {
        match rollout {
            Ok((sample, row)) => done.push((place, Rollout { group: place / plan.group, sample, row })),
            Err(error) => {
                let (_, question) = questions[place / plan.group];
                tracing::warn!(step = plan.step, question = question.id, %error, "a rollout failed");
                failure = Some(error);
            }
        }
    }
    done.sort_by_key(|(place, _)| *place);
    match failure {
        Some(error) if done.is_empty() => Err(error.into()),
        _ => Ok(done.into_iter().map(|(_, rollout)| rollout).collect()),
    }
}

async fn one(
    policy: &Policy,
    field: &Field,
    question: &Question,
    plan: &Plan<'_>,
    place: usize,
) -> Result<(Sample, evaluate::Row), waymark::agent::AgentError> {
    let seed = order::seed(plan.seed ^ plan.step.rotate_left(32), "rollout", place as u64);
    let options = EpisodeOptions {
        id: Some(format!("step-{}-{}-{}", plan.step, place / plan.group, place % plan.group)),
        sampling: plan.sampling.clone(),
        seed,
        guided: Some(false),
        ..EpisodeOptions::default()
    };
    let trajectory = evaluate::play(&field.runtime, policy, &question.question, options).await?;
    let row = evaluate::Row::of(&field.runtime, policy, false, question, &trajectory, &plan.cost);
    let task = Task {
        question_id: question.id.clone(),
        question: question.question.clone(),
        golds: question.answers.clone(),
        supporting: question.supporting.clone(),
        dataset: field.name.clone(),
        protocol: policy.protocol.name().to_owned(),
        seed,
        step: plan.step,
    };
    Ok((Sample::from_trajectory(trajectory, task), row))
}
