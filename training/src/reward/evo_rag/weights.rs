//! EVO-RAG's weights of step rewards (§3.2 and Table 1 of its paper).

use serde::{Deserialize, Serialize};

/// One number per step reward: a weight, or the reward itself.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Steps {
    /// β: finding a supporting passage, +1, or none, −1.
    pub retrieval_bonus: f64,
    /// λ: searching late what is like an earlier search, −1.
    pub retrieval_action: f64,
    /// γ: likeness to the nearest earlier query, negative.
    pub overlap: f64,
    /// δ: going back, −1.
    pub backtrack: f64,
    /// ρ: refusing rightly, +1, or wrongly, −1.
    pub refusal: f64,
    /// η: any step, −1.
    pub step: f64,
    /// κ: the mean of EM and F1 at the end.
    pub answer: f64,
}

/// Table 1: the weights at the beginning of stage 1, between the stages, and at the end of stage 2.
const CORNERS: [[f64; 7]; 3] = [
    [2.0, 1.5, 0.1, 0.3, 0.5, 0.02, 0.05],
    [1.0, 0.8, 0.5, 0.5, 0.5, 0.05, 0.10],
    [0.5, 0.4, 1.2, 1.0, 0.5, 0.10, 1.00],
];

/// The two stages of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Discovery.
    #[default]
    First,
    /// Refinement.
    Second,
}

/// How weights change within an episode (Table 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// From those of a stage's beginning towards those of its end ("time-dynamic", §3.6).
    #[default]
    Dynamic,
    /// Not at all ("two-stage"). Which ones a stage keeps the paper does not say; here those of its beginning.
    Fixed,
}

impl Schedule {
    /// The step whose weights a step is rewarded by.
    pub fn time(self, step: usize) -> usize {
        match self {
            Schedule::Dynamic => step,
            Schedule::Fixed => 0,
        }
    }

    pub(super) fn is_dynamic(&self) -> bool {
        *self == Schedule::Dynamic
    }
}

impl Steps {
    /// What they are called, in the order of [`values`](Self::values).
    pub const NAMES: [&'static str; 7] =
        ["retrieval_bonus", "retrieval_action", "overlap", "backtrack", "refusal", "step", "answer"];

    /// All of them.
    pub fn values(&self) -> [f64; 7] {
        let Steps { retrieval_bonus, retrieval_action, overlap, backtrack, refusal, step, answer } = *self;
        [retrieval_bonus, retrieval_action, overlap, backtrack, refusal, step, answer]
    }

    /// The weights at step `step` of at most `most`: those of the stage's two ends, mixed by how much of the episode is
    /// over (eq. 2). §3.2 of the paper has λ and η run otherwise; this is its table.
    pub fn weights(stage: Stage, step: usize, most: usize) -> Steps {
        let through = (step as f64 / most.max(1) as f64).min(1.0);
        let (from, to) = match stage {
            Stage::First => (CORNERS[0], CORNERS[1]),
            Stage::Second => (CORNERS[1], CORNERS[2]),
        };
        let mix = |i: usize| (1.0 - through) * from[i] + through * to[i];
        Steps {
            retrieval_bonus: mix(0),
            retrieval_action: mix(1),
            overlap: mix(2),
            backtrack: mix(3),
            refusal: mix(4),
            step: mix(5),
            answer: mix(6),
        }
    }

    /// The sum of rewards by weights: R of one step (eq. 1).
    pub fn weighed(&self, rewards: &Steps) -> f64 {
        self.retrieval_bonus * rewards.retrieval_bonus
            + self.retrieval_action * rewards.retrieval_action
            + self.overlap * rewards.overlap
            + self.backtrack * rewards.backtrack
            + self.refusal * rewards.refusal
            + self.step * rewards.step
            + self.answer * rewards.answer
    }
}
