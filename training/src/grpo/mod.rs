//! Learning from rewards by GRPO: groups of trajectories of the same question, each worth what it is above its group.
//!
//! A step: the engine gets what is learnt as it is, an adapter or all weights; rollouts are made and rewarded, the
//! reference and the policy itself say how probable they find the tokens, and a few optimizer steps follow. A teacher, where
//! the recipe has one, is the reference too, which has seen what the question takes (`teacher`).

mod goal;
mod likelihood;
mod serve;
mod teacher;
#[cfg(test)]
mod tests;
mod update;

use std::path::PathBuf;
use std::time::Instant;

use waymark::agent::Policy;
use waymark::engine::Engine;
use waymark::evaluate::Question;
use waymark_models::gradient::{Learner, Tune};

use crate::ledger::{Ledger, Watch};
use crate::optimizer::AdamW;
use crate::recipe::{Grpo, Reference};
use crate::rollout::{Batch, Field, Rollout};
use crate::run::Row;
use crate::schedule::Schedule;
use crate::sft::Lesson;
use crate::store::Writer;
use crate::{TrainError, numbers, order};

pub(crate) use self::likelihood::under;

pub use self::goal::Goal;
pub use self::likelihood::{Logprobs, logprobs, logprobs_under};
pub use self::teacher::Taught;
pub use self::update::{Course, Updated, update};

/// The whole of training by rewards.
#[derive(Debug)]
pub struct Campaign<'a> {
    /// Its constants.
    pub settings: &'a Grpo,
    /// Where everything random starts.
    pub seed: u64,
    /// What is rewarded, in order.
    pub goals: &'a [Goal],
    /// Steps of the recipe's stages before these, which another run has made: the learning rate, the order of the
    /// questions and the seeds of the rollouts go on from there.
    pub behind: u64,
    /// Steps of all stages of the recipe, over which the learning rate goes.
    pub whole: u64,
    /// What is asked.
    pub fields: &'a [Field],
    /// The loop that is learnt.
    pub policy: &'a Policy,
    /// What makes the rollouts: the engine of all fields.
    pub engine: &'a Engine,
    /// The values that the divergence is measured from, and the teacher's; not looked at where that is what an adapter lies
    /// beside, and where nothing is measured and nobody taught.
    pub reference: &'a [f32],
    /// A folder through which adapters get into the engine.
    pub exchange: PathBuf,
}

