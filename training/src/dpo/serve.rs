//! The policy at work in the engine: the first step of a round, and measurements on questions it does not learn from.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Instant;

use waymark::agent::Policy;
use waymark::evaluate::Question;
use waymark::metric::exact_match;
use waymark_models::gradient::Learner;

use super::ranker::Ranked;
use super::standing::{MERIT, PAIRS, ROUND_END};
use super::update::total;
use super::{Campaign, Goal, Preference, Rule};
use crate::grpo::{logprobs, logprobs_under};
use crate::ledger::{Ledger, Watch};
use crate::pack::Sequence;
use crate::recipe::dpo::Reference;
use crate::rollout::{Batch, Field, Plan, Rollout, measure, rollouts, serve};
use crate::run::Row;
use crate::sample::{Preferred, Sample};
use crate::sft::{Lesson, VALIDATION};
use crate::store::Writer;
use crate::{TrainError, numbers, order};

impl Campaign<'_> {
    /// The rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// When there is no stage, or engine or file system refuse.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let Some(goal) = self.goals.first() else { return Ok(Vec::new()) };
        let few = self.questions(1).into_iter().take(4).collect();
        Ok(self.roll(goal, 1, few, learner).await?.rollouts)
    }

    /// The questions of a round, counted from 1: each epoch asks all of all fields in an order of its own.
    pub(super) fn questions(&self, round: u64) -> Vec<(&Field, &Question)> {
        let all: Vec<_> =
            self.fields.iter().flat_map(|field| field.questions.iter().map(move |q| (field, q))).collect();
        let seed = |epoch| order::seed(self.seed, "questions", epoch);
        let batch = order::batch(all.len(), self.settings.questions.min(all.len()), round - 1, seed);
        batch.into_iter().map(|place| all[place]).collect()
    }

    /// The first step of a round: trajectories of the policy as it is, what they are worth, what a ranker makes of them, which
    /// are preferred to which, and how probable the reference finds those. All of it is in the file of samples then.
    pub(super) async fn begin(
        &self,
        goal: &Goal,
        round: u64,
        learner: &mut Learner,
        ledger: &mut Ledger,
        kept: &mut Writer,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        let (step, began) = (ledger.state().step + 1, Instant::now());
        let Batch { rollouts: mut made, failed } = self.roll(goal, step, self.questions(round), learner).await?;
        let rolled = began.elapsed().as_secs_f64();
        let worth = goal.reward.score(&made)?;
        made.iter_mut().zip(worth).for_each(|(rollout, worth)| rollout.sample.reward = Some(worth));
        let ranked = self.rank(&made, learner, ledger)?;
        let pairs = preferred(goal, &made, ranked.as_ref().filter(|ranked| ranked.selects));
        let known = self.refer(&pairs, &made, learner)?;
        for (&pair, reference) in pairs.iter().zip(known) {
            let (to, turn) = (made[pair.rejected].sample.id.clone(), pair.turn);
            let scores = ranked.as_ref().and_then(|ranked| ranked.scores(pair));
            let scores = scores.map(|(chosen, rejected)| (chosen.to_vec(), rejected.to_vec()));
            made[pair.chosen].sample.preferred_to.push(Preferred { to, turn, reference, scores });
        }
        made.iter().try_for_each(|rollout| kept.append(&rollout.sample))?;
        let sampled: usize = made.iter().map(|rollout| rollout.row.tokens.sampled).sum();
        let last = step + goal.updates(pairs.len(), self.settings.batch);
        let row = ledger.row(step, &goal.phase);
        let row = match &ranked {
            Some(ranked) => ranked.tell(row),
            None => row,
        };
        let row = told(row, &made, &pairs)
            .with("failed", failed as f64)
            .with("round", round as f64)
            .with(ROUND_END, last as f64)
            .with("rollout_seconds", rolled)
            .with("rollout_tokens_per_second", sampled as f64 / rolled)
            .with("step_seconds", began.elapsed().as_secs_f64());
        ledger.note(&row)?;
        ledger.advance(step);
        let go_on = watch.row(&row);
        if pairs.is_empty() {
            tracing::warn!(round, stage = goal.phase, "no pair in a round, which teaches nothing: look at its samples");
        }
        if go_on.is_continue() {
            kept.sync()?;
            ledger.save(learner, &ledger.fresh(learner))?;
            watch.saved(ledger, learner)?;
        }
        Ok(go_on)
    }

    async fn roll(
        &self,
        goal: &Goal,
        step: u64,
        questions: Vec<(&Field, &Question)>,
        learner: &Learner,
    ) -> Result<Batch, TrainError> {
        let policy = self.serve(learner).await?;
        let Self { seed, settings, .. } = *self;
        let (group, concurrent) = (settings.group, settings.concurrent);
        let plan = Plan { sampling: &settings.sampling, group, concurrent, seed, step, cost: goal.cost };
        rollouts(&policy, &questions, &plan).await
    }

    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        serve(self.policy, self.engine, &self.exchange, learner).await
    }

    /// How probable the reference finds what is compared in each pair, of the chosen trajectory and of the rejected one, where
    /// there is a reference.
    fn refer(
        &self,
        pairs: &[Preference],
        made: &[Rollout],
        learner: &mut Learner,
    ) -> Result<Vec<Option<(f64, f64)>>, TrainError> {
        let mut members: Vec<usize> = pairs.iter().flat_map(|pair| [pair.chosen, pair.rejected]).collect();
        members.sort_unstable();
        members.dedup();
        let lessons: Vec<Lesson> = members.iter().map(|&member| Lesson::new(&made[member].sample)).collect();
        let sequences: Vec<Sequence<'_>> = lessons.iter().map(Lesson::sequence).collect();
        let tokens = self.settings.pack_tokens;
        let known = match self.settings.reference {
            Reference::None => return Ok(vec![None; pairs.len()]),
            Reference::Round => logprobs(learner, &sequences, tokens, false)?,
            Reference::Initial => logprobs_under(learner, self.initial, &sequences, tokens)?,
        };
        let known: HashMap<usize, Vec<f32>> = members.into_iter().zip(known).collect();
        let sum = |member: usize, turn: usize| total(&known[&member][made[member].sample.turn_start(turn)..]);
        Ok(pairs.iter().map(|pair| Some((sum(pair.chosen, pair.turn), sum(pair.rejected, pair.turn)))).collect())
    }

    /// Measures the policy as it is served, on questions it does not learn from. The best round is the one with the highest
    /// mean EM of answers that were not asked for, as rewards have it; none of the first `before` steps.
    pub(super) async fn validate(
        &self,
        before: u64,
        learner: &Learner,
        ledger: &mut Ledger,
        watch: &mut dyn Watch,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.fields.iter().all(|field| field.validation.is_empty()) {
            return Ok(ControlFlow::Continue(()));
        }
        let step = ledger.state().step;
        let (concurrent, cost) = (self.settings.concurrent, self.settings.cost);
        let policy = self.serve(learner).await?;
        let made = measure(&policy, self.fields, concurrent, self.seed, cost).await?;
        let merit = made.iter().map(|rollout| right(&rollout.sample)).sum::<f64>() / made.len().max(1) as f64;
        let row = numbers::served(ledger.row(step, VALIDATION).with(MERIT, merit), self.fields, &made);
        if step > 0 {
            ledger.measured(merit, before);
        }
        ledger.note(&row)?;
        Ok(watch.row(&row))
    }
}

