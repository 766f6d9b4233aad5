//! Rollouts and validation of the current policy in the engine.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Instant;

use waymark_agent::Policy;
use waymark_agent::metric::exact_match;
use waymark_models::gradient::{Learner, ScoredModel};
use waymark_runtime::evaluate::Question;

use super::progress::{MERIT, PAIRS, ROUND_END};
use super::ranker::RankerScores;
use super::update::total;
use super::{DpoGoal, DpoTraining, PairRule, Preference};
use crate::ledger::{RunLedger, RunObserver};
use crate::logprobs::{logprobs, logprobs_under};
use crate::pack::TrainingSequence;
use crate::recipe::dpo::{Branches, DpoReference};
use crate::reward::evidence_measure::EvidenceMeasure;
use crate::rollout::{
    QuestionSet, Rollout, RolloutSettings, SampledRollouts, epoch_questions, measure, rollouts, serve,
};
use crate::run::MetricsRow;
use crate::sample::{PreferenceRecord, Sample, SampleView};
use crate::sample_lines::SampleWriter;
use crate::sft::VALIDATION;
use crate::{TrainError, rollout_metrics};

impl DpoTraining<'_> {
    /// Generates rollouts of a few questions, for an estimate.
    ///
    /// # Errors
    /// If the engine or file system fails.
    pub async fn try_out(&self, learner: &Learner) -> Result<Vec<Rollout>, TrainError> {
        let Some(goal) = self.goals.first() else { return Ok(Vec::new()) };
        let few = self.questions(1).into_iter().take(4).collect();
        Ok(self.roll(goal, 1, few, learner).await?.rollouts)
    }

    /// Questions of a round, counted from 1: at most all of them.
    pub(super) fn questions(&self, round: u64) -> Vec<(&QuestionSet, &Question)> {
        let all: usize = self.question_sets.iter().map(|set| set.questions.len()).sum();
        epoch_questions(self.question_sets, self.seed, self.settings.questions.min(all), round - 1)
    }

    /// Makes the first step of a round: generates trajectories with the current policy, rewards them, updates the
    /// ranker, selects pairs and scores them under the reference. All results are written to the file of samples.
    pub(super) async fn begin(
        &self,
        goal: &DpoGoal,
        round: u64,
        learner: &mut Learner,
        ledger: &mut RunLedger,
        sample_writer: &mut SampleWriter,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        let step = ledger.state().step + 1;
        let started = Instant::now();
        let SampledRollouts { rollouts: mut batch, failed } =
            self.roll(goal, step, self.questions(round), learner).await?;
        let rollout_seconds = started.elapsed().as_secs_f64();
        let score = goal.reward.score(&batch)?;
        for (rollout, score) in batch.iter_mut().zip(score) {
            rollout.sample.reward = Some(score);
            rollout.sample.tokenizer = Some(self.vocabulary.to_owned());
        }
        let ranked = self.rank(&batch, learner, ledger)?;
        let pairs = select_pairs(goal, &batch, ranked.as_ref().filter(|ranked| ranked.selects));
        let likelihoods = self.reference_likelihoods(&pairs, &batch, learner)?;
        for (&pair, reference) in pairs.iter().zip(likelihoods) {
            let to = batch[pair.rejected].sample.id.clone();
            let turn = pair.turn;
            let scores = ranked.as_ref().and_then(|ranked| ranked.scores(pair));
            let scores = scores.map(|(chosen, rejected)| (chosen.to_vec(), rejected.to_vec()));
            batch[pair.chosen].sample.preferred_to.push(PreferenceRecord { to, turn, reference, scores });
        }
        batch.iter().try_for_each(|rollout| sample_writer.append(&rollout.sample))?;
        let sampled: usize = batch.iter().map(Rollout::sampled).sum();
        // Written into the row, so that a resumed run knows the end of its round without reading the pairs again.
        let last = step + goal.updates(pairs.len(), self.settings.batch);
        let row = ledger.row(step, &goal.phase);
        let row = match &ranked {
            Some(ranked) => ranked.add_metrics(row),
            None => row,
        };
        let row = add_pair_metrics(add_branch_metrics(row, &batch, self.settings.branches), &batch, &pairs)
            .with("failed", failed as f64)
            .with("round", round as f64)
            .with(ROUND_END, last as f64)
            .with("rollout_seconds", rollout_seconds)
            .with("rollout_tokens_per_second", sampled as f64 / rollout_seconds)
            .with("step_seconds", started.elapsed().as_secs_f64());
        ledger.write_row(&row)?;
        ledger.advance(step);
        let go_on = observer.row(&row);
        if pairs.is_empty() {
            tracing::warn!(round, stage = goal.phase, "the round has no pair and trains nothing: check its samples");
        }
        if go_on.is_continue() {
            // Samples must be on disk before the checkpoint that refers to them.
            sample_writer.sync()?;
            // A new optimizer, because the updates of a round start without moments.
            ledger.save(learner, &ledger.new_optimizer(learner))?;
            observer.saved(ledger, learner)?;
        }
        Ok(go_on)
    }

    async fn roll(
        &self,
        goal: &DpoGoal,
        step: u64,
        questions: Vec<(&QuestionSet, &Question)>,
        learner: &Learner,
    ) -> Result<SampledRollouts, TrainError> {
        let policy = self.serve(learner).await?;
        let Self { seed, settings, .. } = *self;
        let group = settings.group;
        let concurrent = settings.concurrent;
        let defaults = RolloutSettings::new(&settings.sampling, concurrent, seed);
        let rollout_settings =
            RolloutSettings { group, step, cost: goal.cost, branches: settings.branches, ..defaults };
        rollouts(&policy, &questions, &rollout_settings).await
    }

    async fn serve(&self, learner: &Learner) -> Result<Policy, TrainError> {
        serve(self.policy, self.engine, &self.adapter_dir, learner).await
    }

    /// Log-likelihoods of the chosen and rejected trajectory of each pair under the reference. `None` for each pair
    /// without a reference.
    fn reference_likelihoods(
        &self,
        pairs: &[Preference],
        batch: &[Rollout],
        learner: &mut Learner,
    ) -> Result<Vec<Option<(f64, f64)>>, TrainError> {
        let mut members: Vec<usize> = pairs.iter().flat_map(|pair| [pair.chosen, pair.rejected]).collect();
        // A trajectory may stand in several pairs; its likelihood is computed once.
        members.sort_unstable();
        members.dedup();
        let views: Vec<(usize, SampleView)> = members
            .iter()
            .flat_map(|&member| batch[member].sample.views().into_iter().map(move |view| (member, view)))
            .collect();
        let sequences: Vec<TrainingSequence<'_>> =
            views.iter().map(|(_, SampleView { tokens, learned, .. })| TrainingSequence { tokens, learned }).collect();
        let tokens = self.settings.pack_tokens;
        let likelihoods = match self.settings.reference {
            DpoReference::None => return Ok(vec![None; pairs.len()]),
            DpoReference::Round => logprobs(learner, &sequences, tokens, ScoredModel::Adapted)?,
            DpoReference::Initial => logprobs_under(learner, self.initial, &sequences, tokens)?,
        };
        let likelihoods = by_position(&views, &likelihoods, batch);
        let sum = |member: usize, turn: usize| total(&likelihoods[&member][batch[member].sample.turn_start(turn)..]);
        Ok(pairs.iter().map(|pair| Some((sum(pair.chosen, pair.turn), sum(pair.rejected, pair.turn)))).collect())
    }

    /// Measures the policy with its own sampling parameters on the validation questions. The best round after the first
    /// `before` steps has the highest mean EM; as in rewards, a forced answer counts as wrong. Searches have the prices
    /// of `goal`, the stage of the round.
    pub(super) async fn validate(
        &self,
        goal: &DpoGoal,
        before: u64,
        learner: &Learner,
        ledger: &mut RunLedger,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        if self.question_sets.iter().all(|question_set| question_set.validation.is_empty()) {
            return Ok(ControlFlow::Continue(()));
        }
        let step = ledger.state().step;
        let concurrent = self.settings.concurrent;
        let policy = self.serve(learner).await?;
        // As in the rollouts of a round, because `[dpo]` names no measure of the evidence.
        let evidence = EvidenceMeasure::default();
        let batch = measure(&policy, self.question_sets, concurrent, self.seed, goal.cost, evidence).await?;
        let merit =
            batch.iter().map(|rollout| unforced_exact_match(&rollout.sample)).sum::<f64>() / batch.len().max(1) as f64;
        let row = rollout_metrics::add_validation(
            ledger.row(step, VALIDATION).with(MERIT, merit),
            self.question_sets,
            &batch,
        );
        ledger.add_measurement(&row, merit, before, observer)
    }
}

