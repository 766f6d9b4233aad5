//! A policy's own trajectories that are worth imitating: those that were right by themselves, or at least kept the form.
//! Imitating the right ones is what STaR (arXiv 2203.14465, §3.1) and RFT (arXiv 2308.01825, §3.3) do.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::order;
use crate::reward::ExactMatch;
use crate::reward::extract::given;
use crate::sample::Sample;

/// Which trajectories are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sieve {
    /// How often it may have searched.
    pub searches: RangeInclusive<usize>,
    /// Whether a wrong answer is as good as a right one: what is imitated then is the form. Of a question's trajectories the
    /// right ones go first all the same.
    pub wrong: bool,
    /// Whether it must have been possible otherwise: only questions of which another trajectory is not worth it, however
    /// often it searched.
    pub contested: bool,
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
        let missed: HashSet<(&str, &str)> =
            samples.iter().filter(|sample| !self.is_worth_it(sample)).map(question).collect();
        let mut order = order::shuffled(samples.len(), order::seed(self.seed, "keep", 0));
        order.sort_by_key(|&at| !is_right(&samples[at]));
        let mut kept = Vec::new();
        for at in order {
            let sample = &samples[at];
            let taken = taken.entry(question(sample)).or_default();
            let room = *taken < self.per_question && (!self.contested || missed.contains(&question(sample)));
            let fits = self.searches.contains(&sample.evidence.len()) && self.is_worth_it(sample);
            if room && fits && told.insert(&sample.tokens) {
                *taken += 1;
                kept.push(at);
            }
        }
        kept.sort_unstable();
        kept
    }

    /// Whether it gave an answer of its own, right where it must be, every turn did what it was to do, and no search was made
    /// twice.
    fn is_worth_it(&self, sample: &Sample) -> bool {
        sample.actions.iter().all(|act| act.executed)
            && sample.evidence.iter().all(|found| !found.cached && found.error.is_none())
            && if self.wrong { given(sample).is_some() } else { is_right(sample) }
    }
}

fn is_right(sample: &Sample) -> bool {
    ExactMatch::earned(sample) > 0.0
}

/// The question of a trajectory: two data sets may have the same ids.
fn question(sample: &Sample) -> (&str, &str) {
    (&sample.dataset, &sample.question_id)
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
        Sieve { searches, wrong: false, contested: false, per_question, seed }
    }

    #[test]
    fn only_what_was_right_by_itself_is_kept() {
        let mut asked = sample(4, "q", "Paris", 1);
        asked.forced = vec![(0, 1)];
        let mut again = sample(5, "q", "Paris", 2);
        again.evidence[1].cached = true;
        let mut idle = sample(6, "q", "Paris", 1);
        idle.actions.push(Act {
            turn: 1,
            action: Action::Search(Request::plain("q")),
            executed: false,
            late: false,
            summary: None,
        });
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
    fn for_the_form_a_wrong_answer_will_do_where_there_is_no_right_one() {
        let mut asked = sample(9, "q", "Paris", 1);
        asked.forced = vec![(0, 1)];
        let samples = [sample(0, "q", "Rome", 1), sample(1, "q", "Paris", 1), sample(2, "r", "Rome", 1), asked];
        for seed in 0..9 {
            let sieve = Sieve { wrong: true, ..sieve(1..=1, 1, seed) };
            assert_eq!(sieve.keep(&samples), [1, 2]);
        }
    }

    #[test]
    fn what_always_went_well_is_not_contested() {
        let samples = [
            sample(0, "sure", "Paris", 1),
            sample(1, "sure", "Paris", 2),
            sample(2, "split", "Paris", 1),
            sample(3, "split", "Rome", 1),
        ];
        let sieve = Sieve { contested: true, ..sieve(1..=1, 9, 1) };
        assert_eq!(sieve.keep(&samples), [2]);
        // Where wrong answers will do, nothing is missed.
        assert!(Sieve { wrong: true, ..sieve }.keep(&samples).is_empty());
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
