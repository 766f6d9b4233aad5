//! The policy at work in the engine: rollouts, and measurements on questions it does not learn from.

use std::ops::ControlFlow;

use waymark::agent::Policy;
use waymark::evaluate;
use waymark_models::gradient::Learner;

use super::Campaign;
use crate::TrainError;
use crate::ledger::{Ledger, Watch};
use crate::recipe::Grpo;
use crate::rollout::{Plan, Rollout, rollouts};
use crate::sft::VALIDATION;

impl Campaign<'_> {
    /// The rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// When engine or file system refuse.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let settings = Grpo { questions: self.settings.questions.min(4), ..self.settings.clone() };
        let Self { seed, goals, fields, policy, engine, reference, ref exchange, .. } = *self;
        let few = Campaign {
            settings: &settings,
            seed,
            goals,
            fields,
            policy,
            engine,
            reference,
            exchange: exchange.clone(),
        };
        few.roll(1, learner).await
    }

    /// The rollouts of a step by the policy as it is now.
    pub(super) async fn roll(&self, step: u64, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let policy = self.serve(learner).await?;
        let settings = self.settings;
        let plan = Plan {
            sampling: &settings.sampling,
            group: settings.group,
            concurrent: settings.concurrent,
            seed: self.seed,
            step,
            cost: settings.cost,
        };
        rollouts(&policy, &self.questions(step), &plan).await
    }

    /// The policy with the learner's values: an adapter of a new generation, so that no cached KV of another is used. It
    /// is unloaded with the policy.
    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        learner.save_adapter(&self.exchange, "rollout")?;
        let lease = Some(self.engine.lease_adapter(self.exchange.clone()).await?);
        let mut policy = Policy { lease, guided: false, ..self.policy.clone() };
        // Bounded by tokens alone: many episodes share the machine, and a clock would make them differ.
        policy.budget.seconds = 86_400.0;
        Ok(policy)
    }

    /// Measures the policy as it is served, on questions it does not learn from. The best has the highest EM.
    pub(super) async fn validate(
        &self,
        learner: &Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.fields.iter().all(|field| field.validation.is_empty()) {
            return Ok(ControlFlow::Continue(()));
        }
        let policy = self.serve(learner).await?;
        let step = ledger.state().step;
        let mut row = ledger.row(step, VALIDATION);
        let (mut right, mut asked) = (0.0, 0usize);
        for field in self.fields.iter().filter(|field| !field.validation.is_empty()) {
            let plan = evaluate::Plan {
                concurrency: self.settings.concurrent,
                cost: self.settings.cost,
                ..Default::default()
            };
            let outcome = evaluate::evaluate(&field.runtime, &policy, &field.validation, &plan, |_| ()).await;
            let summary = evaluate::Summary::of(&policy.name, &outcome);
            let name = &field.name;
            row = row
                .with(format!("{name}/em"), summary.em.mean)
                .with(format!("{name}/f1"), summary.f1.mean)
                .with(format!("{name}/format_valid"), summary.valid)
                .with(format!("{name}/turns"), summary.mean.turns)
                .with(format!("{name}/searches_passage"), summary.mean.passage)
                .with(format!("{name}/searches_graph"), summary.mean.graph)
                .with(format!("{name}/searches_hybrid"), summary.mean.hybrid)
                .with(format!("{name}/retrieval_cost"), summary.mean.cost);
            right += summary.em.mean * outcome.rows.len() as f64;
            asked += outcome.rows.len();
        }
        if step > 0 {
            ledger.measured(right / asked as f64);
        }
        ledger.note(&row)?;
        Ok(watch.row(&row))
    }
}
