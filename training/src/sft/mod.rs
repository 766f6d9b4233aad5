//! Learning from given trajectories: the policy's own tokens become more probable, those of prompt and environment, and
//! those a protocol wrote for it, do not count.

mod lesson;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Instant;

use waymark_models::gradient::{Learner, Score, Slope};

use crate::TrainError;
use crate::ledger::{Ledger, Watch};
use crate::optimizer::AdamW;
use crate::order;
use crate::pack::{Sequence, pack, passes};
use crate::recipe::Sft;
use crate::run::Row;
use crate::schedule::Schedule;

pub use self::lesson::{Lesson, Lessons};

/// What the numbers of its steps are filed under.
pub const PHASE: &str = "sft";
/// What its measurements on held-out trajectories are filed under.
pub const VALIDATION: &str = "eval";

/// The whole of supervised training.
#[derive(Debug)]
pub struct Course<'a> {
    settings: &'a Sft,
    seed: u64,
    lessons: &'a Lessons,
}

impl<'a> Course<'a> {
    /// A course over `lessons`.
    pub fn new(settings: &'a Sft, seed: u64, lessons: &'a Lessons) -> Self {
        Self { settings, seed, lessons }
    }

    /// Its constants.
    pub fn settings(&self) -> &'a Sft {
        self.settings
    }

    /// Optimizer steps it takes.
    pub fn steps(&self) -> u64 {
        let seen = self.lessons.train.len() * self.settings.epochs;
        seen.div_ceil(self.settings.batch) as u64
    }

    /// The trajectories of a step, counted from 1.
    pub fn batch(&self, step: u64) -> Vec<Sequence<'a>> {
        let seed = |epoch| order::seed(self.seed, "epoch", epoch);
        let places = order::batch(self.lessons.train.len(), self.settings.batch, step - 1, seed);
        places.into_iter().map(|place| self.lessons.train[place].sequence()).collect()
    }

    /// The factor of the learning rate in a step, counted from 1.
    fn rate(&self, step: u64) -> f64 {
        let total = self.steps() as usize;
        let schedule = Schedule::over(total, self.settings.schedule, self.settings.warmup);
        self.settings.learning_rate * schedule.factor(step as usize - 1)
    }

    /// Trains from where `ledger` stands to the end. `watch` looks on.
    ///
    /// # Errors
    /// When the loss is no number any more, or model or file system refuse.
    pub fn train(&self, learner: &mut Learner, ledger: &mut Ledger, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let mut optimizer = ledger.restore(learner)?;
        let total = self.steps();
        if ledger.state().step == 0 && self.validate(learner, ledger, watch)?.is_break() {
            return Ok(());
        }
        for step in ledger.state().step + 1..=total {
            let row = self.step(step, learner, &mut optimizer, ledger)?;
            ledger.note(&row)?;
            ledger.advance(step);
            let due = |every: usize| step == total || (every > 0 && step % every as u64 == 0);
            let mut go_on = watch.row(&row);
            let mut keep = due(self.settings.save_every);
            if due(self.settings.validate_every) && go_on.is_continue() {
                let best = ledger.state().best;
                go_on = self.validate(learner, ledger, watch)?;
                keep |= ledger.state().best != best;
            }
            if go_on.is_break() {
                return Ok(());
            }
            if keep {
                ledger.save(learner, &optimizer)?;
                watch.saved(ledger, learner)?;
            }
        }
        Ok(())
    }

    /// One optimizer step: the loss is the mean over all learnt tokens of the batch, whatever passes it takes.
    fn step(
        &self,
        step: u64,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &Ledger,
    ) -> Result<Row, TrainError> {
        let began = Instant::now();
        let batch = self.batch(step);
        let targets: usize = batch.iter().map(Sequence::targets).sum();
        let slope = Slope { logprob: -1.0 / targets as f32, entropy: 0.0 };
        let (mut loss, mut computed) = (0.0, 0);
        learner.zero();
        for pass in passes(learner, &batch, self.settings.pack_tokens) {
            let packed = pack(&batch[pass]);
            computed += packed.pack.tokens().len();
            learner.learn(&packed.pack, &mut |_, score: Score| {
                loss -= f64::from(score.logprob);
                slope
            })?;
        }
        let (rate, mut norm) = (self.rate(step), 0.0);
        learner.change(|values, gradients| norm = optimizer.step(values, gradients, rate));
        let loss = finite(step, "loss", loss / targets as f64)?;
        let norm = finite(step, "gradient's norm", norm)?;
        let row = ledger.row(step, PHASE).with("loss", loss).with("learning_rate", rate).with("gradient_norm", norm);
        let seconds = began.elapsed().as_secs_f64();
        let row = row.with("targets", targets as f64).with("tokens", computed as f64).with("step_seconds", seconds);
        Ok(row.with("tokens_per_second", computed as f64 / seconds))
    }

    /// Measures the loss on what was held out, where anything was.
    fn validate(
        &self,
        learner: &mut Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        let sequences: Vec<Sequence<'_>> = self.lessons.held_out.iter().map(Lesson::sequence).collect();
        if sequences.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let (mut loss, mut targets) = (0.0, 0);
        for pass in passes(learner, &sequences, self.settings.pack_tokens) {
            let scores = learner.score(&pack(&sequences[pass]).pack, false)?;
            loss -= scores.iter().map(|score| f64::from(score.logprob)).sum::<f64>();
            targets += scores.len();
        }
        let step = ledger.state().step;
        let loss = finite(step, "validation loss", loss / targets as f64)?;
        // Of measurements more is better; the beginning is none that could be kept.
        if step > 0 {
            ledger.measured(-loss, 0);
        }
        let row = ledger.row(step, VALIDATION).with("validation_loss", loss);
        ledger.note(&row)?;
        Ok(watch.row(&row))
    }
}

fn finite(step: u64, what: &'static str, value: f64) -> Result<f64, TrainError> {
    if value.is_finite() { Ok(value) } else { Err(TrainError::Diverged { section: "sft", step, what, value }) }
}
