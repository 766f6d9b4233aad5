//! Selection of a policy's own rollouts for supervised training: correct ones, or at least well-formed ones. Training
//! on correct rollouts is what STaR (arXiv 2203.14465, §3.1) and RFT (arXiv 2308.01825, §3.3) do.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use waymark_agent::Action;
use waymark_agent::metric::normalize;

use crate::mode_table::ModeTable;
use crate::reward::ExactMatch;
use crate::reward::extract::closed_answer;
use crate::sample::Sample;
use crate::seeding;

/// Criteria for the trajectories to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleFilter {
    /// Allowed number of searches.
    pub searches: RangeInclusive<usize>,
    /// If `true`, wrong answers are kept too, so that a policy can learn the format. Correct trajectories of a
    /// question still come first.
    pub wrong: bool,
    /// If `true`, keeps only questions for which some other trajectory fails the criteria (the number of searches and
    /// the mode aside): questions that are always answered well teach little.
    pub contested: bool,
    /// Keeps only trajectories that begin in the best mode for their kind of question. `None` allows any mode.
    pub modes: Option<ModeTable>,
    /// Maximum number of trajectories per question. Without a limit, easy questions would dominate, because they are
    /// answered correctly most often.
    pub per_question: usize,
    /// Seed that selects among the trajectories of a question when there are too many.
    pub seed: u64,
}

impl SampleFilter {
    /// Returns the indices of the samples to keep, in ascending order. Of several samples with the same tokens only
    /// one is kept.
    pub fn keep(&self, samples: &[Sample]) -> Vec<usize> {
        let mut seen: HashSet<&[u32]> = HashSet::new();
        let mut taken: HashMap<(&str, &str), usize> = HashMap::new();
        let failed: HashSet<(&str, &str)> =
            samples.iter().filter(|sample| !self.passes(sample)).map(question).collect();
        let agrees = |at: &usize| self.modes.as_ref().is_none_or(|modes| modes.agrees(&samples[*at]));
        let candidates: Vec<usize> = (0..samples.len()).filter(agrees).collect();
        let shuffled = seeding::shuffled(candidates.len(), seeding::seed(self.seed, "keep", 0));
        let mut order: Vec<usize> = shuffled.into_iter().map(|place| candidates[place]).collect();
        // A stable sort: correct trajectories first, otherwise in the order of the shuffle.
        order.sort_by_key(|&at| !is_right(&samples[at]));
        let mut kept = Vec::new();
        for at in order {
            let sample = &samples[at];
            let taken = taken.entry(question(sample)).or_default();
            let room = *taken < self.per_question && (!self.contested || failed.contains(&question(sample)));
            let fits = self.searches.contains(&sample.evidence.len()) && self.passes(sample);
            // The tokens are inserted last, so that a rejected trajectory does not block an equal one.
            if room && fits && seen.insert(&sample.tokens) {
                *taken += 1;
                kept.push(at);
            }
        }
        kept.sort_unstable();
        kept
    }

    /// Returns `true` if the trajectory gave an answer of its own (a correct one, unless [`wrong`](Self::wrong) is
    /// set), every action was executed, and no search failed or was repeated.
    fn passes(&self, sample: &Sample) -> bool {
        // A turn without an action counts as executed if the policy got another try.
        sample.actions.iter().all(|act| act.executed && act.action != Action::Invalid)
            && sample.evidence.iter().all(|found| !found.cached && found.error.is_none())
            && !repeats_search(sample)
            && if self.wrong { closed_answer(sample).is_some() } else { is_right(sample) }
    }
}

/// Returns `true` if two searches have the same mode, words and entities. Only the serving loop answers a repeated
/// search from its cache, so `cached` alone does not tell. The metric `duplicates` of evaluations ignores entities: it
/// measures what policies write, while a search for the same words about another entity is worth learning.
fn repeats_search(sample: &Sample) -> bool {
    let mut seen = HashSet::new();
    !sample.evidence.iter().all(|found| seen.insert((found.mode, normalize(&found.query), &found.entities)))
}

fn is_right(sample: &Sample) -> bool {
    ExactMatch::of_sample(sample) > 0.0
}

/// Key of a sample's question. Two data sets may use the same ids.
fn question(sample: &Sample) -> (&str, &str) {
    (&sample.dataset, &sample.question_id)
}

#[cfg(test)]
mod tests {
    use waymark_agent::PolicySearch;
    use waymark_index::Mode;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::TurnAction;

