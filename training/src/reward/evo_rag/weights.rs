//! Weights of EVO-RAG's step rewards (§3.2 and Table 1 of its paper).

use serde::{Deserialize, Serialize};

/// One number per step reward: either its weight or its value.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepRewards {
    /// β: retrieval of a supporting passage, +1, or of none, −1.
    pub retrieval_bonus: f64,
    /// λ: late search similar to an earlier one, −1.
    pub retrieval_action: f64,
    /// γ: negated similarity to the most similar earlier query.
    pub overlap: f64,
    /// δ: backtracking, −1.
    pub backtrack: f64,
    /// ρ: correct refusal, +1, or wrong refusal, −1.
    pub refusal: f64,
    /// η: cost of every step, −1.
    pub step: f64,
    /// κ: mean of EM and F1 of the final answer.
    pub answer: f64,
}

/// Weights of Table 1: at the start of stage 1, between the stages, and at the end of stage 2.
const CORNERS: [[f64; 7]; 3] = [
    [2.0, 1.5, 0.1, 0.3, 0.5, 0.02, 0.05],
    [1.0, 0.8, 0.5, 0.5, 0.5, 0.05, 0.10],
    [0.5, 0.4, 1.2, 1.0, 0.5, 0.10, 1.00],
];

/// Stage of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvoRagStage {
    /// Stage 1, discovery.
    #[default]
    First,
    /// Stage 2, refinement.
    Second,
}

/// Change of weights within an episode (Table 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightSchedule {
    /// From the stage's initial to its final weights ("time-dynamic", §3.6).
    #[default]
    Dynamic,
    /// Constant weights ("two-stage"). The paper does not say which ones; here the stage's initial weights.
    Fixed,
}

impl WeightSchedule {
    /// Returns the step at which [`StepRewards::weights`] is evaluated for `step`: 0 if the weights are constant.
    pub fn time(self, step: usize) -> usize {
        match self {
            WeightSchedule::Dynamic => step,
            WeightSchedule::Fixed => 0,
        }
    }

    pub(super) fn is_dynamic(&self) -> bool {
        *self == WeightSchedule::Dynamic
    }
}

/// Name of a step reward, in the order of [`StepRewards::NAMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepRewardName {
    /// β.
    RetrievalBonus,
    /// λ.
    RetrievalAction,
    /// γ.
    Overlap,
    /// δ.
    Backtrack,
    /// ρ.
    Refusal,
    /// η.
    Step,
    /// κ.
    Answer,
}

impl StepRewards {
    /// Names of the rewards, in the order of [`values`](Self::values).
    pub const NAMES: [&'static str; 7] =
        ["retrieval_bonus", "retrieval_action", "overlap", "backtrack", "refusal", "step", "answer"];

    /// Returns all numbers in the order of [`NAMES`](Self::NAMES).
    pub fn values(&self) -> [f64; 7] {
        let StepRewards { retrieval_bonus, retrieval_action, overlap, backtrack, refusal, step, answer } = *self;
        [retrieval_bonus, retrieval_action, overlap, backtrack, refusal, step, answer]
    }

    /// Returns the weights at step `step` of at most `most`: an interpolation between the stage's initial and final
    /// weights by the share of the episode that is over (eq. 2). In §3.2 of the paper, λ and η change in the other
    /// direction; this follows its table.
    pub fn weights(stage: EvoRagStage, step: usize, most: usize) -> StepRewards {
        let progress = (step as f64 / most.max(1) as f64).min(1.0);
        let (from, to) = match stage {
            EvoRagStage::First => (CORNERS[0], CORNERS[1]),
            EvoRagStage::Second => (CORNERS[1], CORNERS[2]),
        };
        let mix = |i: usize| (1.0 - progress) * from[i] + progress * to[i];
        StepRewards {
            retrieval_bonus: mix(0),
            retrieval_action: mix(1),
            overlap: mix(2),
            backtrack: mix(3),
            refusal: mix(4),
            step: mix(5),
            answer: mix(6),
        }
    }

    /// Returns the weights with 0 for all rewards that are not in `kept`. An empty list keeps all.
    pub fn restricted_to(self, kept: &[StepRewardName]) -> StepRewards {
        let weight =
            |name: StepRewardName, value: f64| if kept.is_empty() || kept.contains(&name) { value } else { 0.0 };
        StepRewards {
            retrieval_bonus: weight(StepRewardName::RetrievalBonus, self.retrieval_bonus),
            retrieval_action: weight(StepRewardName::RetrievalAction, self.retrieval_action),
            overlap: weight(StepRewardName::Overlap, self.overlap),
            backtrack: weight(StepRewardName::Backtrack, self.backtrack),
            refusal: weight(StepRewardName::Refusal, self.refusal),
            step: weight(StepRewardName::Step, self.step),
            answer: weight(StepRewardName::Answer, self.answer),
        }
    }

    /// Returns the sum of rewards, weighted by `self`: R of one step (eq. 1).
    pub fn weighed(&self, rewards: &StepRewards) -> f64 {
        self.retrieval_bonus * rewards.retrieval_bonus
            + self.retrieval_action * rewards.retrieval_action
            + self.overlap * rewards.overlap
            + self.backtrack * rewards.backtrack
            + self.refusal * rewards.refusal
            + self.step * rewards.step
            + self.answer * rewards.answer
    }
}
