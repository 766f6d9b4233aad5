//! Learning rate schedules.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Learning rate schedule: the factor of the peak rate at each update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRateSchedule {
    /// Shape after the warm-up.
    pub shape: ScheduleShape,
    /// Number of updates over which the rate rises linearly from 0.
    pub warmup: usize,
    /// Total number of updates. [`ScheduleShape::Constant`] ignores it.
    pub total: usize,
}

/// Shape of a learning rate schedule after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleShape {
    /// Constant (verl's `get_constant_schedule_with_warmup`).
    #[default]
    Constant,
    /// Linear decay to 0 (`get_linear_schedule_with_warmup` of transformers).
    Linear,
    /// Decay to 0 along half a cosine (`get_cosine_schedule_with_warmup` of transformers).
    Cosine,
}

impl LearningRateSchedule {
    /// Creates a schedule of `total` updates whose first share `warmup` is the warm-up, rounded down to whole updates
    /// as verl does (verl's recipes are the ones that state a share).
    pub fn over(total: usize, shape: ScheduleShape, warmup: f64) -> Self {
        Self { shape, warmup: (total as f64 * warmup) as usize, total }
    }

    /// Returns the factor at `update` of a round, as transformers and TRL compute it: without a warm-up, the first
    /// update of every shape has the full rate. By [`factor`](Self::factor), a round of one update would learn nothing
    /// with the constant shape.
    pub fn factor_in_round(&self, update: usize) -> f64 {
        let constant = self.shape == ScheduleShape::Constant;
        if constant && self.warmup == 0 { 1.0 } else { self.factor(update) }
    }

    /// Returns the factor at `update`, the number of updates made before.
    ///
    /// The constant shape is `min(1, update / max(1, warmup))`, so the first update has rate 0 even without a
    /// warm-up: the reference starts its scheduler at 0 and advances it after each update. The decaying shapes follow
    /// transformers, whose first update has the full rate if there is no warm-up.
    pub fn factor(&self, update: usize) -> f64 {
        let LearningRateSchedule { shape, warmup, total } = *self;
        // `max(1)` as in verl: without a warm-up, the first update has factor 0 and the second 1.
        let rise = update as f64 / warmup.max(1) as f64;
        if shape == ScheduleShape::Constant {
            return rise.min(1.0);
        }
        if update < warmup {
            return rise;
        }
        // Updates beyond `total` keep the final factor.
        let progress = ((update - warmup) as f64 / total.saturating_sub(warmup).max(1) as f64).min(1.0);
        match shape {
            ScheduleShape::Constant => 1.0,
            ScheduleShape::Linear => 1.0 - progress,
            ScheduleShape::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Map, Value};

    use super::*;
    use crate::outside;

    #[derive(Deserialize)]
    struct ScheduleVectors {
        #[serde(default)]
        schedules: BTreeMap<String, Rates>,
    }

    #[derive(Deserialize)]
    struct Rates {
        warmup_steps: usize,
        /// Remaining fields. The field of rates has a name that states their number.
        #[serde(flatten)]
        rest: Map<String, Value>,
    }

    #[test]
    fn lr_schedule() {
        for ScheduleVectors { schedules } in outside::vectors("lr_schedule") {
            outside::require(!schedules.is_empty(), format_args!("lr_schedule has no schedules"));
            for (name, Rates { warmup_steps, rest }) in schedules {
                let schedule = LearningRateSchedule { shape: ScheduleShape::Constant, warmup: warmup_steps, total: 0 };
                for (count, rates) in outside::by_parameter(&rest, "lr_used_in_update_1_to_") {
                    let rates = rates.as_array().unwrap();
                    assert_eq!(rates.len(), count.parse::<usize>().unwrap(), "{name}");
                    for (update, rate) in rates.iter().enumerate() {
                        // 1e-6 is the learning rate of the reference script.
                        let off = schedule.factor(update) * 1e-6 - rate.as_f64().unwrap();
                        assert!(off.abs() < 1e-15, "{name}: update {update}");
                    }
                }
            }
        }
    }

    #[test]
    fn warm_up_is_rounded_down_to_whole_updates() {
        // Search-R1's warm-up share, and the 500 steps of its paper.
        for (total, warmup) in [(500, 142), (1005, 286), (1, 0)] {
            assert_eq!(
                LearningRateSchedule::over(total, ScheduleShape::Constant, 0.285),
                LearningRateSchedule { shape: ScheduleShape::Constant, warmup, total }
            );
        }
    }

    #[test]
    fn a_round_without_a_warm_up_begins_with_the_full_rate() {
        for shape in [ScheduleShape::Constant, ScheduleShape::Linear, ScheduleShape::Cosine] {
            let schedule = LearningRateSchedule { shape, warmup: 0, total: 1 };
            assert_eq!(schedule.factor_in_round(0), 1.0, "{shape:?}");
            let warmed = LearningRateSchedule { warmup: 2, total: 4, ..schedule };
            for update in 0..4 {
                assert_eq!(warmed.factor_in_round(update), warmed.factor(update), "{shape:?}");
            }
        }
    }

    #[test]
    fn decaying_shapes_reach_both_ends() {
        for shape in [ScheduleShape::Linear, ScheduleShape::Cosine] {
            let schedule = LearningRateSchedule { shape, warmup: 10, total: 110 };
            let factors: Vec<f64> = [0, 5, 10, 60, 110, 500].map(|update| schedule.factor(update)).to_vec();
            for (factor, expected) in factors.iter().zip([0.0, 0.5, 1.0, 0.5, 0.0, 0.0]) {
                assert!((factor - expected).abs() < 1e-12, "{shape:?} {factors:?}");
            }
            assert!((10..110).all(|update| schedule.factor(update + 1) <= schedule.factor(update)));
            assert_eq!(LearningRateSchedule { shape, warmup: 0, total: 3 }.factor(0), 1.0);
        }
    }
}
