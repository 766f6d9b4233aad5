//! How good a policy is: episodes over questions whose answers are known.
//!
//! `waymark eval`, the trainer's `train eval` and its validation all come through here, so that their figures are of one
//! kind. Episodes run side by side in the engine that serves; each has a seed of its own, made of the plan's and its place
//! in the list, so that what is sampled does not depend on how many run at a time.

mod question;
mod row;
mod summary;
mod table;

pub use question::{Question, QuestionError};
pub use row::{Lookup, Row, Searches, Tokens, priced};
pub use summary::{Duel, Estimate, PerEpisode, Summary};
pub use table::print;

use std::time::Instant;

use futures::StreamExt;
use tokio::sync::mpsc;

use crate::agent::{
    AgentError, Budget, Conversation, Episode, EpisodeOptions, Policy, Runtime, Sampling, Source, Trajectory,
};
use crate::metric::Cost;

/// How a policy is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where the random sequences start.
    pub seed: u64,
    /// Sampling parameters that differ from the policy's.
    pub sampling: Sampling,
    /// Whether generation is guided; as the policy has it where nothing is said.
    pub guided: Option<bool>,
    /// Seconds that an episode may take, whatever its policy has: with many at a time each one is slow, and what a policy
    /// is worth must not hang on the load of the machine.
    pub seconds: f64,
    /// Episodes that run at a time.
    pub concurrency: usize,
    /// How searches are priced.
    pub cost: Cost,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            seed: 0,
            sampling: Sampling::default(),
            guided: None,
            seconds: PATIENCE,
            concurrency: 32,
            cost: Cost::default(),
        }
    }
}

/// Seconds after which an episode has got stuck.
const PATIENCE: f64 = 36_000.0;

/// What a policy did with some questions.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// One row per question, in their order.
    pub rows: Vec<Row>,
    /// Seconds from the first episode's beginning to the last one's end.
    pub seconds: f64,
}

impl Outcome {
    /// Why the first episode failed, where every one did: then there is nothing to tell of the policy.
    pub fn failure(&self) -> Option<&str> {
        let all = self.rows.iter().all(|row| row.error.is_some());
        self.rows.first().filter(|_| all).and_then(|row| row.error.as_deref())
    }
}

/// Lets `policy` answer `questions`; `done` is told of each as it ends. Episodes that fail count as wrong, and say why.
pub async fn evaluate<S: Source>(
    runtime: &Runtime<S>,
    policy: &Policy,
    questions: &[Question],
    plan: &Plan,
    mut done: impl FnMut(&Row),
) -> Outcome {
    let began = Instant::now();
    let guided = plan.guided.unwrap_or(policy.guided);
    let policy = &Policy { budget: Budget { seconds: plan.seconds, ..policy.budget }, ..policy.clone() };
    let episodes = questions.iter().enumerate().map(|(place, question)| async move {
        let options = EpisodeOptions {
            sampling: plan.sampling.clone(),
            seed: seed(plan.seed, place),
            guided: plan.guided,
            ..EpisodeOptions::default()
        };
        let row = match play(runtime, policy, &question.question, options).await {
            Ok(trajectory) => Row::of(runtime, policy, guided, question, &trajectory, &plan.cost),
            Err(error) => Row::failed(question, &error),
        };
        (place, row)
    });
    let mut running = futures::stream::iter(episodes).buffer_unordered(plan.concurrency.max(1));
    let mut rows = Vec::with_capacity(questions.len());
    while let Some((place, row)) = running.next().await {
        done(&row);
        rows.push((place, row));
    }
    rows.sort_by_key(|(place, _)| *place);
    Outcome { rows: rows.into_iter().map(|(_, row)| row).collect(), seconds: began.elapsed().as_secs_f64() }
}

/// Runs one episode to its end, unwatched.
///
/// # Errors
/// As [`Episode::new`] and [`Episode::run`].
pub async fn play<S: Source>(
    runtime: &Runtime<S>,
    policy: &Policy,
    question: &str,
    options: EpisodeOptions,
) -> Result<Trajectory, AgentError> {
    /// Events that wait to be dropped.
    const WAITING: usize = 64;
    let episode = Episode::new(runtime, policy, Conversation::new(question), options)?;
    let (events, mut heard) = mpsc::channel(WAITING);
    let drain = async { while heard.recv().await.is_some() {} };
    futures::future::join(episode.run(events), drain).await.0
}

/// The seed of the episode at `place`: far from those of its neighbours, for turns add to it as well.
fn seed(start: u64, place: usize) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
    let mut z = start.wrapping_add((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_fails_only_as_a_whole() {
        let row = |error: Option<&str>| Row { error: error.map(str::to_owned), ..Row::default() };
        let failure = |errors: &[Option<&str>]| {
            let rows = errors.iter().map(|error| row(*error)).collect();
            Outcome { rows, seconds: 1.0 }.failure().map(str::to_owned)
        };
        assert_eq!(failure(&[Some("first"), Some("second")]).as_deref(), Some("first"));
        assert_eq!(failure(&[Some("first"), None]), None);
        assert_eq!(failure(&[]), None);
    }
}
