//! Keeps what is measured out of what is learnt.

use std::collections::{HashMap, HashSet};

use super::lesson::{Hop, Lesson};
use super::question::{Question, Triple};
use super::relation::{Relation, relation};
use super::text::{bare, plain, words};

/// What must not be learnt: the questions, subjects and gold triples of files that are measured, and the smaller questions
/// that theirs are made of.
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
    /// The same as hops put it.
    needs: HashSet<String>,
}

/// Questions that share so much of their words are nearly equal (Jaccard index).
const NEAR: f64 = 0.8;

impl Guard {
    /// Keeps these questions out.
    pub fn add(&mut self, measured: &[Question]) {
        for question in measured {
            self.ask(&question.question);
            if let Some([subject, ..]) = &question.triple {
                self.subjects.extend([plain(subject), plain(bare(subject))]);
            }
            for [subject, name, _] in question.evidences.iter().chain(&question.triple) {
                self.tell(subject, name);
            }
            for (text, _) in question.parts() {
                match text.split_once(">>") {
                    Some((subject, name)) => self.tell(subject.trim(), name),
                    None => self.ask(&text),
                }
            }
        }
    }

    /// Keeps a question out.
    fn ask(&mut self, question: &str) {
        self.questions.insert(plain(question));
        let set: HashSet<String> = words(question).into_iter().collect();
        for word in &set {
            self.by_word.entry(word.clone()).or_default().push(self.sets.len());
        }
        self.sets.push(set);
    }

    /// Keeps what is said of a subject in a relation out.
    fn tell(&mut self, subject: &str, name: &str) {
        self.pairs.insert(pair(subject, name));
        for subject in [subject, bare(subject)] {
            self.needs.insert(match relation(name) {
                Some(Relation { need, .. }) => plain(&need.replace("{}", subject)),
                None => plain(&format!("the {name} of {subject}")),
            });
        }
    }

    /// Whether a question is a measured one, or nearly.
    pub fn knows(&self, question: &str) -> bool {
        self.questions.contains(&plain(question)) || self.near(question)
    }

    /// Whether a triple, or one of the same subject and relation, is a measured one.
    pub fn holds(&self, [subject, name, _]: &Triple) -> bool {
        self.pairs.contains(&pair(subject, name))
    }

    /// Whether a lesson is a measured question, or a step of it is one, part of one, or about the subject of one.
    pub fn takes(&self, lesson: &Lesson) -> bool {
        self.knows(&lesson.question) || lesson.hops.iter().any(|hop| self.takes_hop(hop))
    }

    fn takes_hop(&self, hop: &Hop) -> bool {
        let need = |subject: &str| self.needs.contains(&plain(&hop.need.replace(&hop.subject, subject)));
        // A hop that is put as a question has it in the place of the subject.
        let asked = hop.is_question() && (self.knows(&hop.subject) || self.mentions(&hop.subject));
        let known = |query: &str| self.questions.contains(query) || self.needs.contains(query);
        let queries = || hop.queries.iter().any(|query| known(&plain(query)));
        asked || self.is_about(&hop.subject) || need(&hop.subject) || need(bare(&hop.subject)) || queries()
    }

    /// Whether a measured single-hop question is about this subject.
    pub fn is_about(&self, subject: &str) -> bool {
        self.subjects.contains(&plain(bare(subject))) || self.subjects.contains(&plain(subject))
    }

    /// Whether the subject of a measured single-hop question stands in a text, its words one after the other.
    fn mentions(&self, text: &str) -> bool {
        let words = words(text);
        let run = |from: usize, to: usize| self.subjects.contains(&words[from..=to].join(" "));
        (0..words.len()).any(|from| (from..words.len()).any(|to| run(from, to)))
    }

