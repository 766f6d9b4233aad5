//! Sections of a recipe: optimizer, supervised training and GRPO.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use waymark_agent::Sampling;
use waymark_agent::metric::Cost;
use waymark_index::Mode;

use crate::advantage::Advantage;
use crate::policy_loss::PolicyLossTerms;
use crate::reward::RewardChoice;
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::reward::path_router::{RouteWeights, teacher_weight};
use crate::sample::Sample;
use crate::schedule::ScheduleShape;
use crate::traps::Trap;

/// AdamW (Loshchilov & Hutter 2019, algorithm 2) with gradient clipping. The defaults are `torch.optim.AdamW`'s in the
/// reference: betas 0.9 and 0.999, weight decay 0.01, norm at most 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// Decay rates of the first and second moments (β₁, β₂).
    pub betas: (f64, f64),
    /// Term added to the root of the second moment (ε).
    pub epsilon: f64,
    /// Weight decay: each step subtracts this share of a value, times the learning rate.
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down to it. 0 disables clipping.
    pub clip: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01, clip: 1.0 }
    }
}

/// Supervised training on given trajectories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sft {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Shape of the learning rate schedule.
    pub schedule: ScheduleShape,
    /// Share of all steps used for linear warm-up.
    pub warmup: f64,
    /// Number of epochs.
    pub epochs: usize,
    /// Number of trajectories per optimizer step.
    pub batch: usize,
    /// Maximum number of tokens per pass, with shared prefixes counted once. Bounds memory use.
    pub pack_tokens: usize,
    /// Number of trajectories to train on, chosen by the seed. `None` uses all.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Maximum length of a trajectory in tokens; longer ones are left out.
    pub longest: usize,
    /// Share of questions whose trajectories are held out to measure the validation loss.
    pub held_out: f64,
    /// Number of steps between measurements. 0 measures only before the first step and after the last one.
    pub validate_every: usize,
    /// Number of steps between checkpoints. 0 writes only the last one. A new best measurement always writes one too.
    pub save_every: usize,
    /// Number of latest checkpoints to keep besides the best one.
    pub keep_last: usize,
}

/// Training on rewards with GRPO (Shao et al. 2024, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grpo {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Shape of the learning rate schedule over the steps of all stages, even if the stages are trained in separate
    /// commands.
    pub schedule: ScheduleShape,
    /// Share of all steps used for linear warm-up.
    pub warmup: f64,
    /// Number of questions per step.
    pub questions: usize,
    /// Number of trajectories per question.
    pub group: usize,
    /// Number of trajectories per optimizer step, limited to those of the step.
    pub mini_batch: usize,
    /// Number of trajectories whose tokens share one mean of the loss.
    pub micro_batch: usize,
    /// Maximum number of tokens per pass, with shared prefixes counted once. Bounds memory use.
    pub pack_tokens: usize,
    /// Terms of the loss.
    #[serde(default)]
    pub loss: PolicyLossTerms,
    /// Formula of the advantages.
    #[serde(default)]
    pub advantage: Advantage,
    /// Factors that multiply the advantages, by the PathRouter route of a trajectory. `None` leaves advantages
    /// unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<RouteWeights>,
    /// Teacher that pulls trajectories with too little evidence toward the distribution of the reference model,
    /// which sees the gold passages. `None` uses no teacher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherSettings>,
    /// Measure of the evidence of a trajectory: P of PathRouter's reward, routes and teacher. Serialized only if it is
    /// not the paper's, so that runs started before this field existed can resume.
    #[serde(default, skip_serializing_if = "is_paper")]
    pub evidence: EvidenceMeasure,
    /// Modes of the first searches of the first trajectories of each group; the other trajectories choose their own. A
    /// chosen mode is written after the tag that opens the query, and is no training target. The policy learns only to
    /// prefer its own choice if its trajectory beats those of the other modes. Empty for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_modes: Vec<Mode>,
    /// Reference policy of the KL divergence.
    #[serde(default)]
    pub reference: GrpoReference,
    /// Sampling parameters of rollouts.
    pub sampling: Sampling,
    /// Number of rollouts that run at the same time.
    pub concurrent: usize,
    /// Leaves groups with equal rewards out of the update, except for trajectories with a teacher. Their advantages
    /// are 0, so they would contribute only KL divergence and entropy. The weights of all other trajectories stay the
    /// same.
    #[serde(default)]
    pub skip_flat: bool,
    /// Computes the log-probabilities before the update with the learner, as the reference does. If `false`, the
    /// log-probabilities of sampling are used, which saves a pass. The two differ only by rounding on the CPU, where
    /// engine and learner share their arithmetic; the GPU engine has an arithmetic of its own.
    #[serde(default = "yes")]
    pub recompute: bool,
    /// Cost model for reported retrieval costs, in stages whose reward has no cost model of its own.
    ///
    /// If the model names no `nodes`, it uses the size of each index: passages and phrases of its graph. Wall time
    /// runs from the request for a search to its evidence: waiting for one of the search threads (as many as cores,
    /// shared by `concurrent` episodes), embedding the query, and searching. It matches the paper's measure only if
    /// no more episodes run than there are threads.
    #[serde(default)]
    pub cost: Cost,
    /// Weight of retrieval cost against EM when the best step of a stage with an efficiency reward is chosen, by `EM
    /// − thrift · cost`. The mean of such a reward is the same for cheap and for expensive policies, so the reward
    /// cannot rank them. Not part of any reward. Specific to this project: with the default, saving a tenth of three
    /// dense searches is worth one point of EM.
    #[serde(default = "thrift")]
    pub thrift: f64,
    /// Number of validation questions per file: the last ones, which GRPO does not train on (SFT may have seen them),
    /// or the first ones of a separate file (`--validation`).
    pub validation: usize,
    /// Number of steps between measurements. 0 measures only before the first step and at the end of each stage.
    pub validate_every: usize,
    /// Number of steps between checkpoints. 0 writes only one at the end of each stage. A new best measurement always
    /// writes one too.
    pub save_every: usize,
    /// Number of latest checkpoints to keep besides the best one.
    pub keep_last: usize,
    /// Training stages, in order.
    pub stages: Vec<GrpoStage>,
}

