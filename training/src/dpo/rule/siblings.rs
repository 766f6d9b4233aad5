//! EVO-RAG's pairs: branches that part at the same state.

use serde::{Deserialize, Serialize};
use waymark::agent::{Action, SearchError};

use super::{Preference, total};
use crate::sample::{Retrieved, Sample};

/// At each state the pair of trajectories that part there by other actions and differ most in their reward, if that is
/// enough (§3.3 and §3.4 of EVO-RAG's paper). A state is what was done so far: the same actions find the same evidence.
/// What was thought before them is no part of it. Of equal differences the first counts, in the order of the samples. For this
/// to hold, a trajectory one of whose searches could not be made is in no pair: what went otherwise after that, and is worth
/// otherwise, is no doing of its policy.
///
/// The paper's pairs are branches that begin with different actions. Here a branch is all that the policy wrote from the turn
/// in which they part to the end of the episode, and its worth that of the whole episode: what was done before is the same
/// on both sides, and adds the same to both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Siblings {
    /// By how much the rewards have to differ at least.
    pub margin: f64,
}

impl Siblings {
    /// The pairs of one question: those of the first state first.
    pub fn pairs(&self, group: &[&Sample]) -> Vec<Preference> {
        self.pairs_by(group, |pair| apart(group, pair))
    }

    /// The same by another measure than the reward: `ahead` says by how much the one is ahead of the other.
    pub fn pairs_by(&self, group: &[&Sample], ahead: impl Fn(&Preference) -> f64) -> Vec<Preference> {
        states(group).iter().filter_map(|state| self.widest(state, &ahead)).collect()
    }

    /// All two trajectories that part at a state and differ enough there, and not only those that differ most.
    pub fn all(&self, group: &[&Sample]) -> Vec<Preference> {
        let states = states(group);
        let pairs = states.iter().flat_map(State::pairs);
        pairs.filter(|pair| self.parts(apart(group, pair))).collect()
    }

    /// The two of different branches that differ most.
    fn widest(&self, state: &State, ahead: impl Fn(&Preference) -> f64) -> Option<Preference> {
        let mut best: Option<(f64, Preference)> = None;
        for pair in state.pairs() {
            let ahead = ahead(&pair);
            if self.parts(ahead) && best.is_none_or(|(most, _)| ahead > most) {
                best = Some((ahead, pair));
            }
        }
        best.map(|(_, pair)| pair)
    }

    fn parts(&self, ahead: f64) -> bool {
        ahead > 0.0 && ahead >= self.margin
    }
}

/// A state that several trajectories came to, and what each of them did there.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// The turn, counted from 0, in which they part.
    pub(crate) turn: usize,
    /// Those that did the same, by their places in the group; two branches at least.
    pub(crate) branches: Vec<Vec<usize>>,
}

impl State {
    /// Each two of different branches, both ways round.
    fn pairs(&self) -> impl Iterator<Item = Preference> {
        let turn = self.turn;
        self.branches.iter().enumerate().flat_map(move |(at, branch)| {
            let others = self.branches.iter().enumerate().filter(move |(other, _)| *other != at);
            let others = others.flat_map(|(_, other)| other);
            branch
                .iter()
                .flat_map(move |&chosen| others.clone().map(move |&rejected| Preference { chosen, rejected, turn }))
        })
    }
}

/// The states of a question in which trajectories part, the first one first.
pub(crate) fn states(group: &[&Sample]) -> Vec<State> {
    // Who asked for a mode that is not there was refused for what it did, as anybody who does the same.
    let own = |found: &Retrieved, error: &str| error == SearchError::Unsupported(found.mode).to_string();
    let heard = |found: &Retrieved| found.error.as_deref().is_none_or(|error| own(found, error));
    let served = |member: &usize| group[*member].evidence.iter().all(heard);
    let mut open: Vec<(usize, Vec<usize>)> = vec![(0, (0..group.len()).filter(served).collect())];
    let mut states = Vec::new();
    while let Some((turn, members)) = open.pop() {
        let branches = branches(group, &members, turn);
        let goes_on = branches.iter().rev().filter(|branch| branch.len() > 1);
        open.extend(goes_on.map(|branch| (turn + 1, branch.clone())));
        if branches.len() > 1 {
            states.push(State { turn, branches });
        }
    }
    states
}

/// By how much the reward of one trajectory is above that of the other.
fn apart(group: &[&Sample], pair: &Preference) -> f64 {
    total(group[pair.chosen]) - total(group[pair.rejected])
}