    /// Creates answer number `at` to a question, after `searches` different searches.
    fn sample(at: u32, question: &str, answer: &str, searches: usize) -> Sample {
        let mut sample = Sample {
            question_id: question.to_owned(),
            golds: vec!["Paris".to_owned()],
            answer: Some(answer.to_owned()),
            tokens: vec![at],
            ..searched("", &vec![(Mode::Passage, 0.1); searches])
        };
        sample.evidence.iter_mut().for_each(|found| found.query = format!("query {}", found.turn));
        sample
    }

    fn sieve(searches: RangeInclusive<usize>, per_question: usize, seed: u64) -> SampleFilter {
        SampleFilter { searches, wrong: false, contested: false, modes: None, per_question, seed }
    }

    #[test]
    fn only_correct_unassisted_answers_are_kept() {
        let mut asked = sample(4, "q", "Paris", 1);
        asked.forced = vec![(0, 1)];
        let mut again = sample(5, "q", "Paris", 2);
        again.evidence[1].cached = true;
        let mut idle = sample(6, "q", "Paris", 1);
        idle.actions.push(TurnAction {
            turn: 1,
            action: Action::Search(PolicySearch::plain("q")),
            executed: false,
            late: false,
            summary: None,
        });
        let mut invalid = sample(7, "q", "Paris", 1);
        invalid.actions.push(TurnAction {
            turn: 1,
            action: Action::Invalid,
            executed: true,
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
            invalid,
            sample(0, "q", "Paris", 1),
        ];
        let kept = sieve(1..=2, 9, 1).keep(&samples);
        assert_eq!(kept.len(), 1);
        assert!(kept == [0] || kept == [8], "{kept:?}");
        assert_eq!(sieve(0..=3, 9, 1).keep(&samples).len(), 3);
    }

    /// A trajectory of the training variant of a policy, whose loop executes a repeated search again.
    #[test]
    fn a_repeated_search_is_noticed_without_a_cache() {
        let mut again = sample(0, "q", "Paris", 2);
        again.evidence[1].query = "Query 1.".to_owned();
        assert!(sieve(1..=2, 9, 1).keep(&[again.clone()]).is_empty());
        let mut elsewhere = again.clone();
        elsewhere.evidence[1].mode = Mode::Graph;
        let mut about = again;
        about.tokens = vec![1];
        about.evidence[1].entities = vec!["Paris".to_owned()];
        assert_eq!(sieve(1..=2, 9, 1).keep(&[elsewhere, about]), [0, 1]);
    }

    #[test]
    fn wrong_answers_are_kept_for_their_format_if_no_answer_is_correct() {
        let mut asked = sample(9, "q", "Paris", 1);
        asked.forced = vec![(0, 1)];
        let samples = [sample(0, "q", "Rome", 1), sample(1, "q", "Paris", 1), sample(2, "r", "Rome", 1), asked];
        for seed in 0..9 {
            let sieve = SampleFilter { wrong: true, ..sieve(1..=1, 1, seed) };
            assert_eq!(sieve.keep(&samples), [1, 2]);
        }
    }

    #[test]
    fn questions_that_always_succeed_are_not_contested() {
        let samples = [
            sample(0, "sure", "Paris", 1),
            sample(1, "sure", "Paris", 2),
            sample(2, "split", "Paris", 1),
            sample(3, "split", "Rome", 1),
        ];
        let sieve = SampleFilter { contested: true, ..sieve(1..=1, 9, 1) };
        assert_eq!(sieve.keep(&samples), [2]);
        // With wrong answers allowed, no trajectory fails the criteria, so no question is contested.
        assert!(SampleFilter { wrong: true, ..sieve }.keep(&samples).is_empty());
    }

    /// A wrong answer in a mode that is not taught is not kept, but shows that its question is worth learning from.
    #[test]
    fn wrong_answers_in_other_modes_contest_a_question() {
        let mut samples: Vec<Sample> = Vec::new();
        for question in 0..9 {
            let elsewhere = if question < 8 { "Rome" } else { "Paris" };
            for (mode, answer) in [(Mode::Passage, elsewhere), (Mode::Graph, "Paris")] {
                let mut begun = sample(samples.len() as u32, &question.to_string(), answer, 1);
                begun.kind = Some("occupation".to_owned());
                begun.evidence[0].mode = mode;
                samples.push(begun);
            }
        }
        let sieve = SampleFilter { modes: Some(ModeTable::of(&samples)), ..sieve(1..=1, 9, 1) };
        assert_eq!(sieve.keep(&samples), [1, 3, 5, 7, 9, 11, 13, 15, 17]);
        let sieve = SampleFilter { contested: true, ..sieve };
        assert_eq!(sieve.keep(&samples), [1, 3, 5, 7, 9, 11, 13, 15]);
    }

    #[test]
    fn the_seed_selects_among_the_trajectories_of_a_question() {
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
