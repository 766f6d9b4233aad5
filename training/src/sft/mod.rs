//! Supervised training on given trajectories. Only the policy's own tokens count, not the prompt, the environment's
//! tokens, or tokens forced by a protocol.

mod dataset;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Instant;

use waymark_models::gradient::{Learner, Score, ScoredModel, Slope};

use crate::TrainError;
use crate::ledger::{RunLedger, RunObserver};
use crate::optimizer::AdamW;
use crate::pack::{TrainingSequence, pack, passes};
use crate::recipe::Sft;
use crate::run::MetricsRow;
use crate::schedule::LearningRateSchedule;
use crate::seeding;

pub use self::dataset::{MaskedSequence, SftDataset};

/// Phase name of the steps of supervised training in the metrics.
pub const PHASE: &str = "sft";
/// Phase name of validation measurements in the metrics.
pub const VALIDATION: &str = "eval";

/// Supervised training run.
#[derive(Debug)]
pub struct SftTraining<'a> {
    settings: &'a Sft,
    seed: u64,
    dataset: &'a SftDataset,
}

impl<'a> SftTraining<'a> {
    /// Creates a training run over `dataset`.
    pub fn new(settings: &'a Sft, seed: u64, dataset: &'a SftDataset) -> Self {
        Self { settings, seed, dataset }
    }

    /// Settings of the recipe.
    pub fn settings(&self) -> &'a Sft {
        self.settings
    }

    /// Number of optimizer steps.
    pub fn steps(&self) -> u64 {
        let seen = self.dataset.train.len() * self.settings.epochs;
        seen.div_ceil(self.settings.batch) as u64
    }

    /// Sequences of a step, counted from 1.
    pub fn batch(&self, step: u64) -> Vec<TrainingSequence<'a>> {
        let seed = |epoch| seeding::seed(self.seed, "epoch", epoch);
        let places = seeding::batch(self.dataset.train.len(), self.settings.batch, step - 1, seed);
        places.into_iter().map(|place| self.dataset.train[place].sequence()).collect()
    }

    /// Learning rate of a step, counted from 1.
    fn rate(&self, step: u64) -> f64 {
        let total = self.steps() as usize;
        let schedule = LearningRateSchedule::over(total, self.settings.schedule, self.settings.warmup);
        self.settings.learning_rate * schedule.factor(step as usize - 1)
    }

    /// Trains from the current state of `ledger` to the end, reporting to `observer`.
    ///
    /// # Errors
    /// If the loss or gradient is not finite, or the model or file system fails.
    pub fn train(
        &self,
        learner: &mut Learner,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<(), TrainError> {
        let mut optimizer = ledger.restore(learner)?;
        let total = self.steps();
        // The measurement at step 0 is the baseline; a resumed run already has it.
        if ledger.state().step == 0 && self.validate(learner, ledger, observer)?.is_break() {
            return Ok(());
        }
        for step in ledger.state().step + 1..=total {
            let row = self.step(step, learner, &mut optimizer, ledger)?;
            ledger.write_row(&row)?;
            ledger.advance(step);
            let due = |every: usize| step == total || (every > 0 && step % every as u64 == 0);
            let mut go_on = observer.row(&row);
            let mut keep = due(self.settings.save_every);
            if due(self.settings.validate_every) && go_on.is_continue() {
                let best = ledger.state().best;
                go_on = self.validate(learner, ledger, observer)?;
                // The final policy is made from the best step, so this step needs a checkpoint.
                keep |= ledger.state().best != best;
            }
            if go_on.is_break() {
                return Ok(());
            }
            if keep {
                ledger.save(learner, &optimizer)?;
                observer.saved(ledger, learner)?;
            }
        }
        Ok(())
    }

    /// Makes one optimizer step. The loss is the mean over all target tokens of the batch, regardless of the passes.
    fn step(
        &self,
        step: u64,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &RunLedger,
    ) -> Result<MetricsRow, TrainError> {
        let started = Instant::now();
        let batch = self.batch(step);
        let targets: usize = batch.iter().map(TrainingSequence::targets).sum();
        // Derivative of the mean negative log-likelihood, the same for every target.
        let slope = Slope { logprob: -1.0 / targets as f32, entropy: 0.0 };
        let mut loss = 0.0;
        let mut computed = 0;
        learner.zero();
        for pass in passes(learner, &batch, self.settings.pack_tokens) {
            let packed = pack(&batch[pass]);
            computed += packed.pack.tokens().len();
            learner.learn(&packed.pack, &mut |_, score: Score| {
                loss -= f64::from(score.logprob);
                slope
            })?;
        }
        let rate = self.rate(step);
        let mut norm = 0.0;
        learner.change(|values, gradients| norm = optimizer.step(values, gradients, rate));
        let loss = finite(step, "loss", loss / targets as f64)?;
        let norm = finite(step, "gradient norm", norm)?;
        let row = ledger.row(step, PHASE).with("loss", loss).with("learning_rate", rate).with("gradient_norm", norm);
        let seconds = started.elapsed().as_secs_f64();
        let row = row.with("targets", targets as f64).with("tokens", computed as f64).with("step_seconds", seconds);
        Ok(row.with("tokens_per_second", computed as f64 / seconds))
    }

    /// Measures the loss on the held-out sequences, if there are any.
    fn validate(
        &self,
        learner: &mut Learner,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        let sequences: Vec<TrainingSequence<'_>> = self.dataset.held_out.iter().map(MaskedSequence::sequence).collect();
        if sequences.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let mut loss = 0.0;
        let mut targets = 0;
        for pass in passes(learner, &sequences, self.settings.pack_tokens) {
            let scores = learner.score(&pack(&sequences[pass]).pack, ScoredModel::Adapted)?;
            loss -= scores.iter().map(|score| f64::from(score.logprob)).sum::<f64>();
            targets += scores.len();
        }
        let step = ledger.state().step;
        let loss = finite(step, "validation loss", loss / targets as f64)?;
        let row = ledger.row(step, VALIDATION).with("validation_loss", loss);
        // The ledger keeps the checkpoint with the highest value, hence the sign.
        ledger.add_measurement(&row, -loss, 0, observer)
    }
}

fn finite(step: u64, what: &'static str, value: f64) -> Result<f64, TrainError> {
    if value.is_finite() { Ok(value) } else { Err(TrainError::Diverged { section: "sft", step, what, value }) }
}
