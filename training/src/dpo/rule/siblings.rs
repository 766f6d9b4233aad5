//! EVO-RAG's pair rule: branches that split at the same state.

use serde::{Deserialize, Serialize};
use waymark_agent::{Action, SearchError};

use super::{Preference, total};
use crate::sample::{RetrievalRecord, Sample};

/// Selects at each state the pair of trajectories that take different actions there and differ most in their reward, if
/// the difference reaches `margin` (§3.3 and §3.4 of EVO-RAG's paper). A state is the sequence of actions so far,
/// because the same actions find the same evidence; thoughts do not count. If several pairs have the same difference,
/// the first one in the order of the samples is selected. A trajectory with a failed search is in no pair, because the
/// policy did not cause the failure; a search in an unsupported mode is the policy's fault and excludes nothing. A
/// trajectory in which a turn has no tokens is in no pair either, because its turns cannot be told apart.
///
/// A forced answer differs from the same answer of the policy's own. It may be rejected but not chosen, because
/// training would make the turn in which the policy gave no answer more probable.
///
/// The paper pairs branches that start with different actions. Here a branch is everything the policy wrote from the
/// turn of the split to the end of the episode, and its reward is that of the whole episode: the part before the split
/// is the same on both sides and adds the same to both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Siblings {
    /// Minimum difference of the rewards.
    pub margin: f64,
}

impl Siblings {
    /// Selects the pairs of one question, in the order of their states.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        self.pairs_by(group, |pair| reward_difference(group, pair))
    }

    /// Same as [`pairs`](Self::pairs) with another measure than the reward: `ahead` returns the lead of the chosen
    /// trajectory.
    pub fn pairs_by(&self, group: &[&Sample], ahead: impl Fn(&Preference) -> f64) -> Vec<Preference> {
        states(group).iter().filter_map(|state| self.widest(group, state, &ahead)).collect()
    }

    /// Selects every pair that splits at a state with a sufficient difference, not only the widest.
    pub fn all(&self, group: &[&Sample]) -> Vec<Preference> {
        let states = states(group);
        let pairs = states.iter().flat_map(|state| state.pairs(group));
        pairs.filter(|pair| self.reaches_margin(reward_difference(group, pair))).collect()
    }

    /// Pair of different branches with the largest difference.
    fn widest(
        &self,
        group: &[&Sample],
        state: &SharedState,
        ahead: &impl Fn(&Preference) -> f64,
    ) -> Option<Preference> {
        let mut best: Option<(f64, Preference)> = None;
        for pair in state.pairs(group) {
            let ahead = ahead(&pair);
            if self.reaches_margin(ahead) && best.is_none_or(|(most, _)| ahead > most) {
                best = Some((ahead, pair));
            }
        }
        best.map(|(_, pair)| pair)
    }

    fn reaches_margin(&self, ahead: f64) -> bool {
        ahead > 0.0 && ahead >= self.margin
    }
}

/// State that several trajectories share, and the branches that continue from it.
#[derive(Debug, Clone)]
pub(crate) struct SharedState {
    /// Turn of the split, counted from 0.
    pub(crate) turn: usize,
    /// Indexes of the trajectories in each branch. There are at least two branches.
    pub(crate) branches: Vec<Vec<usize>>,
}

impl SharedState {
    /// All pairs of trajectories in different branches, in both orders, except those whose chosen side was forced to
    /// answer in the turn of the split.
    fn pairs(&self, group: &[&Sample]) -> impl Iterator<Item = Preference> {
        let turn = self.turn;
        self.branches.iter().enumerate().flat_map(move |(at, branch)| {
            let others = self.branches.iter().enumerate().filter(move |(other, _)| *other != at);
            let others = others.flat_map(|(_, other)| other);
            let own = branch.iter().filter(move |chosen| !is_forced_in(group[**chosen], turn));
            own.flat_map(move |&chosen| others.clone().map(move |&rejected| Preference { chosen, rejected, turn }))
        })
    }
}

/// States of a question at which trajectories split, in depth-first order.
pub(crate) fn states(group: &[&Sample]) -> Vec<SharedState> {
    // An unsupported mode is the policy's own fault and fails for every trajectory that requests it, so it does not
    // exclude the trajectory like other search errors do.
    let own = |found: &RetrievalRecord, error: &str| error == SearchError::Unsupported(found.mode).to_string();
    let is_fair = |found: &RetrievalRecord| found.error.as_deref().is_none_or(|error| own(found, error));
    let has_fair_searches = |sample: &Sample| sample.evidence.iter().all(is_fair);
    let takes_part = |member: &usize| has_fair_searches(group[*member]) && group[*member].has_every_turn();
    let mut open: Vec<(usize, Vec<usize>)> = vec![(0, (0..group.len()).filter(takes_part).collect())];
    let mut states = Vec::new();
    while let Some((turn, members)) = open.pop() {
        let branches = branches(group, &members, turn);
        let goes_on = branches.iter().rev().filter(|branch| branch.len() > 1);
        // Reversed, because the stack pops the last entry first: states then come in the order of the samples.
        open.extend(goes_on.map(|branch| (turn + 1, branch.clone())));
        if branches.len() > 1 {
            states.push(SharedState { turn, branches });
        }
    }
    states
}

