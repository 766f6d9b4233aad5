//! Rollouts and validation of the current policy in the engine.

use std::ops::ControlFlow;

use waymark_agent::Policy;
use waymark_models::gradient::Learner;
use waymark_runtime::evaluate::Question;

use super::{GrpoTraining, StageAt};
use crate::ledger::{RunLedger, RunObserver};
use crate::recipe::Grpo;
use crate::reward::route_shares::RouteShares;
use crate::rollout::{QuestionSet, Rollout, RolloutSettings, SampledRollouts, measure, rollouts, serve};
use crate::sft::VALIDATION;
use crate::{TrainError, rollout_metrics, seeding};

impl GrpoTraining<'_> {
    /// Generates rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// If the engine or file system fails.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let few = self.questions(1).into_iter().take(4).collect();
        Ok(self.roll(1, few, learner).await?.rollouts)
    }

    /// Logs the shares of the routes among a few rollouts, if the recipe weighs routes.
    ///
    /// # Errors
    /// [`TrainError::Nothing`] if all trajectories lie on the same side of the threshold of sufficient evidence, so
    /// that routes would never differ by their evidence.
    pub(super) async fn check_routes(&self, learner: &Learner) -> Result<(), TrainError> {
        let Some(weights) = &self.settings.routes else { return Ok(()) };
        let trial = self.try_out(learner).await?;
        let shares = RouteShares::of(trial.iter().map(|rollout| &rollout.sample), weights);
        tracing::info!(%shares, "routes of the initial policy");
        shares.flaw().map_or(Ok(()), |flaw| Err(TrainError::Nothing(flaw)))
    }

    /// Generates the rollouts of a step with the current policy.
    pub(super) async fn roll(
        &self,
        step: u64,
        questions: Vec<(&QuestionSet, &Question)>,
        learner: &Learner,
    ) -> Result<SampledRollouts, TrainError> {
        let policy = self.serve(learner).await?;
        let settings = self.settings;
        // Steps count from 1 in each run, so the seed keeps a later stage from repeating the rollouts of an earlier
        // one.
        let seed = seeding::seed(self.seed, "stage", self.earlier_steps);
        let rollout_settings = RolloutSettings {
            group: settings.group,
            step,
            cost: self.stage(step).goal.cost,
            first_modes: &settings.first_modes,
            evidence: settings.evidence,
            ..RolloutSettings::new(&settings.sampling, settings.concurrent, seed)
        };
        rollouts(&policy, &questions, &rollout_settings).await
    }

    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        serve(self.policy, self.engine, &self.adapter_dir, learner).await
    }

    /// Measures the policy with its own sampling parameters on the validation questions. The best step of a stage has
    /// the highest merit by the stage's [`GrpoGoal`](super::GrpoGoal).
    pub(super) async fn validate(
        &self,
        learner: &Learner,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.question_sets.iter().all(|question_set| question_set.validation.is_empty()) {
            return Ok(ControlFlow::Continue(()));
        }
        let step = ledger.state().step;
        let StageAt { goal, before } = self.stage(step);
        let policy = self.serve(learner).await?;
        let Grpo { concurrent, evidence, .. } = *self.settings;
        let batch = measure(&policy, self.question_sets, concurrent, self.seed, goal.cost, evidence).await?;
        let merit = goal.merit(&batch)?;
        let row = rollout_metrics::add_validation(
            ledger.row(step, VALIDATION).with("validation_merit", merit),
            self.question_sets,
            &batch,
        );
        ledger.add_measurement(&row, merit, before, observer)
    }
}
