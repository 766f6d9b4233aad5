//! How the learning rate changes while training goes on.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// The part of the learning rate that an update is made with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// What comes after the warm-up.
    pub shape: Shape,
    /// Updates over which the rate rises from 0, in equal steps.
    pub warmup: usize,
    /// Updates in all; [`Shape::Constant`] does not ask.
    pub total: usize,
}

/// What a learning rate does after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Stays (verl's `get_constant_schedule_with_warmup`).
    #[default]
    Constant,
    /// Falls to 0 in equal steps (`get_linear_schedule_with_warmup` of transformers).
    Linear,
    /// Falls to 0 along half a cosine (`get_cosine_schedule_with_warmup` of transformers).
    Cosine,
}

impl Schedule {
    /// A schedule of `total` updates, of which `warmup` is the share over which the rate rises: whole updates, rounded down as
    /// verl does, whose recipes are the ones with a share.
    pub fn over(total: usize, shape: Shape, warmup: f64) -> Self {
        Self { shape, warmup: (total as f64 * warmup) as usize, total }
    }

    /// The factor at `update`, counted from 0: how many updates were made before.
    ///
    /// In the constant form it is `min(1, update / max(1, warmup))`, so that the first update has the rate 0 even without
    /// a warm-up: the reference moves its scheduler after each update and begins it at 0. The falling forms are those of
    /// transformers, whose first update is at full rate where there is no warm-up.
    pub fn factor(&self, update: usize) -> f64 {
        let Schedule { shape, warmup, total } = *self;
        let rise = update as f64 / warmup.max(1) as f64;
        if shape == Shape::Constant {
            return rise.min(1.0);
        }
        if update < warmup {
            return rise;
        }
        let through = ((update - warmup) as f64 / total.saturating_sub(warmup).max(1) as f64).min(1.0);
        match shape {
            Shape::Constant => 1.0,
            Shape::Linear => 1.0 - through,
            Shape::Cosine => 0.5 * (1.0 + (PI * through).cos()),
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
    struct Vectors {
        schedules: BTreeMap<String, Rates>,
    }

    #[derive(Deserialize)]
    struct Rates {
        warmup_steps: usize,
        /// With the rates among them, under a name that says how many they are.
        #[serde(flatten)]
        rest: Map<String, Value>,
    }

    #[test]
    fn lr_schedule() {
        for Vectors { schedules } in outside::vectors("lr_schedule") {
            assert!(!schedules.is_empty());
            for (name, Rates { warmup_steps, rest }) in schedules {
                let schedule = Schedule { shape: Shape::Constant, warmup: warmup_steps, total: 0 };
                for (count, rates) in outside::by_parameter(&rest, "lr_used_in_update_1_to_") {
                    let rates = rates.as_array().unwrap();
                    assert_eq!(rates.len(), count.parse::<usize>().unwrap(), "{name}");
                    for (update, rate) in rates.iter().enumerate() {
                        // The script's learning rate.
                        let off = schedule.factor(update) * 1e-6 - rate.as_f64().unwrap();
                        assert!(off.abs() < 1e-15, "{name}: update {update}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_warm_up_is_of_whole_updates() {
        // Search-R1's share; 500 steps are those of its paper.
        for (total, warmup) in [(500, 142), (1005, 286), (1, 0)] {
            assert_eq!(
                Schedule::over(total, Shape::Constant, 0.285),
                Schedule { shape: Shape::Constant, warmup, total }
            );
        }
    }

    #[test]
    fn falling_shapes_meet_their_ends() {
        for shape in [Shape::Linear, Shape::Cosine] {
            let schedule = Schedule { shape, warmup: 10, total: 110 };
            let factors: Vec<f64> = [0, 5, 10, 60, 110, 500].map(|update| schedule.factor(update)).to_vec();
            for (factor, expected) in factors.iter().zip([0.0, 0.5, 1.0, 0.5, 0.0, 0.0]) {
                assert!((factor - expected).abs() < 1e-12, "{shape:?} {factors:?}");
            }
            assert!((10..110).all(|update| schedule.factor(update + 1) <= schedule.factor(update)));
            assert_eq!(Schedule { shape, warmup: 0, total: 3 }.factor(0), 1.0);
        }
    }
}