/// Reward of the chosen trajectory minus that of the rejected one.
fn reward_difference(group: &[&Sample], pair: &Preference) -> f64 {
    total(group[pair.chosen]) - total(group[pair.rejected])
}

/// Returns `true` if the protocol forced an answer in this turn of a trajectory, counted from 0.
fn is_forced_in(sample: &Sample, turn: usize) -> bool {
    turn + 1 == sample.actions.len() && sample.is_forced()
}

/// Groups `members` by their next action; a forced answer differs from the same answer of the policy's own.
/// Trajectories that ended, for example at a limit, are in no branch.
fn branches(group: &[&Sample], members: &[usize], depth: usize) -> Vec<Vec<usize>> {
    let next = |member: usize| -> Option<(&Action, bool)> {
        let act = group[member].actions.get(depth)?;
        Some((&act.action, is_forced_in(group[member], depth)))
    };
    let mut branches: Vec<Vec<usize>> = Vec::new();
    for &member in members.iter().filter(|&&member| next(member).is_some()) {
        match branches.iter_mut().find(|branch| next(branch[0]) == next(member)) {
            Some(branch) => branch.push(member),
            None => branches.push(vec![member]),
        }
    }
    branches
}

#[cfg(test)]
mod tests {
    use waymark_agent::PolicySearch;
    use waymark_engine::Origin;
    use waymark_index::Mode;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{OriginRun, RewardValue, TurnAction};

    /// Trajectory with this reward that searches for each of the words.
    fn sample(words: &str, worth: f64) -> Sample {
        let search = |(query, turn): (&str, usize)| {
            let action = Action::Search(PolicySearch::plain(query));
            TurnAction { turn, action, executed: true, late: false, summary: None }
        };
        let actions: Vec<TurnAction> = words.split_whitespace().zip(1..).map(search).collect();
        let turn = [OriginRun(Origin::Policy, 1), OriginRun(Origin::Environment, 1)];
        let origins = turn.repeat(actions.len());
        let tokens = vec![0; origins.len()];
        let reward = Some(RewardValue { total: worth, ..RewardValue::default() });
        Sample { actions, origins, tokens, reward, ..searched("", &[]) }
    }

    /// Trajectory with this reward that answers at once. If `forced`, its only token was written for the policy.
    fn answered(text: &str, worth: f64, forced: bool) -> Sample {
        let mut sample = sample("search", worth);
        sample.actions[0].action = Action::Answer { text: text.to_owned() };
        sample.forced.extend(forced.then_some((0, 1)));
        sample
    }

    /// Chosen index, rejected index, and turn of the split.
    fn pairs(margin: f64, group: &[(&str, f64)]) -> Vec<(usize, usize, usize)> {
        let group: Vec<Sample> = group.iter().map(|(words, worth)| sample(words, *worth)).collect();
        told(Siblings { margin }.pairs(&group.iter().collect::<Vec<_>>()))
    }

    fn told(pairs: Vec<Preference>) -> Vec<(usize, usize, usize)> {
        pairs.into_iter().map(|Preference { chosen, rejected, turn }| (chosen, rejected, turn)).collect()
    }

