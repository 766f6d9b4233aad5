//! What is preferred, and for how long.

use std::sync::Arc;

use waymark::metric::Cost;
use waymark_index::Embed;

use super::Rule;
use super::loss::Terms;
use crate::recipe::Dpo;
use crate::recipe::dpo::{Begins, Stage};
use crate::reward::Judge;

/// Rounds under one reward.
#[derive(Debug)]
pub struct Goal {
    /// What their numbers are filed under.
    pub phase: String,
    /// How many, at most.
    pub rounds: usize,
    /// Rounds without a better measurement after which it ends; 0 makes all.
    pub patience: usize,
    /// How often each pair of a round is seen.
    pub epochs: usize,
    /// What it begins with.
    pub begins: Begins,
    /// What the loss is made of.
    pub terms: Terms,
    /// What is rewarded.
    pub reward: Judge,
    /// What is preferred to what.
    pub rule: Rule,
    /// How searches are priced.
    pub cost: Cost,
}

impl Goal {
    /// A stage of a recipe, counted from 1. `embedder` compares texts, in rewards that do.
    pub fn of(stage: &Stage, number: usize, settings: &Dpo, embedder: Arc<dyn Embed>) -> Goal {
        Goal {
            phase: format!("dpo{number}"),
            rounds: stage.rounds,
            patience: stage.patience,
            epochs: stage.epochs,
            begins: stage.begins,
            terms: Terms { beta: settings.beta, nll: stage.nll },
            reward: Judge::new(stage.reward.reward(), embedder),
            rule: stage.pairs,
            cost: stage.reward.cost().unwrap_or(settings.cost),
        }
    }

    /// Optimizer steps of a round of so many pairs, `batch` of them in each: the last of an epoch may have fewer.
    pub(super) fn updates(&self, pairs: usize, batch: usize) -> u64 {
        (self.epochs * pairs.div_ceil(batch)) as u64
    }
}