impl Campaign<'_> {
    /// Steps in all.
    pub fn steps(&self) -> u64 {
        self.goals.iter().map(|goal| goal.steps as u64).sum()
    }

    /// The goal of a step, counted from 1, and how many steps are made before it.
    fn goal(&self, step: u64) -> (&Goal, u64) {
        let mut before = 0;
        for goal in self.goals {
            if step <= before + goal.steps as u64 {
                return (goal, before);
            }
            before += goal.steps as u64;
        }
        (&self.goals[self.goals.len() - 1], before)
    }

    /// The questions of a step: each epoch asks all of all fields in an order of its own.
    fn questions(&self, step: u64) -> Vec<(&Field, &Question)> {
        let all: Vec<_> =
            self.fields.iter().flat_map(|field| field.questions.iter().map(move |q| (field, q))).collect();
        let seed = |epoch| order::seed(self.seed, "questions", epoch);
        let batch = order::batch(all.len(), self.settings.questions, self.behind + step - 1, seed);
        batch.into_iter().map(|place| all[place]).collect()
    }

    /// The learning rate of a step: the schedule goes by steps, not by optimizer steps, as the reference's; and by those of
    /// the whole recipe, so that stages that are trained one by one have the rates they would have in one run.
    fn rate(&self, step: u64) -> f64 {
        let total = self.whole as usize;
        let schedule = Schedule::over(total, self.settings.schedule, self.settings.warmup);
        self.settings.learning_rate * schedule.factor((self.behind + step) as usize - 1)
    }

    /// Trains from where `ledger` stands to the end. `watch` looks on.
    ///
    /// # Errors
    /// When there is nothing to ask, the gradient is no number any more, or engine, model or file system refuse.
    pub async fn train(
        &self,
        learner: &mut Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        if self.fields.iter().all(|field| field.questions.is_empty()) || self.goals.is_empty() {
            return Err(TrainError::Nothing("there is no question to learn from, or no stage".into()));
        }
        let mut optimizer = ledger.restore(learner)?;
        ledger.trim_samples()?;
        let mut kept = Writer::open(&ledger.folder().samples())?;
        let total = self.steps();
        if ledger.state().step == 0 && self.validate(learner, ledger, watch).await?.is_break() {
            return Ok(());
        }
        for step in ledger.state().step + 1..=total {
            let row = self.step(step, learner, &mut optimizer, ledger, &mut kept).await?;
            ledger.note(&row)?;
            ledger.advance(step);
            // A stage ends with a measurement of its own: the next one goes by another reward.
            let (goal, before) = self.goal(step);
            let ends = step == before + goal.steps as u64;
            let due = |every: usize| ends || (every > 0 && step.is_multiple_of(every as u64));
            let mut go_on = watch.row(&row);
            let mut keep = due(self.settings.save_every);
            if due(self.settings.validate_every) && go_on.is_continue() {
                let best = ledger.state().best;
                go_on = self.validate(learner, ledger, watch).await?;
                keep |= ledger.state().best != best;
            }
            if go_on.is_break() {
                return Ok(());
            }
            if keep {
                kept.sync()?;
                ledger.save(learner, &optimizer)?;
                watch.saved(ledger, learner)?;
            }
        }
        Ok(())
    }

    async fn step(
        &self,
        step: u64,
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &Ledger,
        kept: &mut Writer,
    ) -> Result<Row, TrainError> {
        let ((goal, _), began) = (self.goal(step), Instant::now());
        let Batch { rollouts: mut batch, failed } = self.roll(step, self.questions(step), learner).await?;
        let rolled = began.elapsed().as_secs_f64();
        let worth = goal.reward.score(&batch)?;
        let rewards: Vec<f64> = worth.iter().map(|reward| reward.total).collect();
        let groups: Vec<usize> = batch.iter().map(|rollout| rollout.group).collect();
        let mut advantages = self.settings.advantage.group(&rewards, &groups);
        if let Some(routes) = &self.settings.routes {
            let along = batch.iter().map(|rollout| routes.along(&rollout.sample));
            advantages.iter_mut().zip(along).for_each(|(advantage, weight)| *advantage *= weight);
        }
        for ((rollout, reward), &advantage) in batch.iter_mut().zip(worth).zip(&advantages) {
            rollout.sample.reward = Some(reward);
            rollout.sample.advantage = Some(advantage);
            kept.append(&rollout.sample)?;
        }
        let row = numbers::rollouts(ledger.row(step, &goal.phase), &batch);
        let row = numbers::groups(row, &groups, &rewards);
        let began = Instant::now();
        let (row, updated) = self.learn(row, &batch, learner, optimizer)?;
        let learnt = began.elapsed().as_secs_f64();
        let sampled: usize = batch.iter().map(|rollout| rollout.row.tokens.sampled).sum();
        Ok(row
            .with("failed", failed as f64)
            .with("learning_rate", self.rate(step))
            .with("rollout_seconds", rolled)
            .with("rollout_tokens_per_second", sampled as f64 / rolled)
            .with("update_seconds", learnt)
            .with("step_seconds", rolled + learnt)
            .with("tokens_per_second", updated.tokens as f64 / learnt))
    }

    /// Scores and updates; the row with what that tells.
    fn learn(
        &self,
        row: Row,
        batch: &[Rollout],
        learner: &mut Learner,
        optimizer: &mut AdamW,
    ) -> Result<(Row, Updated), TrainError> {
        let settings = self.settings;
        let step = row.step;
        let flat = |group: usize| {
            let members = batch.iter().filter(|rollout| rollout.group == group);
            numbers::is_flat(members.map(|rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total)))
        };
        let (taught, row) = self.teach(row, batch, learner)?;
        let left_out = |place: usize| settings.skip_flat && taught[place].is_none() && flat(batch[place].group);
        let active: Vec<bool> = (0..batch.len()).map(|place| !left_out(place)).collect();
        let lessons: Vec<Lesson> = batch.iter().map(|rollout| Lesson::new(&rollout.sample)).collect();
        let taking: Vec<usize> = (0..batch.len()).filter(|&place| active[place]).collect();
        let (old, reference, row) = self.before(row, batch, &lessons, &taking, learner)?;
        let mut at = vec![usize::MAX; batch.len()];
        taking.iter().enumerate().for_each(|(place, &member)| at[member] = place);
        let course = |member: usize| Course {
            sequence: lessons[member].sequence(),
            old: old.get(at[member]).map_or(&[], Vec::as_slice),
            reference: reference.get(at[member]).map_or(&[], Vec::as_slice),
            advantage: batch[member].sample.advantage.unwrap_or(0.0) as f32,
            taught: taught[member].as_ref(),
            active: active[member],
        };
        let courses: Vec<Course<'_>> = (0..batch.len()).map(course).collect();
        let pull = self.pull(step);
        let updated = update(learner, optimizer, &courses, settings, (self.rate(step), pull))?;
        let norm = updated.norm();
        if !norm.is_finite() {
            return Err(TrainError::Diverged { section: "grpo", step, what: "gradient's norm", value: norm });
        }
        let means = updated.sums.means(&settings.loss);
        let row = match settings.teaching() {
            Some(_) => row.with("teacher_kl", updated.apart()).with("teacher_weight", pull),
            None => row,
        };
        let row = row
            .with("loss", means.loss + pull * updated.apart())
            .with("policy_loss", means.policy)
            .with("kl", means.kl)
            .with("entropy", means.entropy)
            .with("clip_fraction", means.clip_fraction)
            .with("policy_drift", means.drift)
            .with("gradient_norm", norm)
            .with("updates", updated.updates as f64);
        Ok((row, updated))
    }

    /// The log-probabilities of the tokens of those that take part, before the update and under the reference.
    fn before(
        &self,
        row: Row,
        batch: &[Rollout],
        lessons: &[Lesson],
        taking: &[usize],
        learner: &mut Learner,
    ) -> Result<(Logprobs, Logprobs, Row), TrainError> {
        let sequences: Vec<_> = taking.iter().map(|&member| lessons[member].sequence()).collect();
        let tokens = self.settings.pack_tokens;
        let (old, row) = if self.settings.recompute {
            let old = logprobs(learner, &sequences, tokens, false)?;
            let taken: Vec<&Rollout> = taking.iter().map(|&member| &batch[member]).collect();
            let row = numbers::drift(row, &taken, &old);
            (old, row)
        } else {
            let sampled = |&member: &usize| {
                let all = batch[member].sample.sampled_logprobs();
                all.into_iter().map(|logprob| logprob.unwrap_or(0.0)).collect()
            };
            (taking.iter().map(sampled).collect(), row)
        };
        let reference = match self.settings.reference {
            _ if self.settings.loss.kl == 0.0 => old.clone(),
            Reference::Base if *learner.tune() != Tune::Full => logprobs(learner, &sequences, tokens, true)?,
            _ => logprobs_under(learner, self.reference, &sequences, tokens)?,
        };
        Ok((old, reference, row))
    }
}