/// The members that did the same so far, by what they did next. Who did nothing more, for a bound was reached, is in none.
fn branches(group: &[&Sample], members: &[usize], depth: usize) -> Vec<Vec<usize>> {
    let next = |member: usize| -> Option<&Action> { group[member].actions.get(depth).map(|act| &act.action) };
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
    use waymark::agent::Request;
    use waymark_index::Mode;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{Act, Reward};

    /// A trajectory that searches for each of the words, of this worth.
    fn sample(words: &str, worth: f64) -> Sample {
        let search = |(query, turn): (&str, usize)| {
            let action = Action::Search(Request::plain(query));
            Act { turn, action, executed: true, late: false, summary: None }
        };
        let actions = words.split_whitespace().zip(1..).map(search).collect();
        let reward = Some(Reward { total: worth, ..Reward::default() });
        Sample { actions, reward, ..searched("", &[]) }
    }

    /// Chosen, rejected, and where they part.
    fn pairs(margin: f64, group: &[(&str, f64)]) -> Vec<(usize, usize, usize)> {
        let group: Vec<Sample> = group.iter().map(|(words, worth)| sample(words, *worth)).collect();
        told(Siblings { margin }.pairs(&group.iter().collect::<Vec<_>>()))
    }

    fn told(pairs: Vec<Preference>) -> Vec<(usize, usize, usize)> {
        pairs.into_iter().map(|Preference { chosen, rejected, turn }| (chosen, rejected, turn)).collect()
    }

    #[test]
    fn each_state_gives_the_pair_that_differs_most() {
        // All part at the beginning, but 0 and 1, and 3 and 4, go a step together.
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1), ("e f", 0.5), ("e g h", -0.2), ("e g i", 0.3)];
        assert_eq!(pairs(0.2, &group), [(1, 4, 0), (1, 0, 1), (3, 4, 1), (5, 4, 2)]);
        assert_eq!(pairs(0.6, &group), [(1, 4, 0), (1, 0, 1), (3, 4, 1)]);
        assert_eq!(pairs(1.3, &group), []);
    }

    #[test]
    fn all_pairs_are_those_of_different_branches_that_differ_enough() {
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1), ("a c", 0.0)].map(|(words, worth)| sample(words, worth));
        let group: Vec<&Sample> = group.iter().collect();
        let all = |margin| told(Siblings { margin }.all(&group));
        // 1 and 3 did the same, to the end.
        assert_eq!(all(0.0), [(0, 2, 0), (1, 2, 0), (2, 3, 0), (0, 3, 1), (1, 0, 1)]);
        assert_eq!(all(0.35), [(1, 2, 0), (0, 3, 1), (1, 0, 1)]);
        let branches: Vec<(usize, Vec<Vec<usize>>)> =
            states(&group).into_iter().map(|state| (state.turn, state.branches)).collect();
        assert_eq!(branches, [(0, vec![vec![0, 1, 3], vec![2]]), (1, vec![vec![0], vec![1, 3]])]);
    }

    /// By the places alone the last is the best one, whatever it earned.
    #[test]
    fn another_measure_gives_other_pairs() {
        let group = [("a b", 0.4), ("a c", 1.0), ("d", 0.1)].map(|(words, worth)| sample(words, worth));
        let group: Vec<&Sample> = group.iter().collect();
        let by = |margin| Siblings { margin }.pairs_by(&group, |pair| pair.chosen as f64 - pair.rejected as f64);
        assert_eq!(told(by(0.5)), [(2, 0, 0), (1, 0, 1)]);
        assert_eq!(told(by(1.5)), [(2, 0, 0)]);
    }

    #[test]
    fn what_could_not_search_is_in_no_pair() {
        let mut group = vec![sample("x y", -1.0), sample("x z", 1.0), sample("w", 0.0)];
        let pairs = |group: &[Sample]| told(Siblings { margin: 0.2 }.pairs(&group.iter().collect::<Vec<_>>()));
        group[0].evidence = searched("", &[(Mode::Passage, 0.1)]).evidence;
        assert_eq!(pairs(&group), [(1, 2, 0), (1, 0, 1)]);
        group[0].evidence[0].error = Some("it took too long".to_owned());
        assert_eq!(pairs(&group), [(1, 2, 0)]);
        // A mode that nobody is offered is no misfortune.
        group[0].evidence[0].error = Some(SearchError::Unsupported(Mode::Passage).to_string());
        assert_eq!(pairs(&group), [(1, 2, 0), (1, 0, 1)]);
    }

    #[test]
    fn what_did_the_same_is_no_pair() {
        assert_eq!(pairs(0.2, &[("a b", 0.0), ("a b", 1.0)]), []);
        assert_eq!(pairs(0.0, &[("a", 0.5), ("b", 0.5)]), []);
        // One that ends earlier did nothing else.
        assert_eq!(pairs(0.2, &[("a", 0.0), ("a b", 1.0), ("a", 0.5)]), []);
        assert_eq!(pairs(0.2, &[]), []);
        // Of equals the first.
        assert_eq!(pairs(0.2, &[("a", 0.0), ("b", 1.0), ("c", 1.0), ("d", 0.0)]), [(1, 0, 0)]);
    }
}
