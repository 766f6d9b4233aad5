//! Keeps what is measured out of what is learnt.

use std::collections::{HashMap, HashSet};

use super::question::{Question, Triple};
use super::text::{bare, plain, words};

/// What must not be learnt: the questions, subjects and gold triples of files that are measured.
#[derive(Debug, Default)]
pub struct Guard {
    questions: HashSet<String>,
    /// Questions by each of their words, to find those that are nearly equal.
    sets: Vec<HashSet<String>>,
    by_word: HashMap<String, Vec<usize>>,
    /// Subjects of single-hop questions; nothing at all is asked about them.
    subjects: HashSet<String>,
    /// Subject and relation of gold triples.
    pairs: HashSet<(String, String)>,
}

/// Questions that share so much of their words are nearly equal (Jaccard index).
const NEAR: f64 = 0.8;

impl Guard {
    /// Keeps these questions out.
    pub fn add(&mut self, measured: &[Question]) {
        for question in measured {
            self.questions.insert(plain(&question.question));
            let set: HashSet<String> = words(&question.question).into_iter().collect();
            for word in &set {
                self.by_word.entry(word.clone()).or_default().push(self.sets.len());
            }
            self.sets.push(set);
            self.subjects.extend(question.triple.iter().map(|triple| plain(&triple[0])));
            for triple in question.evidences.iter().chain(&question.triple) {
                self.pairs.insert((plain(bare(&triple[0])), triple[1].clone()));
            }
        }
    }

    /// Whether a question is a measured one, or nearly.
    pub fn knows(&self, question: &str) -> bool {
        self.questions.contains(&plain(question)) || self.near(question)
    }

    /// Whether a triple, or one of the same subject and relation, is a measured one.
    pub fn holds(&self, triple: &Triple) -> bool {
        self.pairs.contains(&(plain(bare(&triple[0])), triple[1].clone()))
    }

    /// Whether a measured single-hop question is about this subject.
    pub fn is_about(&self, subject: &str) -> bool {
        self.subjects.contains(&plain(bare(subject))) || self.subjects.contains(&plain(subject))
    }

    fn near(&self, question: &str) -> bool {
        let own: HashSet<String> = words(question).into_iter().collect();
        let count = |word: &str| self.by_word.get(word).map_or(0, Vec::len);
        let mut rarest: Vec<&String> = own.iter().collect();
        rarest.sort_by_key(|word| (count(word), *word));
        // Sets as near as this share all but a fifth of these words, so at least one of the rarest.
        let spared = own.len() - (NEAR * own.len() as f64).ceil() as usize;
        let candidates = rarest.iter().take(spared + 1).filter_map(|word| self.by_word.get(*word)).flatten();
        let near = |at: &usize| {
            let both = self.sets[*at].intersection(&own).count();
            both as f64 >= NEAR * (own.len() + self.sets[*at].len() - both) as f64
        };
        candidates.into_iter().any(near)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guard() -> Guard {
        let mut guard = Guard::default();
        guard.add(&[
            Question {
                question: "In what city was Ann Lee born?".into(),
                triple: Some(["Ann Lee".into(), "place of birth".into(), "Leeds".into()]),
                ..Question::default()
            },
            Question {
                question: "Who directed the film Low Tide, that was shown in Leeds?".into(),
                evidences: vec![["Low Tide (film)".into(), "director".into(), "Ann Lee".into()]],
                ..Question::default()
            },
        ]);
        guard
    }

    #[test]
    fn measured_questions_are_known_in_other_dress() {
        let guard = guard();
        assert!(guard.knows("in what city was ann lee born"));
        assert!(guard.knows("Who directed the film \"Low Tide\" that was shown at Leeds?"));
        assert!(!guard.knows("In what city was Bob Ray born?"));
        assert!(!guard.knows("Who directed High Tide?"));
    }

    proptest! {
        #[test]
        fn no_near_question_slips_through(measured in proptest::collection::vec("[a-h]( [a-h]){0,7}", 1..6),
            asked in "[a-h]( [a-h]){0,7}")
        {
            let mut guard = Guard::default();
            let row = |question: &String| Question { question: question.clone(), ..Question::default() };
            guard.add(&measured.iter().map(row).collect::<Vec<_>>());
            let set = |text: &str| words(text).into_iter().collect::<HashSet<String>>();
            let own = set(&asked);
            let near = measured.iter().map(|other| set(other)).any(|other| {
                own.intersection(&other).count() as f64 >= NEAR * own.union(&other).count() as f64
            });
            prop_assert_eq!(guard.knows(&asked), near);
        }
    }

    #[test]
    fn subjects_and_triples_are_held() {
        let guard = guard();
        let triple = |subject: &str, relation: &str| [subject.into(), relation.into(), "x".into()];
        assert!(guard.holds(&triple("Low Tide", "director")) && !guard.holds(&triple("Low Tide", "composer")));
        assert!(guard.holds(&triple("ann lee", "place of birth")));
        assert!(guard.is_about("Ann Lee (actress)") && !guard.is_about("Low Tide"));
    }
}