    #[test]
    fn each_state_yields_the_pair_with_the_largest_difference() {
        // All split at the start, except that 0 and 1, and 3 and 4, share their first action.
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1), ("e f", 0.5), ("e g h", -0.2), ("e g i", 0.3)];
        assert_eq!(pairs(0.2, &group), [(1, 4, 0), (1, 0, 1), (3, 4, 1), (5, 4, 2)]);
        assert_eq!(pairs(0.6, &group), [(1, 4, 0), (1, 0, 1), (3, 4, 1)]);
        assert_eq!(pairs(1.3, &group), []);
    }

    #[test]
    fn all_yields_every_pair_of_different_branches_above_the_margin() {
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1), ("a c", 0.0)].map(|(words, worth)| sample(words, worth));
        let group: Vec<&Sample> = group.iter().collect();
        let all = |margin| told(Siblings { margin }.all(&group));
        // 1 and 3 have the same actions throughout.
        assert_eq!(all(0.0), [(0, 2, 0), (1, 2, 0), (2, 3, 0), (0, 3, 1), (1, 0, 1)]);
        assert_eq!(all(0.35), [(1, 2, 0), (0, 3, 1), (1, 0, 1)]);
        let branches: Vec<(usize, Vec<Vec<usize>>)> =
            states(&group).into_iter().map(|state| (state.turn, state.branches)).collect();
        assert_eq!(branches, [(0, vec![vec![0, 1, 3], vec![2]]), (1, vec![vec![0], vec![1, 3]])]);
    }

    /// With the index as the measure, the last trajectory is best, whatever its reward.
    #[test]
    fn another_measure_selects_other_pairs() {
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1)].map(|(words, worth)| sample(words, worth));
        let group: Vec<&Sample> = group.iter().collect();
        let by = |margin| Siblings { margin }.pairs_by(&group, |pair| pair.chosen as f64 - pair.rejected as f64);
        assert_eq!(told(by(0.5)), [(2, 0, 0), (1, 0, 1)]);
        assert_eq!(told(by(1.5)), [(2, 0, 0)]);
    }

    #[test]
    fn a_trajectory_with_a_failed_search_is_in_no_pair() {
        let mut group = vec![sample("x y", -1.0), sample("x z", 1.0), sample("w", 0.0)];
        let pairs = |group: &[Sample]| told(Siblings { margin: 0.2 }.pairs(&group.iter().collect::<Vec<_>>()));
        group[0].evidence = searched("", &[(Mode::Passage, 0.1)]).evidence;
        assert_eq!(pairs(&group), [(1, 2, 0), (1, 0, 1)]);
        group[0].evidence[0].error = Some("it took too long".to_owned());
        assert_eq!(pairs(&group), [(1, 2, 0)]);
        // An unsupported mode does not exclude a trajectory.
        group[0].evidence[0].error = Some(SearchError::Unsupported(Mode::Passage).to_string());
        assert_eq!(pairs(&group), [(1, 2, 0), (1, 0, 1)]);
    }

    #[test]
    fn a_forced_answer_is_rejected_but_never_chosen() {
        let pairs = |group: &[Sample]| told(Siblings { margin: 0.2 }.pairs(&group.iter().collect::<Vec<_>>()));
        let all = |group: &[Sample]| told(Siblings { margin: 0.2 }.all(&group.iter().collect::<Vec<_>>()));
        // The same answer, once by the policy itself.
        let same = [answered("Paris", 0.0, true), answered("Paris", 1.0, false)];
        assert_eq!((pairs(&same), all(&same)), (vec![(1, 0, 0)], vec![(1, 0, 0)]));
        let lucky = [answered("Paris", 1.0, true), answered("Rome", 0.0, false)];
        assert_eq!((pairs(&lucky), all(&lucky)), (vec![], vec![]));
        let three = [answered("Paris", 1.0, true), answered("Rome", 0.0, false), sample("a", 0.5)];
        assert_eq!(pairs(&three), [(2, 1, 0)]);
        // In an earlier turn, the trajectory chose by itself.
        let mut later = sample("a b", 1.0);
        later.actions[1].action = Action::Answer { text: "Paris".to_owned() };
        later.forced = vec![(2, 1)];
        assert_eq!(pairs(&[later, sample("c", 0.0)]), [(0, 1, 0)]);
    }

    /// In the training variant a turn may be empty, and the tokens of its neighbors would be taken for its own.
    #[test]
    fn a_trajectory_with_an_empty_turn_is_in_no_pair() {
        let mut group = vec![sample("a b", 1.0), sample("a c", 0.0), sample("d", 0.5)];
        let pairs = |group: &[Sample]| told(Siblings { margin: 0.2 }.pairs(&group.iter().collect::<Vec<_>>()));
        assert_eq!(pairs(&group), [(0, 2, 0), (0, 1, 1)]);
        // Its first turn has no tokens, so that one observation follows another one.
        group[0].origins = vec![OriginRun(Origin::Environment, 2), OriginRun(Origin::Policy, 2)];
        assert_eq!(pairs(&group), [(2, 1, 0)]);
    }

    #[test]
    fn equal_actions_form_no_pair() {
        assert_eq!(pairs(0.2, &[("a b", 0.0), ("a b", 1.0)]), []);
        assert_eq!(pairs(0.0, &[("a", 0.5), ("b", 0.5)]), []);
        // A trajectory that ends earlier took no different action.
        assert_eq!(pairs(0.2, &[("a", 0.0), ("a b", 1.0), ("a", 0.5)]), []);
        assert_eq!(pairs(0.2, &[]), []);
        // Ties go to the first pair.
        assert_eq!(pairs(0.2, &[("a", 0.0), ("b", 1.0), ("c", 1.0), ("d", 0.0)]), [(1, 0, 0)]);
    }
}
