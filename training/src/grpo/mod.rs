//! Training on rewards by GRPO: the advantage of a trajectory is its reward relative to its group, the trajectories of
//! the same question.
//!
//! In each step the engine loads the current adapter or weights, rollouts are generated and rewarded, the reference and
//! the policy score the tokens, and a few optimizer steps follow. The optional `teacher` is the reference model with
//! the supporting passages in its prompt.

mod goal;
mod serve;
mod teacher;
#[cfg(test)]
mod tests;
mod update;

use std::path::PathBuf;
use std::time::Instant;

use waymark_agent::Policy;
use waymark_engine::Engine;
use waymark_models::gradient::{Learner, ScoredModel, Tune};
use waymark_runtime::evaluate::Question;

use crate::ledger::{RunLedger, RunObserver};
use crate::logprobs::{Logprobs, logprobs, logprobs_under};
use crate::optimizer::AdamW;
use crate::recipe::{Grpo, GrpoReference};
use crate::rollout::{QuestionSet, Rollout, SampledRollouts, epoch_questions};
use crate::run::MetricsRow;
use crate::sample_lines::SampleWriter;
use crate::schedule::LearningRateSchedule;
use crate::sft::MaskedSequence;
use crate::{TrainError, rollout_metrics};

pub use self::goal::GrpoGoal;
pub use self::teacher::TeacherTargets;
pub use self::update::{GrpoUpdateStats, LossTrajectory, update};

/// GRPO training run.
#[derive(Debug)]
pub struct GrpoTraining<'a> {
    /// Settings of the recipe.
    pub settings: &'a Grpo,
    /// Random seed.
    pub seed: u64,
    /// Stages to train, in order.
    pub goals: &'a [GrpoGoal],
    /// Number of steps of earlier stages, which another run trained. Learning rate, question order and rollout seeds
    /// continue from there.
    pub earlier_steps: u64,
    /// Number of steps of all stages of the recipe, over which the learning rate is scheduled.
    pub scheduled_steps: u64,
    /// Question sets.
    pub question_sets: &'a [QuestionSet],
    /// Policy to train.
    pub policy: &'a Policy,
    /// Rollout engine, shared by all question sets.
    pub engine: &'a Engine,
    /// Hash of the vocabulary of the base model, as computed by [`hash::vocabulary`](crate::hash::vocabulary). Stored
    /// with each sample.
    pub vocabulary: &'a str,
    /// Values of the reference, which is also the teacher. Unused if the adapter's base model is the reference, or if
    /// there is neither a divergence nor a teacher.
    pub reference: &'a [f32],
    /// Directory for passing adapters to the engine.
    pub adapter_dir: PathBuf,
}

/// Stage of a step.
#[derive(Debug, Clone, Copy)]
struct StageAt<'a> {
    goal: &'a GrpoGoal,
    /// Number of steps before the stage.
    before: u64,
}

/// Log-probabilities of the tokens of the trajectories that take part in an update.
struct TokenScores {
    /// Before the update.
    old: Logprobs,
    /// Under the reference.
    reference: Logprobs,
}

