//! EVO-RAG's preference model (§3.3 of its paper; no code is published): linear heads over a frozen encoder that rank
//! two branches of the same state.
//!
//! In the first step of each round, after its trajectories are rewarded, the ranker trains on all pairs of branches
//! whose rewards differ by at least Δ, and is measured on the pairs of held-out questions (§3.4: one epoch of the
//! ranker, one of the policy). It starts anew with each stage, because the reward changes; that is our choice.
//!
//! **The printed loss has seven identical heads.** All of them read the same state and have the same label: which
//! branch earned more in total. The loss is a sum over the heads, so each of them solves the same convex problem, and
//! seven end up equal to one. The paper's validation losses of 0.62 with seven heads and 0.71 with one cannot result
//! from that. Hence [`Labels::Own`](crate::recipe::Labels), which labels each head by the branch that earned more of
//! the head's own reward.
//!
//! **Role in the policy update.** The paper does not specify it: its pairs and its loss (§3.4) do without the ranker.
//! Here the ranker is either only trained and measured, or its score replaces the reward when pairs are selected
//! (`selects`).
//!
//! **Input.** A branch is all tokens from the prompt to the end of the turn of the split. The heads read the hidden
//! state of the last of these tokens, in the base model without the adapter, or under the run's initial values if all
//! weights are trained.

mod encoder;
mod heads;
mod loss;
mod training;

use std::collections::{BTreeMap, HashSet};

use waymark_models::gradient::Learner;

use self::heads::{LinearHeads, merit};
use self::loss::HeadLabel;
use self::training::{BranchPair, RankerEval, RankerTraining};
use super::rule::states;
use super::serve::groups;
use super::{DpoTraining, Preference, Siblings};
use crate::ledger::RunLedger;
use crate::recipe::{Labels, Ranker};
use crate::reward::evo_rag::{StepRewards, part};
use crate::rollout::Rollout;
use crate::run::MetricsRow;
use crate::sample::Sample;
use crate::{TrainError, seeding};

pub(crate) use self::heads::HEADS;

/// Prefix of a trajectory: its index in the round and the last turn, counted from 0.
type BranchKey = (usize, usize);

/// Hidden states of branches.
type BranchStates = BTreeMap<BranchKey, Vec<f32>>;

/// Scores of a ranker for a round's branches, with its metrics.
#[derive(Debug)]
pub(super) struct RankerScores {
    /// If `true`, the scores select the pairs.
    pub(super) selects: bool,
    scores: BTreeMap<BranchKey, Vec<f64>>,
    /// Number of training pairs and their mean loss, each measured before its step.
    learned: (usize, f64),
    measured: RankerEval,
}

impl RankerScores {
    /// Scores of both sides of a pair by each head. `None` if a side was not scored.
    pub(super) fn scores(&self, pair: Preference) -> Option<(&[f64], &[f64])> {
        let of = |member: usize| self.scores.get(&(member, pair.turn)).map(Vec::as_slice);
        Some((of(pair.chosen)?, of(pair.rejected)?))
    }

    /// Lead of the chosen side over the rejected one.
    pub(super) fn ahead(&self, pair: Preference) -> f64 {
        self.scores(pair).map_or(0.0, |(chosen, rejected)| merit(chosen) - merit(rejected))
    }

    /// Adds the metrics of the ranker.
    pub(super) fn add_metrics(&self, row: MetricsRow) -> MetricsRow {
        let (pairs, loss) = self.learned;
        let row = row.with("ranker_pairs", pairs as f64);
        self.measured.add_metrics(if pairs > 0 { row.with("ranker_training_loss", loss) } else { row })
    }
}

