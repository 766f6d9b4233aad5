//! Branches of rollouts: further trajectories, each of which continues a state of a first one.

use waymark_agent::{AgentError, Conversation, Episode, EpisodeOptions, EpisodeState, Policy, Runtime, Trajectory};
use waymark_runtime::evaluate::drained;

use crate::recipe::dpo::Branches;
use crate::sample::BranchOrigin;
use crate::seeding;

/// A trajectory with the seed that it was sampled with.
#[derive(Debug)]
pub(crate) struct BranchedTrajectory {
    pub(crate) trajectory: Trajectory,
    pub(crate) seed: u64,
    /// State of another trajectory that it continues. `None` for the first one.
    pub(crate) origin: Option<BranchOrigin>,
}

/// Answers a question, and continues some states of the trajectory. Returns the trajectory, then its branches in the
/// order of their turns. The seed in `options` determines all of them.
pub(crate) async fn play(
    runtime: &Runtime,
    policy: &Policy,
    question: &str,
    options: EpisodeOptions,
    branches: Option<Branches>,
) -> Result<Vec<BranchedTrajectory>, AgentError> {
    let seed = options.seed;
    let episode = Episode::new(runtime, policy, Conversation::new(question), options)?;
    let Some(branches) = branches.filter(|branches| branches.width > 1) else {
        let trajectory = drained(|events| episode.run(events)).await?;
        return Ok(vec![BranchedTrajectory { trajectory, seed, origin: None }]);
    };
    let (trajectory, states) = drained(|events| episode.run_with_states(events)).await?;
    let of = trajectory.id.clone();
    let mut played = vec![BranchedTrajectory { trajectory, seed, origin: None }];
    for state in chosen(states, branches.states, seed) {
        let turn = state.turn();
        // One after the other, so that no more episodes run at a time than without branches.
        for number in 1..branches.width {
            let own = seeding::seed(seeding::seed(seed, "branch", turn as u64), "continuation", number as u64);
            let branch = state.branch(Some(format!("{of}-{turn}-{number}")), own);
            let trajectory = drained(|events| branch.run(events)).await?;
            let origin = Some(BranchOrigin { of: of.clone(), turn });
            played.push(BranchedTrajectory { trajectory, seed: own, origin });
        }
    }
    Ok(played)
}

