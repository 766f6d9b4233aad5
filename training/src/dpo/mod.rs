//! Training on preferences by DPO: the better of two trajectories of a question becomes more probable than the other.
//!
//! In each round the engine loads the current weights and answers questions several times, rewards and a rule select
//! pairs of trajectories, and a few epochs over these pairs follow. The first step of a round generates its
//! trajectories and changes no weights; each further step is an optimizer step. The number of steps is known only after
//! the first one. If the recipe has a `ranker`, it is trained in that first step too.

mod goal;
mod loss;
mod progress;
mod ranker;
mod round;
mod rule;
mod serve;
#[cfg(test)]
mod tests;
mod update;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use waymark_agent::Policy;
use waymark_engine::Engine;
use waymark_models::gradient::Learner;

use self::progress::DpoProgress;
use self::round::Round;
use crate::ledger::{RunLedger, RunObserver};
use crate::optimizer::AdamW;
use crate::recipe::Dpo;
use crate::recipe::dpo::StageStart;
use crate::rollout::QuestionSet;
use crate::run::{MetricsFile, MetricsRow};
use crate::sample_lines::SampleWriter;
use crate::schedule::LearningRateSchedule;
use crate::{TrainError, seeding};

pub(crate) use self::ranker::HEADS;

pub use self::goal::DpoGoal;
pub use self::loss::{DpoTerms, Likelihood, PairLoss};
pub use self::progress::ROUND_END;
pub use self::ranker::write_ranker;
pub use self::rule::{PairRule, Preference, Siblings, TeaRagRule};
pub use self::update::{DpoUpdateStats, PairMember, PreferencePair, update};

/// DPO training run.
#[derive(Debug)]
pub struct DpoTraining<'a> {
    /// Settings of the recipe.
    pub settings: &'a Dpo,
    /// Random seed.
    pub seed: u64,
    /// Stages to train, in order.
    pub goals: &'a [DpoGoal],
    /// Question sets.
    pub question_sets: &'a [QuestionSet],
    /// Policy to train.
    pub policy: &'a Policy,
    /// Rollout engine, shared by all question sets.
    pub engine: &'a Engine,
    /// Hash of the vocabulary of the base model, as computed by [`hash::vocabulary`](crate::hash::vocabulary). Stored
    /// with each sample.
    pub vocabulary: &'a str,
    /// Initial values of the run. They serve as the reference if the recipe says so, and as the ranker's encoder if all
    /// weights are trained; otherwise they are unused.
    pub initial: &'a [f32],
    /// Directory for passing adapters to the engine.
    pub adapter_dir: PathBuf,
}

/// Steps of a round.
#[derive(Debug, Clone, Copy)]
struct RoundSteps {
    /// First step, which generates the trajectories.
    first: u64,
    /// Last step.
    last: u64,
    /// Number of steps before the round's stage.
    before: u64,
}

impl DpoTraining<'_> {
    /// Trains from the current state of `ledger` to the end, reporting to `observer`.
    ///
    /// # Errors
    /// If there are no questions or stages, the loss or gradient is not finite, or the engine, model or file system
    /// fails.
    pub async fn train(
        &self,
        learner: &mut Learner,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<(), TrainError> {
        if self.question_sets.iter().all(|question_set| question_set.questions.is_empty()) || self.goals.is_empty() {
            return Err(TrainError::Nothing("there are no training questions or no stages".into()));
        }
        let mut optimizer = ledger.restore(learner)?;
        ledger.trim_samples()?;
        let mut sample_writer = SampleWriter::open(&ledger.folder().samples())?;
        // The measurement at step 0 is the baseline; a resumed run already has it.
        if ledger.state().step == 0 && self.validate(&self.goals[0], 0, learner, ledger, observer).await?.is_break() {
            return Ok(());
        }
        loop {
            let progress = self.progress(ledger)?;
            let Some(goal) = self.goals.get(progress.stage) else { return Ok(()) };
            let go_on = if let Some((first, pairs)) = progress.open {
                let last = first + goal.updates(pairs, self.settings.batch);
                let steps = RoundSteps { first, last, before: progress.before };
                self.learn(goal, steps, learner, &mut optimizer, ledger, observer).await?
            } else {
                if progress.over == 0 {
                    if goal.begins == StageStart::Best {
                        ledger.restore_best(learner)?;
                    }
                    // The ranker starts anew, because it was trained for another reward.
                    ledger.set_ranker(None);
                }
                // Each round has its own learning rate schedule and starts without the moments of the previous pairs.
                optimizer = ledger.new_optimizer(learner);
                self.begin(goal, progress.rounds + 1, learner, ledger, &mut sample_writer, observer).await?
            };
            if go_on.is_break() {
                return Ok(());
            }
        }
    }

    /// Progress of the run, derived from its metrics.
    fn progress(&self, ledger: &RunLedger) -> Result<DpoProgress, TrainError> {
        let rows = MetricsFile::read(&ledger.folder().metrics())?;
        Ok(DpoProgress::of(&rows, ledger.state().step, self.goals, self.settings.batch))
    }

    /// Makes the remaining optimizer steps of a round after its rollout step, and measures the policy at its end.
    async fn learn(
        &self,
        goal: &DpoGoal,
        steps: RoundSteps,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        let round = Round::read(&ledger.folder().samples(), steps.first)?;
        for step in ledger.state().step + 1..=steps.last {
            let row = self.step(goal, &round, steps, learner, optimizer, ledger)?;
            ledger.write_row(&row)?;
            ledger.advance(step);
            let mut go_on = observer.row(&row);
            // Validates before saving, so that the checkpoint's state includes this round's measurement.
            if step == steps.last && go_on.is_continue() {
                go_on = self.validate(goal, steps.before, learner, ledger, observer).await?;
            }
            if go_on.is_break() {
                return Ok(go_on);
            }
            let every = self.settings.save_every as u64;
            if step == steps.last || (every > 0 && step.is_multiple_of(every)) {
                ledger.save(learner, optimizer)?;
                observer.saved(ledger, learner)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes the next optimizer step.
    fn step(
        &self,
        goal: &DpoGoal,
        round: &Round,
        RoundSteps { first, last, .. }: RoundSteps,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &RunLedger,
    ) -> Result<MetricsRow, TrainError> {
        let step = ledger.state().step + 1;
        let started = Instant::now();
        let settings = self.settings;
        let done = step - first - 1;
        // The first step of a round is unique in the run, so every round and epoch shuffles differently.
        let seed = |epoch: u64| seeding::seed(seeding::seed(self.seed, "pairs", first), "epoch", epoch);
        let pairs = round.batch(done, settings.batch, seed);
        let total = (last - first) as usize;
        let schedule = LearningRateSchedule::over(total, settings.schedule, settings.warmup);
        let rate = settings.learning_rate * schedule.factor_in_round(done as usize);
        let updated = update(learner, optimizer, &pairs, goal.terms, settings.pack_tokens, rate)?;
        for (what, value) in [("loss", updated.mean.loss), ("gradient norm", updated.norm)] {
            if !value.is_finite() {
                return Err(TrainError::Diverged { section: "dpo", step, what, value });
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(ledger
            .row(step, &goal.phase)
            .with("loss", updated.mean.loss)
            .with("preference_loss", updated.mean.preference)
            .with("nll", updated.mean.nll)
            .with("margin", updated.mean.margin)
            .with("pair_accuracy", updated.accuracy)
            .with("learning_rate", rate)
            .with("gradient_norm", updated.norm)
            .with("tokens", updated.tokens as f64)
            .with("step_seconds", seconds)
            .with("tokens_per_second", updated.tokens as f64 / seconds))
    }
}