impl DpoTraining<'_> {
    /// Trains the ranker on a round's rewarded trajectories and scores their branches. `None` without a ranker. Later
    /// checkpoints contain its new state.
    pub(super) fn rank(
        &self,
        batch: &[Rollout],
        learner: &mut Learner,
        ledger: &mut RunLedger,
    ) -> Result<Option<RankerScores>, TrainError> {
        let Some(ranker) = self.settings.ranker.as_ref() else { return Ok(None) };
        let step = ledger.state().step + 1;
        let hidden = learner.config().hidden;
        let states = self.encode(&branches(batch), batch, learner)?;
        let (pairs, held_out) = self.split_pairs(batch, ranker);
        let mut learned = ledger.ranker().cloned().unwrap_or_else(|| ledger.new_ranker(ranker.heads * hidden));
        let training = RankerTraining { ranker, states: &states, hidden };
        // The ranker learns before it scores, so that its scores know this round's rewards.
        let loss = training.learn(&mut learned, &pairs, seeding::seed(self.seed, "ranker", step));
        if !loss.is_finite() {
            return Err(TrainError::Diverged { section: "dpo.ranker", step, what: "ranker loss", value: loss });
        }
        let heads = LinearHeads::new(&learned.values, hidden);
        let measured = training.measure(heads, &held_out);
        let scores = states.iter().map(|(&branch, state)| (branch, heads.score(state))).collect();
        // Set only after the loss was checked: a checkpoint never holds a diverged ranker.
        ledger.set_ranker(Some(learned));
        Ok(Some(RankerScores { selects: ranker.selects, scores, learned: (pairs.len(), loss), measured }))
    }

    /// Training pairs and held-out pairs.
    fn split_pairs(&self, batch: &[Rollout], ranker: &Ranker) -> (Vec<BranchPair>, Vec<BranchPair>) {
        let held_out = self.held_out(ranker.held_out);
        let is_held_out = |sample: &&Sample| held_out.contains(&(sample.dataset.as_str(), sample.question_id.as_str()));
        let mut training_pairs = Vec::new();
        let mut measured = Vec::new();
        for (first, samples) in groups(batch) {
            let pairs = Siblings { margin: ranker.margin }.all(&samples).into_iter().map(|pair| {
                let labels = labels(ranker, samples[pair.chosen], samples[pair.rejected]);
                let Preference { chosen, rejected, turn } = pair.after(first);
                BranchPair { chosen: (chosen, turn), rejected: (rejected, turn), labels }
            });
            let side = if samples.first().is_some_and(is_held_out) { &mut measured } else { &mut training_pairs };
            side.extend(pairs);
        }
        (training_pairs, measured)
    }

    /// Questions whose pairs are never trained on: the question set's name and the question's key.
    fn held_out(&self, share: f64) -> HashSet<(&str, &str)> {
        let own = self
            .question_sets
            .iter()
            .flat_map(|question_set| question_set.questions.iter().map(move |question| (question_set, question)));
        let all: Vec<(&str, &str)> =
            own.map(|(question_set, question)| (question_set.name.as_str(), question.key())).collect();
        let count = (all.len() as f64 * share).round() as usize;
        // The same questions in every round; a changing split would leak held-out pairs into training.
        let order = seeding::shuffled(all.len(), seeding::seed(self.seed, "held out", 0));
        order.into_iter().take(count).map(|at| all[at]).collect()
    }
}

/// Writes the ranker of a run, if there is one, to a file for later inspection; no server reads it. `kind` and `id`
/// identify the encoder: the kind of ID and the ID.
///
/// # Errors
/// If the file cannot be written.
pub fn write_ranker(ledger: &RunLedger, learner: &Learner, kind: &str, id: &str) -> Result<(), TrainError> {
    if let Some(ranker) = ledger.ranker() {
        LinearHeads::new(&ranker.values, learner.config().hidden).write(&ledger.folder().ranker(), kind, id)?;
    }
    Ok(())
}

/// Branches at all states where trajectories split, sorted by trajectory.
fn branches(batch: &[Rollout]) -> Vec<BranchKey> {
    let mut branches = Vec::new();
    for (first, samples) in groups(batch) {
        for state in states(&samples) {
            branches.extend(state.branches.into_iter().flatten().map(|member| (first + member, state.turn)));
        }
    }
    branches.sort_unstable();
    branches
}

/// Labels of the heads for a pair whose first side has the higher total reward.
fn labels(ranker: &Ranker, chosen: &Sample, rejected: &Sample) -> Vec<HeadLabel> {
    /// Smaller differences are rounding errors.
    const EQUAL: f64 = 1e-9;
    let reward_part = |sample: &Sample, name: &str| {
        let parts = sample.reward.as_ref().map(|reward| &reward.parts);
        parts.and_then(|parts| parts.get(&format!("{}{name}", part::WEIGHED)).copied()).unwrap_or(0.0)
    };
    let own = |name: &str| {
        let ahead = reward_part(chosen, name) - reward_part(rejected, name);
        HeadLabel::of(if ahead.abs() < EQUAL { 0.0 } else { ahead })
    };
    match ranker.labels {
        Labels::Total => vec![HeadLabel::First; ranker.heads],
        Labels::Own => StepRewards::NAMES.into_iter().map(own).collect(),
    }
}
