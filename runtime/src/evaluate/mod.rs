//! Evaluation of policies on question sets with known answers.
//!
//! `waymark eval`, the trainer's `train eval` and its validation all use this module, so that their figures are
//! comparable. Episodes run concurrently in the engine that serves. The seed of each episode is derived from the plan's
//! seed and the place of its question in the list, so that the sampled tokens do not depend on the number of concurrent
//! episodes.

mod across;
mod arm;
mod baseline;
mod bootstrap;
mod breakdown;
mod comparison;
mod csv;
mod estimate;
mod eval_args;
mod eval_run;
mod judge;
mod plot;
mod question;
mod questions;
mod report;
mod report_file;
mod row;
mod search_method;
mod similarity;
mod summary;
mod table;
mod verdict;

pub use across::{AcrossReport, AcrossSummary};
pub use arm::{Contender, EvaluationArm};
pub use baseline::Baseline;
pub use bootstrap::Interval;
pub use breakdown::KindSummary;
pub use comparison::PairedComparison;
pub use estimate::Estimate;
pub use eval_args::PolicyArgs;
pub use judge::Judge;
pub use question::{Question, QuestionError};
pub use questions::{Questions, RetrievalQuestion};
pub use report::{EvaluationReport, FailedPolicy, LeftOutMetric, OracleSummary, SetOutcome, SetReport};
pub use report_file::{LabeledRow, ReportFile};
pub use row::{EpisodeRow, SearchCounts, SearchEntry, TokenCounts, priced, retrieved};
pub use search_method::SearchMethod;
pub use similarity::TextSimilarity;
pub use summary::{PerEpisode, Summary};
pub use table::print;
pub use verdict::Verdict;

use std::time::Instant;

use futures::StreamExt;
use tokio::sync::mpsc;
use waymark_agent::metric::Cost;
use waymark_agent::{
    AgentError, Conversation, Episode, EpisodeOptions, Event, Policy, Runtime, Sampling, SessionSource, Trajectory,
};

/// Parameters of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationPlan {
    /// Seed of the random sequences.
    pub seed: u64,
    /// Sampling parameters that differ from the policy's.
    pub sampling: Sampling,
    /// Enables guided decoding. `None` keeps the policy's setting.
    pub guided: Option<bool>,
    /// Timeout of an episode in seconds, in place of the policy's own: many concurrent episodes slow each other down,
    /// and scores must not depend on the machine's load.
    pub seconds: f64,
    /// Number of concurrent episodes.
    pub concurrency: usize,
    /// Cost model of searches.
    pub cost: Cost,
}

impl Default for EvaluationPlan {
    fn default() -> Self {
        EvaluationPlan {
            seed: 0,
            sampling: Sampling::default(),
            guided: None,
            seconds: EPISODE_TIMEOUT,
            concurrency: 32,
            cost: Cost::default(),
        }
    }
}

/// Default timeout of an episode, in seconds; an episode that reaches it is stuck.
const EPISODE_TIMEOUT: f64 = 36_000.0;

/// Results of a policy on a list of questions.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationOutcome {
    /// One row per question, in their order.
    pub rows: Vec<EpisodeRow>,
    /// Seconds from the first episode's beginning to the last one's end.
    pub seconds: f64,
}

impl EvaluationOutcome {
    /// Returns the first error if every episode failed, so that there is no result to report.
    pub fn failure(&self) -> Option<&str> {
        let all = self.rows.iter().all(|row| row.error.is_some());
        self.rows.first().filter(|_| all).and_then(|row| row.error.as_deref())
    }
}

/// Runs `policy` on `questions` and calls `done` with each row as its episode ends. Failed episodes count as wrong and
/// carry their error.
pub async fn evaluate<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    questions: &[Question],
    plan: &EvaluationPlan,
    done: impl FnMut(&EpisodeRow),
) -> EvaluationOutcome {
    evaluate_arm(runtime, &EvaluationArm::free(policy), questions, plan, done).await
}