impl GrpoTraining<'_> {
    /// Total number of steps.
    pub fn steps(&self) -> u64 {
        self.goals.iter().map(|goal| goal.steps as u64).sum()
    }

    /// Stage of a step, counted from 1.
    fn stage(&self, step: u64) -> StageAt<'_> {
        let mut before = 0;
        for goal in self.goals {
            if step <= before + goal.steps as u64 {
                return StageAt { goal, before };
            }
            before += goal.steps as u64;
        }
        StageAt { goal: &self.goals[self.goals.len() - 1], before }
    }

    /// Questions of a step, counted from 1.
    fn questions(&self, step: u64) -> Vec<(&QuestionSet, &Question)> {
        let size = self.settings.questions;
        epoch_questions(self.question_sets, self.seed, size, self.earlier_steps + step - 1)
    }

    /// Learning rate of a step. As in the reference implementation it is scheduled by rollout steps, not optimizer
    /// steps, and over the whole recipe, so that stages trained one by one have the same rates as in a single run.
    fn rate(&self, step: u64) -> f64 {
        let total = self.scheduled_steps as usize;
        let schedule = LearningRateSchedule::over(total, self.settings.schedule, self.settings.warmup);
        self.settings.learning_rate * schedule.factor((self.earlier_steps + step) as usize - 1)
    }

    /// Trains from the current state of `ledger` to the end, reporting to `observer`.
    ///
    /// # Errors
    /// If there are no questions or stages, the gradient is not finite, or the engine, model or file system fails.
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
        let total = self.steps();
        // The measurement at step 0 is the baseline; a resumed run already has it.
        if ledger.state().step == 0 && self.validate(learner, ledger, observer).await?.is_break() {
            return Ok(());
        }
        if ledger.state().step == 0 {
            self.check_routes(learner).await?;
        }
        for step in ledger.state().step + 1..=total {
            let row = self.step(step, learner, &mut optimizer, ledger, &mut sample_writer).await?;
            ledger.write_row(&row)?;
            ledger.advance(step);
            // Each stage ends with a measurement, because the next one has another reward.
            let StageAt { goal, before } = self.stage(step);
            let ends = step == before + goal.steps as u64;
            let due = |every: usize| ends || (every > 0 && step.is_multiple_of(every as u64));
            let mut go_on = observer.row(&row);
            let mut keep = due(self.settings.save_every);
            if due(self.settings.validate_every) && go_on.is_continue() {
                let best = ledger.state().best;
                go_on = self.validate(learner, ledger, observer).await?;
                // The final policy is made from the best step, so this step needs a checkpoint.
                keep |= ledger.state().best != best;
            }
            if go_on.is_break() {
                return Ok(());
            }
            if keep {
                // Samples must be on disk before the checkpoint that refers to them.
                sample_writer.sync()?;
                ledger.save(learner, &optimizer)?;
                observer.saved(ledger, learner)?;
            }
        }
        Ok(())
    }

    async fn step(
        &self,
        step: u64,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &RunLedger,
        sample_writer: &mut SampleWriter,
    ) -> Result<MetricsRow, TrainError> {
        let goal = self.stage(step).goal;
        let started = Instant::now();
        let SampledRollouts { rollouts: mut batch, failed } = self.roll(step, self.questions(step), learner).await?;
        let rollout_seconds = started.elapsed().as_secs_f64();
        let scores = goal.reward.score(&batch)?;
        let rewards: Vec<f64> = scores.iter().map(|reward| reward.total).collect();
        let groups: Vec<usize> = batch.iter().map(|rollout| rollout.group).collect();
        let mut advantages = self.settings.advantage.group(&rewards, &groups);
        if let Some(routes) = &self.settings.routes {
            let weights = batch.iter().map(|rollout| routes.sample_weight(&rollout.sample));
            advantages.iter_mut().zip(weights).for_each(|(advantage, weight)| *advantage *= weight);
        }
        for ((rollout, reward), &advantage) in batch.iter_mut().zip(scores).zip(&advantages) {
            rollout.sample.reward = Some(reward);
            rollout.sample.advantage = Some(advantage);
            rollout.sample.tokenizer = Some(self.vocabulary.to_owned());
            sample_writer.append(&rollout.sample)?;
        }
        let row = rollout_metrics::add_rollouts(ledger.row(step, &goal.phase), &batch);
        let row = rollout_metrics::add_groups(row, &groups, &rewards);
        let started = Instant::now();
        let (row, updated) = self.learn(row, &batch, learner, optimizer)?;
        let update_seconds = started.elapsed().as_secs_f64();
        let sampled: usize = batch.iter().map(|rollout| rollout.row.tokens.sampled).sum();
        Ok(row
            .with("failed", failed as f64)
            .with("learning_rate", self.rate(step))
            .with("rollout_seconds", rollout_seconds)
            .with("rollout_tokens_per_second", sampled as f64 / rollout_seconds)
            .with("update_seconds", update_seconds)
            .with("step_seconds", rollout_seconds + update_seconds)
            .with("tokens_per_second", updated.tokens as f64 / update_seconds))
    }

    /// Scores the batch and updates the learner. Returns the metrics row with the results.
    fn learn(
        &self,
        row: MetricsRow,
        batch: &[Rollout],
        learner: &mut Learner,
        optimizer: &mut AdamW,
    ) -> Result<(MetricsRow, GrpoUpdateStats), TrainError> {
        let settings = self.settings;
        let step = row.step;
        let flat = |group: usize| {
            let members = batch.iter().filter(|rollout| rollout.group == group);
            rollout_metrics::is_flat(
                members.map(|rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total)),
            )
        };
        let (taught, row) = self.teach(row, batch, learner)?;
        // A flat group has no policy gradient, but a taught trajectory of it still has the teacher's term.
        let left_out = |index: usize| settings.skip_flat && taught[index].is_none() && flat(batch[index].group);
        let active: Vec<bool> = (0..batch.len()).map(|index| !left_out(index)).collect();
        let masked: Vec<MaskedSequence> = batch.iter().map(|rollout| MaskedSequence::new(&rollout.sample)).collect();
        let participants: Vec<usize> = (0..batch.len()).filter(|&index| active[index]).collect();
        let TokenScores { old, reference } = self.score_tokens(batch, &masked, &participants, learner)?;
        // Recomputed scores show how far the sampled ones are off.
        let row = if settings.recompute {
            let participating: Vec<&Rollout> = participants.iter().map(|&member| &batch[member]).collect();
            rollout_metrics::add_drift(row, &participating, &old)
        } else {
            row
        };
        // Trajectories that take no part keep an index without scores, which the update never reads.
        let mut index_of = vec![usize::MAX; batch.len()];
        participants.iter().enumerate().for_each(|(index, &member)| index_of[member] = index);
        let trajectory = |member: usize| LossTrajectory {
            sequence: masked[member].sequence(),
            old: old.get(index_of[member]).map_or(&[], Vec::as_slice),
            reference: reference.get(index_of[member]).map_or(&[], Vec::as_slice),
            advantage: batch[member].sample.advantage.unwrap_or(0.0) as f32,
            taught: taught[member].as_ref(),
            active: active[member],
        };
        let trajectories: Vec<LossTrajectory<'_>> = (0..batch.len()).map(trajectory).collect();
        let teacher_weight = self.teacher_weight(step);
        let updated = update(learner, optimizer, &trajectories, settings, self.rate(step), teacher_weight)?;
        let norm = updated.norm();
        if !norm.is_finite() {
            return Err(TrainError::Diverged { section: "grpo", step, what: "gradient norm", value: norm });
        }
        let means = updated.sums.means(&settings.loss);
        let row = match settings.active_teacher() {
            Some(_) => row.with("teacher_kl", updated.teacher_divergence()).with("teacher_weight", teacher_weight),
            None => row,
        };
        let row = row
            .with("loss", means.loss + teacher_weight * updated.teacher_divergence())
            .with("policy_loss", means.policy)
            .with("entropy", means.entropy)
            .with("clip_fraction", means.clip_fraction)
            .with("policy_drift", means.drift)
            .with("gradient_norm", norm)
            .with("updates", updated.updates as f64);
        // Without a KL weight no reference was scored, so that the divergence is not known.
        let row = if settings.loss.kl > 0.0 { row.with("kl", means.kl) } else { row };
        Ok((row, updated))
    }

    /// Log-probabilities of the participating trajectories' tokens before the update and under the reference.
    fn score_tokens(
        &self,
        batch: &[Rollout],
        masked: &[MaskedSequence],
        participants: &[usize],
        learner: &mut Learner,
    ) -> Result<TokenScores, TrainError> {
        let sequences: Vec<_> = participants.iter().map(|&member| masked[member].sequence()).collect();
        let tokens = self.settings.pack_tokens;
        let old = if self.settings.recompute {
            logprobs(learner, &sequences, tokens, ScoredModel::Adapted)?
        } else {
            // The engine's own log-probabilities save a pass of the learner.
            let sampled = |&member: &usize| {
                let all = batch[member].sample.sampled_logprobs();
                all.into_iter().map(|logprob| logprob.unwrap_or(0.0)).collect()
            };
            participants.iter().map(sampled).collect()
        };
        let reference = match self.settings.reference {
            // Without a KL weight the reference values do not matter, so no pass is spent on them.
            _ if self.settings.loss.kl == 0.0 => old.clone(),
            GrpoReference::Base if *learner.tune() != Tune::Full => {
                logprobs(learner, &sequences, tokens, ScoredModel::Base)?
            }
            _ => logprobs_under(learner, self.reference, &sequences, tokens)?,
        };
        Ok(TokenScores { old, reference })
    }
}
