//! The sections of a recipe.

use serde::{Deserialize, Serialize};
use waymark::agent::Sampling;
use waymark::metric::Cost;

use crate::advantage::Advantage;
use crate::policy_loss::Terms;
use crate::reward::Choice;
use crate::reward::path_router::{Routes, teacher_weight};
use crate::sample::Sample;
use crate::schedule::Shape;

/// AdamW (Loshchilov & Hutter 2019, algorithm 2) with gradient clipping. The defaults are `torch.optim.AdamW`'s in the
/// reference: betas 0.9 and 0.999, weight decay 0.01, norm at most 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Share of a value, times the learning rate, that each step takes away.
    pub weight_decay: f64,
    /// Largest norm of all gradients together; larger ones are scaled down to it. 0 leaves them as they are.
    pub clip: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01, clip: 1.0 }
    }
}

/// Learning from given trajectories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sft {
    /// The largest learning rate.
    pub learning_rate: f64,
    /// How it changes.
    pub schedule: Shape,
    /// Share of all steps in which it rises from zero.
    pub warmup: f64,
    /// How often each trajectory is seen.
    pub epochs: usize,
    /// Trajectories of one optimizer step.
    pub batch: usize,
    /// Tokens of one pass, shared prefixes counted once: what memory allows.
    pub pack_tokens: usize,
    /// How many trajectories are taken, the same ones for the same seed; all where nothing is said.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Longer trajectories are left out, in tokens.
    pub longest: usize,
    /// Share of the questions whose trajectories are kept aside to measure the loss on.
    pub held_out: f64,
    /// Steps from one measurement to the next; 0 measures at the end only.
    pub validate_every: usize,
    /// Steps from one checkpoint to the next; 0 writes the last only.
    pub save_every: usize,
    /// How many of the latest checkpoints are kept besides the best.
    pub keep_last: usize,
}

/// Learning from rewards by GRPO (Shao et al. 2024, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grpo {
    /// The largest learning rate.
    pub learning_rate: f64,
    /// How it changes, over the steps of all stages, also where they are trained one by one.
    pub schedule: Shape,
    /// Share of all steps in which it rises from zero.
    pub warmup: f64,
    /// Questions of one step.
    pub questions: usize,
    /// Trajectories of one question.
    pub group: usize,
    /// Trajectories of one optimizer step; all of the step's, where those are fewer.
    pub mini_batch: usize,
    /// Trajectories over whose tokens the loss is one mean.
    pub micro_batch: usize,
    /// Tokens of one pass, shared prefixes counted once: what memory allows.
    pub pack_tokens: usize,
    /// What the loss is made of.
    #[serde(default)]
    pub loss: Terms,
    /// How rewards become advantages.
    #[serde(default)]
    pub advantage: Advantage,
    /// By what those are multiplied, along which of PathRouter's routes a trajectory went; by nothing, where not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<Routes>,
    /// What draws trajectories that found too little to what the reference would have written with the gold passages before
    /// it; nothing, where not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<Teacher>,
    /// What the divergence is measured from.
    #[serde(default)]
    pub reference: Reference,
    /// How rollouts are sampled.
    pub sampling: Sampling,
    /// Rollouts that run at the same time.
    pub concurrent: usize,
    /// Leaves trajectories whose whole group earned the same out of the update, but for those that are taught. They carry only
    /// divergence and entropy; the weights of all others stay as they are.
    #[serde(default)]
    pub skip_flat: bool,
    /// Takes the log-probabilities before the update from the learner, as the reference does. Otherwise those of sampling
    /// count, which saves a pass and differs by rounding: engine and learner take the same arithmetic, but for an engine on
    /// a card, which has its own.
    #[serde(default = "yes")]
    pub recompute: bool,
    /// How searches are priced where they are reported, in stages whose reward does not price them: those that do are
    /// reported by their own price.
    ///
    /// A model of the cost that names no `nodes` takes those of each index, passages and phrases of its graph. The wall
    /// time is that from the moment an episode asks for a search to the moment it has the evidence: the wait for one of
    /// the threads that search (as many as cores, while `concurrent` episodes ask), the embedding of the query, the
    /// search. It is the paper's measure only where no more episodes run than there are threads.
    #[serde(default)]
    pub cost: Cost,
    /// What a unit of that cost weighs against EM when the best step of a stage that rewards cheap retrieval is chosen, by
    /// `EM − thrift · cost`: the mean of such a reward is the same for cheap policies and for dear ones. It is in no
    /// reward. This project's own: with the default, a tenth off three dense searches is worth one point of EM.
    #[serde(default = "thrift")]
    pub thrift: f64,
    /// Questions of each file that are asked to measure the policy: the last ones, which GRPO does not train on, though
    /// SFT may have seen them; or the first ones of a file of their own (`--validation`).
    pub validation: usize,
    /// Steps from one measurement to the next; 0 measures at the end only.
    pub validate_every: usize,
    /// Steps from one checkpoint to the next; 0 writes the last only.
    pub save_every: usize,
    /// How many of the latest checkpoints are kept besides the best.
    pub keep_last: usize,
    /// What is rewarded first, and for how long, and what after that.
    pub stages: Vec<Stage>,
}

/// PathRouter's teacher (§3.3, appendix B of its paper): `λ(s) · KL(p ‖ q)` beside the loss, as a mean over the trajectories
/// with too little evidence and over the tokens of each. See `grpo::teacher`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Teacher {
    /// How many of the teacher's most probable tokens are compared (K_vocab).
    pub tokens: usize,
    /// What λ rises to; at 0 nobody is taught.
    pub weight: f64,
    /// Steps in which it rises.
    pub warmup: usize,
    /// Evidence is enough from this SF-F1 on (θ_P).
    pub enough: f64,
}

impl Default for Teacher {
    fn default() -> Self {
        Self { tokens: 128, weight: 0.1, warmup: 20, enough: 0.1 }
    }
}

impl Teacher {
    /// λ of a step of the recipe, counted from 1.
    pub fn weight_at(&self, step: usize) -> f64 {
        teacher_weight(step, self.weight, self.warmup)
    }

    /// Whether a trajectory found too little; not where the support of its question is not known.
    pub fn concerns(&self, sample: &Sample) -> bool {
        sample.support.is_some_and(|support| support < self.enough)
    }
}

impl Grpo {
    /// The teacher, where it has a say.
    pub fn teaching(&self) -> Option<&Teacher> {
        self.teacher.as_ref().filter(|teacher| teacher.weight > 0.0)
    }

    /// Whether the frozen reference is asked about anything.
    pub fn refers(&self) -> bool {
        self.loss.kl > 0.0 || self.teaching().is_some()
    }
}

/// Steps under one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Steps it lasts.
    pub steps: usize,
    /// What is rewarded.
    pub reward: Choice,
}

/// What the divergence is measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// The policy that the run began with.
    #[default]
    Initial,
    /// The base model: without any adapter, or with the weights of the checkpoint where all are learnt.
    Base,
}

fn yes() -> bool {
    true
}

fn thrift() -> f64 {
    0.03
}
