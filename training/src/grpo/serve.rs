//! The policy at work in the engine: rollouts, and measurements on questions it does not learn from.

use std::ops::ControlFlow;

use waymark::agent::{Policy, Sampling};
use waymark::evaluate::Question;
use waymark_models::gradient::{Learner, Tune};

use super::{Campaign, numbers};
use crate::TrainError;
use crate::ledger::{Ledger, Watch};
use crate::order;
use crate::recipe::Grpo;
use crate::rollout::{Batch, Field, Plan, Rollout, rollouts};
use crate::sft::VALIDATION;

impl Campaign<'_> {
    /// The rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// When engine or file system refuse.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let settings = Grpo { questions: self.settings.questions.min(4), ..self.settings.clone() };
        let Self { seed, goals, behind, whole, fields, policy, engine, reference, ref exchange, .. } = *self;
        let few = Campaign {
            settings: &settings,
            seed,
            goals,
            behind,
            whole,
            fields,
            policy,
            engine,
            reference,
            exchange: exchange.clone(),
        };
        Ok(few.roll(1, learner).await?.rollouts)
    }

    /// The rollouts of a step by the policy as it is now.
    pub(super) async fn roll(&self, step: u64, learner: &Learner) -> Result<Batch, TrainError> {
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
        rollouts(&policy, &self.questions(step), &plan).await
    }

    /// The policy with the learner's values. No cached KV of others is used: an adapter is of a new generation, and is
    /// unloaded with the policy; all weights take the place of the engine's, which rests.
    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        let lease = match learner.tune() {
            Tune::Lora(_) => {
                learner.save_adapter(&self.exchange, "rollout")?;
                Some(self.engine.lease_adapter(self.exchange.clone()).await?)
            }
            Tune::Full => {
                self.engine.replace_weights(learner.weights()?).await?;
                None
            }
        };
        let mut policy = Policy { lease, guided: false, ..self.policy.clone() };
        // Bounded by tokens alone: many episodes share the machine, and a clock would make them differ.
        policy.budget.seconds = 86_400.0;
        Ok(policy)
    }

    /// Measures the policy as it is served, on questions it does not learn from. The best step of a stage is the one at
    /// which the [`Goal`](super::Goal) of the stage says most of these answers.
    pub(super) async fn validate(
        &self,
        learner: &Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        let measured = || self.fields.iter().filter(|field| !field.validation.is_empty());
        let asked: Vec<(&Field, &Question)> =
            measured().flat_map(|field| field.validation.iter().map(move |question| (field, question))).collect();
        if asked.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let step = ledger.state().step;
        let (goal, before) = self.goal(step);
        let (served, seed) = (Sampling::default(), order::seed(self.seed, "validation", 0));
        let concurrent = self.settings.concurrent;
        // Always the same seeds: what differs from one measurement to the next is the policy.
        let plan = Plan { sampling: &served, group: 1, concurrent, seed, step: 0, cost: goal.cost };
        let policy = self.serve(learner).await?;
        let made = rollouts(&policy, &asked, &plan).await?.rollouts;
        let merit = goal.merit(&made);
        let mut row = ledger.row(step, VALIDATION).with("validation_merit", merit);
        let mut rest = made.as_slice();
        for field in measured() {
            let (own, others) = rest.split_at(field.validation.len());
            row = numbers::measured(row, &field.name, own);
            rest = others;
        }
        if step > 0 {
            ledger.measured(merit, before);
        }
        ledger.note(&row)?;
        Ok(watch.row(&row))
    }
}
