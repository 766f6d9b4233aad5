//! Section of a recipe for training on preferences.

use serde::{Deserialize, Deserializer, Serialize};
use waymark_agent::Sampling;
use waymark_agent::metric::Cost;

use super::Ranker;
use super::read::{COUNT, Check, RATE, SHARE, rate, share};
use crate::dpo::PairRule;
use crate::reward::RewardChoice;
use crate::schedule::ScheduleShape;
use crate::traps::Trap;

/// Training on preferences with DPO (Rafailov et al. 2023), in rounds. In each round the policy answers questions
/// several times, pairs of trajectories are chosen by their rewards, and a few epochs over the pairs follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dpo {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Shape of the learning rate schedule over the optimizer steps of a round. Every round starts anew, with zero
    /// moments. Without a warm-up, its first step has the full rate.
    pub schedule: ScheduleShape,
    /// Share of a round's optimizer steps used for linear warm-up.
    pub warmup: f64,
    /// Number of questions per round, limited to those available.
    pub questions: usize,
    /// Number of trajectories per question, without branches.
    pub group: usize,
    /// Further trajectories, which continue states of the first ones. `None` samples none, and is not serialized, so
    /// that runs started before this field existed can resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<Branches>,
    /// Number of pairs per optimizer step.
    pub batch: usize,
    /// Maximum number of tokens per pass, with shared prefixes counted once. Bounds memory use.
    pub pack_tokens: usize,
    /// β: scale of the margin in the loss.
    pub beta: f64,
    /// Reference policy of the margins.
    #[serde(default)]
    pub reference: DpoReference,
    /// Preference model that learns to tell the better of two branches. `None`, or a model without heads in a recipe,
    /// trains no preference model, and is not serialized, so that runs started before this field existed can resume.
    #[serde(default, deserialize_with = "with_heads", skip_serializing_if = "Option::is_none")]
    pub ranker: Option<Ranker>,
    /// Sampling parameters of rollouts.
    pub sampling: Sampling,
    /// Number of rollouts that run at the same time.
    pub concurrent: usize,
    /// Cost model for reported retrieval costs, in stages whose reward has no cost model of its own.
    #[serde(default)]
    pub cost: Cost,
    /// Number of validation questions per file, asked before the first round and after each round: the last ones,
    /// which are not trained on, or the first ones of a separate file (`--validation`). The best round of a stage is
    /// the one with the highest EM on them.
    pub validation: usize,
    /// Number of optimizer steps between checkpoints. 0 writes one after the rollouts of a round and one at its end.
    pub save_every: usize,
    /// Number of latest checkpoints to keep besides the best one.
    pub keep_last: usize,
    /// Training stages, in order.
    pub stages: Vec<DpoStage>,
}

/// Branches of trajectories: at a state, which is the beginning of a turn, several continuations are sampled from the
/// same tokens (EVO-RAG, §3.3 and §3.4), so that pairs exist at states that trajectories would not share by chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branches {
    /// k: number of continuations of a state, the trajectory's own among them. 1 makes no branch.
    pub width: usize,
    /// Number of states of each trajectory that are continued, chosen at random. 0 continues all.
    #[serde(default)]
    pub states: usize,
}

/// Rounds with one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DpoStage {
    /// Maximum number of rounds.
    pub rounds: usize,
    /// Number of rounds without a better measurement after which the stage ends early. 0 runs all rounds.
    #[serde(default)]
    pub patience: usize,
    /// Number of epochs over the pairs of a round.
    pub epochs: usize,
    /// λ: weight of the negative log-likelihood per token of chosen trajectories.
    #[serde(default)]
    pub nll: f64,
    /// Initial policy of the stage.
    #[serde(default)]
    pub begins: StageStart,
    /// Reward function.
    pub reward: RewardChoice,
    /// Rule that selects the pairs.
    pub pairs: PairRule,
    /// Bad behaviors that earn more than a right answer on purpose; see [`crate::traps`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_traps: Vec<Trap>,
}

/// Reference policy of the margins of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpoReference {
    /// Policy at the start of the run.
    #[default]
    Initial,
    /// Policy at the start of each round, which produced the round's trajectories.
    Round,
    /// No reference: the chosen trajectory has to become more probable than the rejected one, not just more probable
    /// than before.
    None,
}

/// Initial policy of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStart {
    /// Policy of the last round before the stage.
    #[default]
    Last,
    /// Policy of the best round of the previous stage.
    Best,
}

/// Reads a preference model. `None` if it has no heads.
fn with_heads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ranker>, D::Error> {
    let ranker = Option::<Ranker>::deserialize(deserializer)?;
    Ok(ranker.filter(|ranker| ranker.heads > 0))
}

impl Dpo {
    /// Returns `true` if all stages reward refusals.
    pub fn rewards_refusals(&self) -> bool {
        self.stages.iter().all(|stage| stage.reward.rewards_refusals())
    }

    /// Returns `true` if the training needs questions with known supporting passages.
    pub fn needs_support(&self) -> bool {
        self.stages.iter().any(|stage| stage.reward.reward().needs_support())
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let stages = |right: fn(&DpoStage) -> bool| self.stages.iter().all(right);
        let measured = self.validation > 0;
        let width = self.branches.map_or(1, |branches| branches.width);
        let own = [
            ("dpo.learning_rate", rate(self.learning_rate), RATE),
            ("dpo.warmup", share(self.warmup), SHARE),
            ("dpo.questions", self.questions > 0, COUNT),
            (
                "dpo.group",
                self.group > 1 || (self.group == 1 && width > 1),
                "must be at least 2, because a trajectory is compared with others of its question, or at least 1 if \
                 dpo.branches.width is above 1",
            ),
            ("dpo.branches.width", width > 0, COUNT),
            ("dpo.batch", self.batch > 0, COUNT),
            ("dpo.pack_tokens", self.pack_tokens > 0, COUNT),
            ("dpo.beta", self.beta > 0.0, "must be above 0"),
            ("dpo.concurrent", self.concurrent > 0, COUNT),
            ("dpo.keep_last", self.keep_last > 0, COUNT),
            ("dpo.stages", !self.stages.is_empty(), "must contain at least one stage"),
            ("dpo.stages.rounds", stages(|stage| stage.rounds > 0), COUNT),
            ("dpo.stages.epochs", stages(|stage| stage.epochs > 0), COUNT),
            ("dpo.stages.nll", stages(|stage| stage.nll >= 0.0), "must be at least 0"),
            (
                "dpo.stages.patience",
                measured || stages(|stage| stage.patience == 0),
                "needs measurements: set dpo.validation above 0",
            ),
            (
                "dpo.stages.begins",
                measured || stages(|stage| stage.begins == StageStart::Last),
                "needs measurements to find the best round: set dpo.validation above 0",
            ),
            (
                "dpo.stages.pairs",
                stages(|stage| {
                    !matches!(stage.pairs, PairRule::TeaRag(_)) || matches!(stage.reward, RewardChoice::TeaRag(_))
                }),
                "tearag compares components of the reward tearag: use that reward or pairs = { siblings = { margin = … } }",
            ),
            (
                "dpo.stages.pairs",
                stages(|stage| stage.pairs.is_sound()),
                "a trajectory could be both chosen and rejected: wrong must be below single and right, poor at most \
                 reasoned, and margin at least 0",
            ),
        ];
        let ranker = self.ranker.iter().flat_map(|ranker| ranker.checks(&self.stages));
        own.into_iter().chain(ranker).collect()
    }
}