/// PathRouter's teacher (§3.3, appendix B of its paper): adds `λ(s) · KL(p ‖ q)` to the loss, averaged over the
/// tokens of each trajectory with too little evidence, then over those trajectories. See `grpo::teacher`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherSettings {
    /// Number of the teacher's most probable tokens to compare (K_vocab).
    pub tokens: usize,
    /// Final value of λ. 0 disables the teacher.
    pub weight: f64,
    /// Number of steps over which λ rises.
    pub warmup: usize,
    /// Minimum P of sufficient evidence (θ_P).
    pub enough: f64,
}

impl Default for TeacherSettings {
    fn default() -> Self {
        Self { tokens: 128, weight: 0.1, warmup: 20, enough: 0.1 }
    }
}

impl TeacherSettings {
    /// Returns λ at a step of the recipe, counted from 1.
    pub fn weight_at(&self, step: usize) -> f64 {
        teacher_weight(step, self.weight, self.warmup)
    }

    /// Returns `true` if a trajectory found too little evidence. If the supporting passages are not known, returns
    /// `false`.
    pub fn applies_to(&self, sample: &Sample) -> bool {
        sample.support.is_some_and(|support| support < self.enough)
    }
}

impl Grpo {
    /// Returns the teacher, unless its weight is 0.
    pub fn active_teacher(&self) -> Option<&TeacherSettings> {
        self.teacher.as_ref().filter(|teacher| teacher.weight > 0.0)
    }

    /// Returns `true` if the update needs the frozen reference model.
    pub fn needs_reference(&self) -> bool {
        self.loss.kl > 0.0 || self.active_teacher().is_some()
    }

    /// Returns the reason why no other policy can be given as the reference. `None` if one can.
    pub fn reference_flaw(&self) -> Option<&'static str> {
        if self.reference == GrpoReference::Base {
            Some("the recipe measures the divergence from the base model (grpo.reference = \"base\")")
        } else if !self.needs_reference() {
            Some("the recipe uses no reference: grpo.loss.kl is 0 and there is no grpo.teacher")
        } else {
            None
        }
    }

    /// Returns `true` if all of these stages reward refusals.
    pub fn rewards_refusals(&self, stages: Range<usize>) -> bool {
        self.stages[stages].iter().all(|stage| stage.reward.rewards_refusals())
    }

    /// Returns `true` if training these stages needs questions with known supporting passages.
    pub fn needs_support(&self, stages: Range<usize>) -> bool {
        // Route weights and the teacher need them even if no reward does.
        let weighed = self.routes.is_some() || self.active_teacher().is_some();
        weighed || self.stages[stages].iter().any(|stage| stage.reward.reward().needs_support())
    }

    /// Returns the range of the stages to train: the one with this number, from 1, or all for `None`.
    ///
    /// # Errors
    /// The reason why the stage cannot be trained.
    pub fn stages_to_train(&self, number: Option<usize>) -> Result<Range<usize>, String> {
        let count = self.stages.len();
        let Some(number) = number else { return Ok(0..count) };
        if !(1..=count).contains(&number) {
            return Err(format!("the recipe has {count} stages"));
        }
        if self.stages[number - 1].steps == 0 {
            return Err("the stage has no steps (grpo.stages of the recipe)".to_owned());
        }
        Ok(number - 1..number)
    }
}

/// Steps with one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpoStage {
    /// Number of steps.
    pub steps: usize,
    /// Reward function.
    pub reward: RewardChoice,
    /// Bad behaviors that earn more than a right answer on purpose; see [`crate::traps`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_traps: Vec<Trap>,
}

/// Reference policy of the KL divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrpoReference {
    /// Policy at the start of the run.
    #[default]
    Initial,
    /// Base model: without an adapter, or with the weights of its checkpoint if all weights are trained.
    Base,
}

fn is_paper(measure: &EvidenceMeasure) -> bool {
    *measure == EvidenceMeasure::default()
}

fn yes() -> bool {
    true
}

fn thrift() -> f64 {
    0.03
}