/// EM of the answer that the policy gave by itself.
fn right(sample: &Sample) -> f64 {
    f64::from(u8::from(sample.own_answer().is_some_and(|answer| exact_match(answer, &sample.golds))))
}

/// The trajectories of each question, which lie side by side, and how many lie before them.
pub(super) fn groups(made: &[Rollout]) -> impl Iterator<Item = (usize, Vec<&Sample>)> {
    let mut next = 0;
    made.chunk_by(|one, other| one.group == other.group).map(move |group| {
        let first = next;
        next += group.len();
        (first, group.iter().map(|rollout| &rollout.sample).collect())
    })
}

/// The pairs among the trajectories of each question, by their places among all: by what the ranker says, where one is given.
fn preferred(goal: &Goal, made: &[Rollout], ranked: Option<&Ranked>) -> Vec<Preference> {
    let mut pairs = Vec::new();
    for (first, samples) in groups(made) {
        let own = match (goal.rule, ranked) {
            (Rule::Siblings(rule), Some(ranked)) => rule.pairs_by(&samples, |pair| ranked.ahead(pair.after(first))),
            (rule, _) => rule.pairs(&samples),
        };
        pairs.extend(own.into_iter().map(|pair| pair.after(first)));
    }
    pairs
}

/// The numbers of a round's trajectories and of the pairs among them.
fn told(row: Row, made: &[Rollout], pairs: &[Preference]) -> Row {
    let rewards: Vec<f64> =
        made.iter().map(|rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total)).collect();
    let groups: Vec<usize> = made.iter().map(|rollout| rollout.group).collect();
    let row = numbers::groups(numbers::rollouts(row, made), &groups, &rewards);
    let row = row.with(PAIRS, pairs.len() as f64);
    if pairs.is_empty() {
        return row;
    }
    let mean =
        |of: fn(&Preference) -> usize| pairs.iter().map(|pair| rewards[of(pair)]).sum::<f64>() / pairs.len() as f64;
    row.with("chosen_reward", mean(|pair| pair.chosen)).with("rejected_reward", mean(|pair| pair.rejected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::tests::searched;

    #[test]
    fn an_answer_that_was_asked_for_makes_no_round_better() {
        let own = Sample { golds: vec!["rome".into()], answer: Some("Rome.".into()), ..searched("", &[]) };
        let asked = Sample { forced: vec![(0, 1)], ..own.clone() };
        let silent = Sample { answer: None, ..own.clone() };
        assert_eq!([own, asked, silent].map(|sample| right(&sample)), [1.0, 0.0, 0.0]);
    }
}