/// Log-probabilities of trajectories by position, from those of their views.
fn by_position(views: &[(usize, SampleView)], logprobs: &[Vec<f32>], batch: &[Rollout]) -> HashMap<usize, Vec<f32>> {
    let mut found: HashMap<usize, Vec<f32>> = HashMap::new();
    for ((member, view), logprobs) in views.iter().zip(logprobs) {
        let own = found.entry(*member).or_insert_with(|| vec![0.0; batch[*member].sample.tokens.len()]);
        // A token is a target of one view, and has 0 in the others.
        view.positions.iter().zip(logprobs).for_each(|(&at, logprob)| own[at] += logprob);
    }
    found
}

/// EM of the answer, 0 if it was forced.
fn unforced_exact_match(sample: &Sample) -> f64 {
    f64::from(u8::from(sample.own_answer().is_some_and(|answer| exact_match(answer, &sample.golds))))
}

/// Groups of consecutive trajectories of a question, each with the number of trajectories before it.
pub(super) fn groups(batch: &[Rollout]) -> impl Iterator<Item = (usize, Vec<&Sample>)> {
    let mut next = 0;
    // Rollouts of a question are consecutive, in the order of the questions.
    batch.chunk_by(|one, other| one.group == other.group).map(move |group| {
        let first = next;
        next += group.len();
        (first, group.iter().map(|rollout| &rollout.sample).collect())
    })
}