/// Chooses `count` states, or all if it is 0. Drops the others, which frees their part of the KV cache.
fn chosen(states: Vec<EpisodeState>, count: usize, seed: u64) -> Vec<EpisodeState> {
    let mut order = seeding::shuffled(states.len(), seeding::seed(seed, "states", 0));
    order.truncate(if count == 0 { states.len() } else { count });
    let kept = states.into_iter().enumerate().filter(|(at, _)| order.contains(at));
    kept.map(|(_, state)| state).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use futures::future::BoxFuture;
    use waymark_agent::{Sampling, Search, SearchError, SearchQuery};
    use waymark_index::{Evidence, Mode};
    use waymark_runtime::evaluate::Question;

    use super::*;
    use crate::rollout::{QuestionSet, Rollout, RolloutSettings, rollouts};
    use crate::tiny;

    /// Index that is never searched, because the policy writes no search.
    #[derive(Debug)]
    struct Nothing;

    impl Search for Nothing {
        fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
            Box::pin(std::future::ready(Err(SearchError::Busy)))
        }

        fn modes(&self) -> Vec<Mode> {
            vec![Mode::Passage]
        }
    }

    /// Policy of four turns, in each of which a random model writes no action.
    fn policy(variant: &str) -> Policy {
        let text = format!(
            "name = \"a\"\nprotocol = \"evo-rag\"\nvariant = \"{variant}\"\n\
             [budget]\nturns = 3\nturn_tokens = 6\nsampled_tokens = 40\ncontext_tokens = 3000\n"
        );
        Policy::parse(&text, Path::new("policy.toml")).unwrap()
    }

    async fn played(runtime: &Runtime, policy: &Policy, branches: Option<Branches>) -> Vec<Rollout> {
        let question = |text: &str| Question { question: text.into(), ..Question::default() };
        let questions = [question("who?"), question("and where?")];
        let set = QuestionSet {
            name: "set".into(),
            runtime: runtime.clone(),
            index: None,
            questions: Vec::new(),
            validation: Vec::new(),
        };
        let asked: Vec<_> = questions.iter().map(|question| (&set, question)).collect();
        let sampling = Sampling { temperature: Some(1.0), ..Sampling::default() };
        let settings = RolloutSettings { group: 2, step: 3, branches, ..RolloutSettings::new(&sampling, 3, 5) };
        rollouts(policy, &asked, &settings).await.unwrap().rollouts
    }

    fn told(rollouts: &[Rollout]) -> Vec<(usize, &str, &[u32])> {
        rollouts.iter().map(|one| (one.group, one.sample.id.as_str(), one.sample.tokens.as_slice())).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn branches_share_the_tokens_of_their_trunk_up_to_their_turn() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 259);
        for variant in ["serving", "training"] {
            let policy = policy(variant);
            let mut runtime = tiny::engine(&weights);
            runtime.searcher = Some(Arc::new(Nothing));
            let alone = played(&runtime, &policy, None).await;
            let all = played(&runtime, &policy, Some(Branches { width: 3, states: 0 })).await;
            let (trunks, branches): (Vec<&Rollout>, Vec<&Rollout>) =
                all.iter().partition(|rollout| rollout.sample.branch.is_none());
            let trunk_tokens = |rollouts: Vec<&Rollout>| -> Vec<Vec<u32>> {
                rollouts.into_iter().map(|rollout| rollout.sample.tokens.clone()).collect()
            };
            assert_eq!(trunk_tokens(trunks.clone()), trunk_tokens(alone.iter().collect()), "trunks are as without");
            assert_eq!(branches.len(), trunks.iter().map(|trunk| 2 * trunk.sample.actions.len()).sum::<usize>());
            let ids: BTreeSet<&str> = all.iter().map(|rollout| rollout.sample.id.as_str()).collect();
            let seeds: BTreeSet<u64> = all.iter().map(|rollout| rollout.sample.seed).collect();
            assert_eq!((ids.len(), seeds.len()), (all.len(), all.len()));
            let mut sampled = 0;
            for branch in branches {
                let origin = branch.sample.branch.as_ref().unwrap();
                let trunk = trunks.iter().find(|trunk| trunk.sample.id == origin.of).unwrap();
                assert_eq!(trunk.group, branch.group);
                let shared = trunk.sample.turn_start(origin.turn - 1);
                assert_eq!(branch.sample.tokens[..shared], trunk.sample.tokens[..shared]);
                assert!(branch.sample.actions.len() >= origin.turn);
                assert!(branch.sampled() <= branch.row.tokens.sampled && branch.sampled() > 0);
                assert_eq!(branch.sampled() == branch.row.tokens.sampled, origin.turn == 1);
                sampled += usize::from(branch.sample.tokens != trunk.sample.tokens);
            }
            assert!(sampled > 10, "{sampled}");
            let again = played(&runtime, &policy, Some(Branches { width: 3, states: 0 })).await;
            assert_eq!(told(&again), told(&all), "a resumed run samples the same branches");
            let few = played(&runtime, &policy, Some(Branches { width: 2, states: 1 })).await;
            assert_eq!(few.len(), 2 * trunks.len(), "one branch of one state each");
            assert_eq!(runtime.engine.snapshot().await.unwrap().blocks.used, 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_width_of_one_makes_no_branch() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 259);
        let mut runtime = tiny::engine(&weights);
        runtime.searcher = Some(Arc::new(Nothing));
        let all = played(&runtime, &policy("serving"), Some(Branches { width: 1, states: 0 })).await;
        assert!(all.len() == 4 && all.iter().all(|rollout| rollout.sample.branch.is_none()));
        assert_eq!(runtime.engine.counters().forks_total.get(), 0);
    }
}
