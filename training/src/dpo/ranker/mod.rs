//! EVO-RAG's preference model (§3.3 of its paper; there is no program): linear heads over a frozen encoder tell the better of
//! two branches that part at the same state.
//!
//! In the first step of each round, once its trajectories are rewarded, it sees all pairs of branches whose rewards differ by
//! Δ, and is measured on those of questions that it never learns from (§3.4: one epoch of it, one of the policy). It begins
//! anew with each stage, whose rewards are others; that is ours.
//!
//! **The loss as it is printed has seven equal heads.** All of them read the same state, and all are to say the same: which
//! branch earned more in all. The loss is a sum over the heads, so each of them solves the same convex problem, and seven end
//! as one would. The paper's validation losses of 0.62 with seven and 0.71 with one cannot come of that. Hence
//! [`Labels::Own`](crate::recipe::Labels): each head is to say which branch earned more of its own reward.
//!
//! **How it enters the update of the policy** the paper does not say: its pairs and its loss (§3.4) do without it. Either it is
//! learnt and measured beside that, or its score takes the place of the reward when pairs are chosen (`selects`).
//!
//! **What it sees** of a branch are all tokens from the prompt to the end of the turn in which the branches part: the state of
//! the last of these in the base model, without the adapter, or in the values that the run began with where all are learnt.

mod encoder;
mod heads;
mod loss;
mod study;

use std::collections::{BTreeMap, HashSet};

use waymark_models::gradient::Learner;

use self::heads::{Heads, merit};
use self::loss::Label;
use self::study::{Measured, Pair, Study};
use super::rule::states;
use super::serve::groups;
use super::{Campaign, Preference, Siblings};
use crate::ledger::Ledger;
use crate::recipe::{Labels, Ranker};
use crate::reward::evo_rag::{Steps, part};
use crate::rollout::Rollout;
use crate::run::Row;
use crate::sample::Sample;
use crate::{TrainError, order};

pub(crate) use self::heads::HEADS;

/// A trajectory, by its place among all of a round, up to the end of a turn, counted from 0.
type Branch = (usize, usize);

/// What the encoder makes of branches.
type States = BTreeMap<Branch, Vec<f32>>;

/// What a ranker says of a round's branches, and how well it does.
#[derive(Debug)]
pub(super) struct Ranked {
    /// Whether pairs are chosen by it.
    pub(super) selects: bool,
    scores: BTreeMap<Branch, Vec<f64>>,
    /// Pairs that it has learnt from, and their mean loss, each before the step it was in.
    learnt: (usize, f64),
    measured: Measured,
}

impl Ranked {
    /// What each head says of the two sides of a pair.
    pub(super) fn scores(&self, pair: Preference) -> Option<(&[f64], &[f64])> {
        let of = |member: usize| self.scores.get(&(member, pair.turn)).map(Vec::as_slice);
        Some((of(pair.chosen)?, of(pair.rejected)?))
    }

    /// By how much the one side is ahead of the other.
    pub(super) fn ahead(&self, pair: Preference) -> f64 {
        self.scores(pair).map_or(0.0, |(chosen, rejected)| merit(chosen) - merit(rejected))
    }

    /// Adds what is to be known of it.
    pub(super) fn tell(&self, row: Row) -> Row {
        let (pairs, loss) = self.learnt;
        let row = row.with("ranker_pairs", pairs as f64);
        self.measured.tell(if pairs > 0 { row.with("ranker_training_loss", loss) } else { row })
    }
}

