//! The policy at work in the engine: rollouts, and measurements on questions it does not learn from.

use std::ops::ControlFlow;

use waymark::agent::Policy;
use waymark::evaluate::Question;
use waymark_models::gradient::Learner;

use super::Campaign;
use crate::ledger::{Ledger, Watch};
use crate::rollout::{Batch, Field, Plan, Rollout, measure, rollouts, serve};
use crate::sft::VALIDATION;
use crate::{TrainError, numbers, order};

impl Campaign<'_> {
    /// The rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// When engine or file system refuse.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let few = self.questions(1).into_iter().take(4).collect();
        Ok(self.roll(1, few, learner).await?.rollouts)
    }

    /// The rollouts of a step by the policy as it is now.
    pub(super) async fn roll(
        &self,
        step: u64,
        questions: Vec<(&Field, &Question)>,
        learner: &Learner,
    ) -> Result<Batch, TrainError> {
        let policy = self.serve(learner).await?;
        let settings = self.settings;
        let plan = Plan {
            sampling: &settings.sampling,
            group: settings.group,
            concurrent: settings.concurrent,
            seed: order::seed(self.seed, "stage", self.behind),
            step,
            cost: self.goal(step).0.cost,
        };
        rollouts(&policy, &questions, &plan).await
    }

    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        serve(self.policy, self.engine, &self.exchange, learner).await
    }

    /// Measures the policy as it is served, on questions it does not learn from. The best step of a stage is the one at
    /// which the [`Goal`](super::Goal) of the stage says most of these answers.
    pub(super) async fn validate(
        &self,
        learner: &Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.fields.iter().all(|field| field.validation.is_empty()) {
            return Ok(ControlFlow::Continue(()));
        }
        let step = ledger.state().step;
        let (goal, before) = self.goal(step);
        let policy = self.serve(learner).await?;
        let made = measure(&policy, self.fields, self.settings.concurrent, self.seed, goal.cost).await?;
        let merit = goal.merit(&made)?;
        let row = numbers::served(ledger.row(step, VALIDATION).with("validation_merit", merit), self.fields, &made);
        if step > 0 {
            ledger.measured(merit, before);
        }
        ledger.note(&row)?;
        Ok(watch.row(&row))
    }
}