    /// Whether a measured question holds all words of a name.
    pub fn names(&self, name: &str) -> bool {
        let words = words(name);
        let rarest =
            words.iter().map(|word| self.by_word.get(word).map_or(&[][..], Vec::as_slice)).min_by_key(|at| at.len());
        rarest.is_some_and(|at| at.iter().any(|&at| words.iter().all(|word| self.sets[at].contains(word))))
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

/// A subject and a relation as they are compared.
fn pair(subject: &str, name: &str) -> (String, String) {
    let name = relation(name).map_or(name.trim(), |known| known.name);
    (plain(bare(subject)), name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::chain::from_parts;
    use crate::data::corpus::Corpus;
    use crate::data::question::{Document, Part};

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

    fn parts(question: &str, parts: &[(&str, &str)]) -> Question {
        let part = |(question, answer): &(&str, &str)| Part { question: (*question).into(), answer: (*answer).into() };
        Question {
            question: question.into(),
            answers: parts.last().map(|part| part.1.to_owned()).into_iter().collect(),
            decomposition: parts.iter().map(part).collect(),
            ..Question::default()
        }
    }

    #[test]
    fn no_hop_of_a_measured_decomposition_is_taken() {
        let mut guard = Guard::default();
        let measured = [("Hill Street >> performer", "Ann Lee"), ("#1 >> place of birth", "Leeds")];
        guard.add(&[parts("Where was the performer of Hill Street born?", &measured)]);
        guard.add(&[parts(
            "How many bridges has the town of the mill?",
            &[("Old Mill >> townland", "Ely"), ("How many bridges are there in #1 ?", "three")],
        )]);
        let corpus = Corpus::new(Vec::<Document>::new());
        let takes = |hops: &[(&str, &str)]| {
            let asked = parts("What might this be about, after all is said?", hops);
            from_parts(&asked, &corpus).map(|lesson| guard.takes(&lesson))
        };
        // The second hop of the first one, by its answer and in other words.
        assert_eq!(takes(&[("High Tide >> director", "Ann Lee"), ("#1 >> born in", "Leeds")]), Ok(true));
        assert_eq!(takes(&[("Hill Street (song) >> performer", "Ann Lee")]), Ok(true));
        assert_eq!(takes(&[("How many bridges are in Ely?", "three")]), Ok(true));
        assert_eq!(takes(&[("Old Mill >> townland", "Ely")]), Ok(true));
        // What is measured of one relation does not take the others.
        assert_eq!(takes(&[("High Tide >> director", "Ann Lee"), ("#1 >> spouse", "Bob Ray")]), Ok(false));
        assert_eq!(takes(&[("How many people live in Ely?", "three")]), Ok(false));
        let single = |relation: &str| guard.holds(&["Ann Lee".into(), relation.into(), "x".into()]);
        assert!(single("was born in") && !single("occupation"));
    }

    #[test]
    fn no_hop_is_about_the_subject_of_a_measured_question() {
        let corpus = Corpus::new(Vec::<Document>::new());
        let asked = parts("Who is it then?", &[("High Tide >> director", "Ann Lee"), ("#1 >> spouse", "Bob Ray")]);
        let lesson = from_parts(&asked, &corpus);
        assert_eq!(lesson.as_ref().map(|lesson| guard().takes(lesson)), Ok(true), "Ann Lee's birthplace is measured");
        assert_eq!(lesson.map(|lesson| Guard::default().takes(&lesson)), Ok(false));
    }

    #[test]
    fn no_question_of_a_hop_names_the_subject_of_a_measured_one() {
        let corpus = Corpus::new(Vec::<Document>::new());
        let takes = |hop: &str| {
            let asked = parts("Where is it then, after all?", &[(hop, "York")]);
            from_parts(&asked, &corpus).map(|lesson| guard().takes(&lesson))
        };
        assert_eq!(takes("Which school did ann Lee go to?"), Ok(true));
        assert_eq!(takes("Ann Lee >> sport"), Ok(true));
        assert_eq!(takes("Ann Lee (actress) >> sport"), Ok(true));
        // One after the other, and whole.
        assert_eq!(takes("Which school did Ann and Lee go to?"), Ok(false));
        assert_eq!(takes("Which school did Joann Lee go to?"), Ok(false));
        assert_eq!(takes("Bob Ray >> sport"), Ok(false));
    }
}