/// Runs an arm on `questions`, as [`evaluate`] runs a policy.
pub async fn evaluate_arm<S: SessionSource>(
    runtime: &Runtime<S>,
    arm: &EvaluationArm,
    questions: &[Question],
    plan: &EvaluationPlan,
    mut done: impl FnMut(&EpisodeRow),
) -> EvaluationOutcome {
    let started = Instant::now();
    // The time limit protects a server's clients; in a measurement it would favor idle machines.
    let arm = &arm.clone().with_seconds(plan.seconds);
    let episodes = questions.iter().enumerate().map(|(place, question)| async move {
        let row = row(runtime, arm, question, plan, seed(plan.seed, place)).await;
        (place, row.unwrap_or_else(|error| EpisodeRow::failed(question, &error)))
    });
    // Unordered, so that one long episode does not hold back the start of others.
    let mut running = futures::stream::iter(episodes).buffer_unordered(plan.concurrency.max(1));
    let mut rows = Vec::with_capacity(questions.len());
    while let Some((place, row)) = running.next().await {
        done(&row);
        rows.push((place, row));
    }
    rows.sort_by_key(|(place, _)| *place);
    EvaluationOutcome { rows: rows.into_iter().map(|(_, row)| row).collect(), seconds: started.elapsed().as_secs_f64() }
}

/// Answers one question and scores the answer.
async fn row<S: SessionSource>(
    runtime: &Runtime<S>,
    arm: &EvaluationArm,
    question: &Question,
    plan: &EvaluationPlan,
    seed: u64,
) -> Result<EpisodeRow, AgentError> {
    let policy = match &arm.contender {
        Contender::Policy(policy) => policy,
        Contender::Baseline(baseline) => {
            return baseline.answer(runtime, question, &arm.search, plan, seed).await;
        }
    };
    let options = EpisodeOptions {
        sampling: plan.sampling.clone(),
        seed,
        guided: plan.guided,
        search: arm.search.clone(),
        without: question.without.clone(),
        ..EpisodeOptions::default()
    };
    let trajectory = play(runtime, policy, &question.question, options).await?;
    let guided = plan.guided.unwrap_or(policy.guided);
    Ok(EpisodeRow::of(runtime, policy, guided, question, &trajectory, &plan.cost))
}

/// Runs one episode to its end and discards its events.
///
/// # Errors
/// Same as [`Episode::new`] and [`Episode::run`].
pub async fn play<S: SessionSource>(
    runtime: &Runtime<S>,
    policy: &Policy,
    question: &str,
    options: EpisodeOptions,
) -> Result<Trajectory, AgentError> {
    let episode = Episode::new(runtime, policy, Conversation::new(question), options)?;
    drained(|events| episode.run(events)).await
}

/// Runs an episode to its end and discards its events.
///
/// # Errors
/// Same as `run`.
pub async fn drained<T, F>(run: impl FnOnce(mpsc::Sender<Event>) -> F) -> Result<T, AgentError>
where
    F: Future<Output = Result<T, AgentError>>,
{
    /// Capacity of the channel of discarded events.
    const WAITING: usize = 64;
    let (events, mut heard) = mpsc::channel(WAITING);
    // Events must be received even if unused: a full channel would stop the episode.
    let drain = async { while heard.recv().await.is_some() {} };
    futures::future::join(run(events), drain).await.0
}

/// Derives the seed of the episode at `place`. Seeds of neighboring places lie far apart, because the turns of an
/// episode add to its seed.
fn seed(start: u64, place: usize) -> u64 {
    finalize(start.wrapping_add((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn finalize(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_fails_only_as_a_whole() {
        let row = |error: Option<&str>| EpisodeRow { error: error.map(str::to_owned), ..EpisodeRow::default() };
        let failure = |errors: &[Option<&str>]| {
            let rows = errors.iter().map(|error| row(*error)).collect();
            EvaluationOutcome { rows, seconds: 1.0 }.failure().map(str::to_owned)
        };
        assert_eq!(failure(&[Some("first"), Some("second")]).as_deref(), Some("first"));
        assert_eq!(failure(&[Some("first"), None]), None);
        assert_eq!(failure(&[]), None);
    }
}
