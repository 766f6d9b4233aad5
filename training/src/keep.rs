//! A policy's own trajectories that are worth imitating: those that were right by themselves. Imitating them is what STaR
//! (arXiv 2203.14465, §3.1) and RFT (arXiv 2308.01825, §3.3) do.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::order;
use crate::reward::ExactMatch;
use crate::sample::Sample;

/// Which trajectories are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sieve {
    /// How often it may have searched.
    pub searches: RangeInclusive<usize>,
    /// Trajectories of one question at most: else the easy ones, which are right most often, would be most of what is learnt.
    pub per_question: usize,
    /// Decides which of a question's trajectories are kept where there are more.
    pub seed: u64,
}

impl Sieve {
    /// The places of those that are kept, in their order. Of trajectories with the same tokens only one is.
    pub fn keep(&self, samples: &[Sample]) -> Vec<usize> {
        let mut told: HashSet<&[u32]> = HashSet::new();
        let mut taken: HashMap<(&str, &str), usize> = HashMap::new();
        let mut kept = Vec::new();
        for at in order::shuffled(samples.len(), order::seed(self.seed, "keep", 0)) {
            let sample = &samples[at];
            let taken = taken.entry((sample.dataset.as_str(), sample.question_id.as_str())).or_default();
            if *taken < self.per_question && self.takes(sample) && told.insert(&sample.tokens) {
                *taken += 1;
                kept.push(at);
            }
        }
        kept.sort_unstable();
        kept
    }

    /// Whether its own answer is a gold one, every turn did what it was to do, and no search was made twice.
    fn takes(&self, sample: &Sample) -> bool {
        self.searches.contains(&sample.evidence.len())
            && sample.actions.iter().all(|act| act.executed)
            && sample.evidence.iter().all(|found| !found.cached && found.error.is_none())
            && ExactMatch::earned(sample) > 0.0
    }
}

#[cfg(test)]
mod tests {
    use waymark::agent::{Action, Request};
    use waymark_index::Mode;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::Act;

    /// The `at`th answer to a question, after so many searches.
    fn sample(at: u32, question: &str, answer: &str, searches: usize) -> Sample {
        Sample {
            question_id: question.to_owned(),
            golds: vec!["Paris".to_owned()],
            answer: Some(answer.to_owned()),
            tokens: vec![at],
            ..searched("", &vec![(Mode::Passage, 0.1); searches])
        }
    }

    fn sieve(searches: RangeInclusive<usize>, per_question: usize, seed: u64) -> Sieve {
        Sieve { searches, per_question, seed }
    }

    #[test]
    fn only_what_was_right_by_itself_is_kept() {
        let mut asked = sample(4, "q", "Paris", 1);
        asked.forced = vec![(0, 1)];
        let mut again = sample(5, "q", "Paris", 2);
        again.evidence[1].cached = true;
        let mut idle = sample(6, "q", "Paris", 1);
        idle.actions.push(Act { turn: 1, action: Action::Search(Request::plain("q")), executed: false, summary: None });
        let samples = [
            sample(0, "q", "Paris", 1),
            sample(1, "q", "Rome", 1),
            sample(2, "q", "Paris", 3),
            sample(3, "q", "Paris", 0),
            asked,
            again,
            idle,
            sample(0, "q", "Paris", 1),
        ];
        let kept = sieve(1..=2, 9, 1).keep(&samples);
        assert_eq!(kept.len(), 1);
        assert!(kept == [0] || kept == [7], "{kept:?}");
        assert_eq!(sieve(0..=3, 9, 1).keep(&samples).len(), 3);
    }

    #[test]
    fn of_a_question_some_are_kept_as_the_seed_decides() {
        let samples: Vec<Sample> =
            (0..40).map(|at| sample(at, if at < 30 { "easy" } else { "hard" }, "Paris", 1)).collect();
        let kept = |seed| sieve(1..=1, 2, seed).keep(&samples);
        assert_eq!(kept(1).iter().filter(|&&at| at < 30).count(), 2);
        assert_eq!(kept(1).len(), 4);
        assert_eq!(kept(1), kept(1));
        assert!((2..9).any(|seed| kept(seed) != kept(1)));
        assert!(kept(3).is_sorted());
    }
}