impl Campaign<'_> {
    /// Lets the ranker, where there is one, learn from a round's trajectories, which are rewarded, and says what it makes of
    /// them then. It is in the checkpoints that follow.
    pub(super) fn rank(
        &self,
        made: &[Rollout],
        learner: &mut Learner,
        ledger: &mut Ledger,
    ) -> Result<Option<Ranked>, TrainError> {
        let Some(ranker) = self.settings.ranking() else { return Ok(None) };
        let (step, hidden) = (ledger.state().step + 1, learner.config().hidden);
        let states = self.encode(&branches(made), made, learner)?;
        let (pairs, held_out) = self.divide(made, ranker);
        let mut learnt = ledger.ranker().cloned().unwrap_or_else(|| ledger.fresh_ranker(ranker.heads * hidden));
        let study = Study { ranker, states: &states, hidden };
        let loss = study.learn(&mut learnt, &pairs, order::seed(self.seed, "ranker", step));
        if !loss.is_finite() {
            return Err(TrainError::Diverged { section: "dpo.ranker", step, what: "ranker's loss", value: loss });
        }
        let heads = Heads::new(&learnt.values, hidden);
        let measured = study.measure(heads, &held_out);
        let scores = states.iter().map(|(&branch, state)| (branch, heads.score(state))).collect();
        ledger.set_ranker(Some(learnt));
        Ok(Some(Ranked { selects: ranker.selects, scores, learnt: (pairs.len(), loss), measured }))
    }

    /// The pairs that it learns from, and those that it is measured on.
    fn divide(&self, made: &[Rollout], ranker: &Ranker) -> (Vec<Pair>, Vec<Pair>) {
        let held_out = self.held_out(ranker.held_out);
        let aside = |sample: &&Sample| held_out.contains(&(sample.dataset.as_str(), sample.question_id.as_str()));
        let (mut learnt, mut measured) = (Vec::new(), Vec::new());
        for (first, samples) in groups(made) {
            let pairs = Siblings { margin: ranker.margin }.all(&samples).into_iter().map(|pair| {
                let labels = labels(ranker, samples[pair.chosen], samples[pair.rejected]);
                let Preference { chosen, rejected, turn } = pair.after(first);
                Pair { chosen: (chosen, turn), rejected: (rejected, turn), labels }
            });
            let side = if samples.first().is_some_and(aside) { &mut measured } else { &mut learnt };
            side.extend(pairs);
        }
        (learnt, measured)
    }

    /// The questions whose pairs are never learnt from, in no round: their field and what they are known by.
    fn held_out(&self, share: f64) -> HashSet<(&str, &str)> {
        let own = self.fields.iter().flat_map(|field| field.questions.iter().map(move |asked| (field, asked)));
        let all: Vec<(&str, &str)> = own.map(|(field, asked)| (field.name.as_str(), asked.key())).collect();
        let count = (all.len() as f64 * share).round() as usize;
        let order = order::shuffled(all.len(), order::seed(self.seed, "held out", 0));
        order.into_iter().take(count).map(|at| all[at]).collect()
    }
}

/// Writes down the ranker of a run as it is, where there is one: nothing serves it. `read` says whose states it reads: the
/// kind of id that follows, and the id.
///
/// # Errors
/// When the system refuses.
pub fn write_ranker(ledger: &Ledger, learner: &Learner, read: (&str, &str)) -> Result<(), TrainError> {
    if let Some(ranker) = ledger.ranker() {
        Heads::new(&ranker.values, learner.config().hidden).write(&ledger.folder().ranker(), read)?;
    }
    Ok(())
}

/// All branches at states in which trajectories part, those of a trajectory side by side.
fn branches(made: &[Rollout]) -> Vec<Branch> {
    let mut branches = Vec::new();
    for (first, samples) in groups(made) {
        for state in states(&samples) {
            branches.extend(state.branches.into_iter().flatten().map(|member| (first + member, state.turn)));
        }
    }
    branches.sort_unstable();
    branches
}

/// What each head is to say of a pair whose first side earned more in all.
fn labels(ranker: &Ranker, chosen: &Sample, rejected: &Sample) -> Vec<Label> {
    /// Sums that differ by less were only rounded otherwise.
    const EQUAL: f64 = 1e-9;
    let earned = |sample: &Sample, name: &str| {
        let parts = sample.reward.as_ref().map(|reward| &reward.parts);
        parts.and_then(|parts| parts.get(&format!("{}{name}", part::WEIGHED)).copied()).unwrap_or(0.0)
    };
    let own = |name: &str| {
        let ahead = earned(chosen, name) - earned(rejected, name);
        Label::of(if ahead.abs() < EQUAL { 0.0 } else { ahead })
    };
    match ranker.labels {
        Labels::Total => vec![Label::First; ranker.heads],
        Labels::Own => Steps::NAMES.into_iter().map(own).collect(),
    }
}
