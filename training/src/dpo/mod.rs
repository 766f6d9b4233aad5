//! Learning from preferences by DPO: of a question's trajectories the better one is to become more probable than the other.
//!
//! A round: the engine gets what is learnt as it is and answers questions several times; rewards and a rule say which
//! trajectories are preferred to which; a few epochs over these pairs follow. The first step of a round makes its
//! trajectories and changes no weights, each further one is an optimizer step. How many there are is known only then. Where the
//! recipe has a ranker, it learns from them too in that first step (`ranker`).

mod goal;
mod loss;
mod ranker;
mod round;
mod rule;
mod serve;
mod standing;
#[cfg(test)]
mod tests;
mod update;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use waymark::agent::Policy;
use waymark::engine::Engine;
use waymark_models::gradient::Learner;

use crate::ledger::{Ledger, Watch};
use crate::optimizer::AdamW;
use crate::recipe::Dpo;
use crate::recipe::dpo::Begins;
use crate::rollout::Field;
use crate::run::{Metrics, Row};
use crate::schedule::Schedule;
use crate::store::Writer;
use crate::{TrainError, order};

use self::round::Round;
use self::standing::Standing;

pub(crate) use self::ranker::HEADS;

pub use self::goal::Goal;
pub use self::loss::{Likelihood, Terms, Verdict};
pub use self::ranker::write_ranker;
pub use self::rule::{Preference, Rule, Siblings, TeaRag};
pub use self::standing::ROUND_END;
pub use self::update::{Pair, Side, Updated, update};

/// The whole of training by preferences.
#[derive(Debug)]
pub struct Campaign<'a> {
    /// Its constants.
    pub settings: &'a Dpo,
    /// Where everything random starts.
    pub seed: u64,
    /// What is preferred, in order.
    pub goals: &'a [Goal],
    /// What is asked.
    pub fields: &'a [Field],
    /// The loop that is learnt.
    pub policy: &'a Policy,
    /// What makes the rollouts: the engine of all fields.
    pub engine: &'a Engine,
    /// The values that the run began with; looked at where margins are measured from them, and where all weights are learnt
    /// beside a ranker, which reads their states.
    pub initial: &'a [f32],
    /// A folder through which adapters get into the engine.
    pub exchange: PathBuf,
}

impl Campaign<'_> {
    /// Trains from where `ledger` stands to the end. `watch` looks on.
    ///
    /// # Errors
    /// When there is nothing to ask, a loss or gradient is no number any more, or engine, model or file system refuse.
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
        if ledger.state().step == 0 && self.validate(0, learner, ledger, watch).await?.is_break() {
            return Ok(());
        }
        loop {
            let standing = self.standing(ledger)?;
            let Some(goal) = self.goals.get(standing.stage) else { return Ok(()) };
            let go_on = if let Some((first, pairs)) = standing.open {
                let last = first + goal.updates(pairs, self.settings.batch);
                self.learn(goal, (first, last, standing.before), learner, &mut optimizer, ledger, watch).await?
            } else {
                if standing.over == 0 {
                    if goal.begins == Begins::Best {
                        ledger.restore_best(learner)?;
                    }
                    // What it has learnt to tell was another reward.
                    ledger.set_ranker(None);
                }
                optimizer = ledger.fresh(learner);
                self.begin(goal, standing.rounds + 1, learner, ledger, &mut kept, watch).await?
            };
            if go_on.is_break() {
                return Ok(());
            }
        }
    }

    /// Where the run stands, by the numbers that it has noted.
    fn standing(&self, ledger: &Ledger) -> Result<Standing, TrainError> {
        let rows = Metrics::read(&ledger.folder().metrics())?;
        Ok(Standing::of(&rows, ledger.state().step, self.goals, self.settings.batch))
    }

    /// The optimizer steps of a round that are still to be made, behind the step that made its trajectories, and at its end
    /// a measurement.
    async fn learn(
        &self,
        goal: &Goal,
        (first, last, before): (u64, u64, u64),
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        let round = Round::read(&ledger.folder().samples(), first)?;
        for step in ledger.state().step + 1..=last {
            let row = self.step(goal, &round, (first, last), learner, optimizer, ledger)?;
            ledger.note(&row)?;
            ledger.advance(step);
            let mut go_on = watch.row(&row);
            if step == last && go_on.is_continue() {
                go_on = self.validate(before, learner, ledger, watch).await?;
            }
            if go_on.is_break() {
                return Ok(go_on);
            }
            let every = self.settings.save_every as u64;
            if step == last || (every > 0 && step.is_multiple_of(every)) {
                ledger.save(learner, optimizer)?;
                watch.saved(ledger, learner)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The next optimizer step.
    fn step(
        &self,
        goal: &Goal,
        round: &Round,
        (first, last): (u64, u64),
        learner: &mut Learner,
        optimizer: &mut AdamW,
        ledger: &Ledger,
    ) -> Result<Row, TrainError> {
        let (step, began, settings) = (ledger.state().step + 1, Instant::now(), self.settings);
        let done = step - first - 1;
        let seed = |epoch: u64| order::seed(order::seed(self.seed, "pairs", first), "epoch", epoch);
        let pairs = round.batch(done, settings.batch, seed);
        let total = (last - first) as usize;
        let schedule = Schedule::over(total, settings.schedule, settings.warmup);
        let rate = settings.learning_rate * schedule.factor(done as usize);
        let updated = update(learner, optimizer, &pairs, goal.terms, settings.pack_tokens, rate)?;
        for (what, value) in [("loss", updated.mean.loss), ("gradient's norm", updated.norm)] {
            if !value.is_finite() {
                return Err(TrainError::Diverged { section: "dpo", step, what, value });
            }
        }
        let seconds = began.elapsed().as_secs_f64();
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
