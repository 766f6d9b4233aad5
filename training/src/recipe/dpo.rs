//! The section for learning from preferences.

use serde::{Deserialize, Serialize};
use waymark::agent::Sampling;
use waymark::metric::Cost;

use super::Ranker;
use super::read::{COUNT, Check, RATE, SHARE, rate, share};
use crate::dpo::Rule;
use crate::reward::Choice;
use crate::schedule::Shape;

/// Learning from preferences by DPO (Rafailov et al. 2023), round by round: the policy answers questions several times, pairs
/// of its trajectories are chosen by their rewards, and a few epochs over them follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dpo {
    /// The largest learning rate.
    pub learning_rate: f64,
    /// How it changes over the optimizer steps of a round; each round begins anew, with fresh moments.
    pub schedule: Shape,
    /// Share of a round's optimizer steps in which it rises from zero.
    pub warmup: f64,
    /// Questions of one round; all of them, where there are fewer.
    pub questions: usize,
    /// Trajectories of one question.
    pub group: usize,
    /// Pairs of one optimizer step.
    pub batch: usize,
    /// Tokens of one pass, shared prefixes counted once: what memory allows.
    pub pack_tokens: usize,
    /// β: how much the margin of a pair counts.
    pub beta: f64,
    /// What margins are measured from.
    #[serde(default)]
    pub reference: Reference,
    /// What learns beside the policy to tell the better of two branches; nothing, where not stated. Written only where
    /// something does, so that runs from before it go on.
    #[serde(default, skip_serializing_if = "no_heads")]
    pub ranker: Option<Ranker>,
    /// How rollouts are sampled.
    pub sampling: Sampling,
    /// Rollouts that run at the same time.
    pub concurrent: usize,
    /// How searches are priced where they are reported, in stages whose reward does not price them.
    #[serde(default)]
    pub cost: Cost,
    /// Questions of each file that are asked to measure the policy, before the first round and after each: the last ones,
    /// which are not learnt from; or the first ones of a file of their own (`--validation`). The best round of a stage is
    /// the one with the highest EM on them.
    pub validation: usize,
    /// Optimizer steps from one checkpoint to the next; 0 writes one after the rollouts of a round and one at its end only.
    pub save_every: usize,
    /// How many of the latest checkpoints are kept besides the best.
    pub keep_last: usize,
    /// What is rewarded first, and for how many rounds, and what after that.
    pub stages: Vec<Stage>,
}

/// Rounds under one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Rounds it lasts, at most.
    pub rounds: usize,
    /// Rounds without a better measurement after which it ends before that; 0 makes all.
    #[serde(default)]
    pub patience: usize,
    /// How often each pair of a round is seen.
    pub epochs: usize,
    /// λ: weight of the negative log-likelihood per token of chosen trajectories.
    #[serde(default)]
    pub nll: f64,
    /// What it begins with.
    #[serde(default)]
    pub begins: Begins,
    /// What is rewarded.
    pub reward: Choice,
    /// What is preferred to what.
    pub pairs: Rule,
}

/// What the margins of pairs are measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// The policy that the run began with.
    #[default]
    Initial,
    /// The policy as each round begins, which made the round's trajectories.
    Round,
    /// Nothing: the chosen trajectory is to be the more probable one, and not only more than it was.
    None,
}

/// The policy that a stage begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begins {
    /// That of the last round before it.
    #[default]
    Last,
    /// That of the best round of the stage before it.
    Best,
}

fn no_heads(ranker: &Option<Ranker>) -> bool {
    ranker.is_none_or(|ranker| ranker.heads == 0)
}

impl Dpo {
    /// The ranker, where it has a head.
    pub fn ranking(&self) -> Option<&Ranker> {
        self.ranker.as_ref().filter(|ranker| ranker.heads > 0)
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let stages = |right: fn(&Stage) -> bool| self.stages.iter().all(right);
        let measured = self.validation > 0;
        let own = [
            ("dpo.learning_rate", rate(self.learning_rate), RATE),
            ("dpo.warmup", share(self.warmup), SHARE),
            ("dpo.questions", self.questions > 0, COUNT),
            ("dpo.group", self.group > 1, "must be at least 2: a trajectory is compared with others of its question"),
            ("dpo.batch", self.batch > 0, COUNT),
            ("dpo.pack_tokens", self.pack_tokens > 0, COUNT),
            ("dpo.beta", self.beta > 0.0, "must be above 0"),
            ("dpo.concurrent", self.concurrent > 0, COUNT),
            ("dpo.keep_last", self.keep_last > 0, COUNT),
            ("dpo.stages", !self.stages.is_empty(), "must have a stage"),
            ("dpo.stages.rounds", stages(|stage| stage.rounds > 0), COUNT),
            ("dpo.stages.epochs", stages(|stage| stage.epochs > 0), COUNT),
            ("dpo.stages.nll", stages(|stage| stage.nll >= 0.0), "must not be below 0"),
            (
                "dpo.stages.patience",
                measured || stages(|stage| stage.patience == 0),
                "goes by measurements: set dpo.validation above 0",
            ),
            (
                "dpo.stages.begins",
                measured || stages(|stage| stage.begins == Begins::Last),
                "the best round is known by measurements: set dpo.validation above 0",
            ),
            (
                "dpo.stages.pairs",
                stages(|stage| !matches!(stage.pairs, Rule::TeaRag(_)) || matches!(stage.reward, Choice::TeaRag(_))),
                "tearag goes by the parts of the reward tearag: take that reward, or pairs = { siblings = { margin = … } }",
            ),
            (
                "dpo.stages.pairs",
                stages(|stage| stage.pairs.is_sound()),
                "a trajectory could be chosen and rejected: wrong must be below single and right, poor at most reasoned, \
                 and margin not below 0",
            ),
        ];
        let ranker = self.ranker.iter().flat_map(|ranker| ranker.checks(&self.stages));
        own.into_iter().chain(ranker).collect()
    }
}