/// Selects the pairs within each question, by index among all trajectories. If `ranked` is given, its scores replace
/// the rewards.
fn select_pairs(goal: &DpoGoal, batch: &[Rollout], ranked: Option<&RankerScores>) -> Vec<Preference> {
    let mut pairs = Vec::new();
    for (first, samples) in groups(batch) {
        let own = match (goal.rule, ranked) {
            (PairRule::Siblings(rule), Some(ranked)) => rule.pairs_by(&samples, |pair| ranked.ahead(pair.after(first))),
            (rule, _) => rule.pairs(&samples),
        };
        pairs.extend(own.into_iter().map(|pair| pair.after(first)));
    }
    pairs
}

/// Adds the number of trajectories that are branches, if any are made.
fn add_branch_metrics(row: MetricsRow, batch: &[Rollout], branches: Option<Branches>) -> MetricsRow {
    let count = batch.iter().filter(|rollout| rollout.sample.branch.is_some()).count();
    if branches.is_some() { row.with("branches", count as f64) } else { row }
}

/// Adds the metrics of a round's trajectories and pairs.
fn add_pair_metrics(row: MetricsRow, batch: &[Rollout], pairs: &[Preference]) -> MetricsRow {
    let rewards: Vec<f64> =
        batch.iter().map(|rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total)).collect();
    let groups: Vec<usize> = batch.iter().map(|rollout| rollout.group).collect();
    let row = rollout_metrics::add_groups(rollout_metrics::add_rollouts(row, batch), &groups, &rewards);
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
    fn a_forced_answer_does_not_count_as_right() {
        let own = Sample { golds: vec!["rome".into()], answer: Some("Rome.".into()), ..searched("", &[]) };
        let asked = Sample { forced: vec![(0, 1)], ..own.clone() };
        let silent = Sample { answer: None, ..own.clone() };
        assert_eq!([own, asked, silent].map(|sample| unforced_exact_match(&sample)), [1.0, 0.0, 0.0]);
    }
}
