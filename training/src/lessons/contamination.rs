//! Filter that keeps measured questions out of the training data.

use std::collections::{HashMap, HashSet};

use super::lesson::{Hop, Lesson};
use super::relation::{Relation, relation};
use super::rows::{GoldTriple, SourceQuestion};
use super::text::{bare_title, normalized, words};

/// Measured questions, with their subjects, gold triples and sub-questions, none of which may be trained on.
#[derive(Debug, Default)]
pub struct ContaminationFilter {
    questions: HashSet<String>,
    /// Word sets of the questions, to find questions that are nearly equal.
    word_sets: Vec<HashSet<String>>,
    sets_by_word: HashMap<String, Vec<usize>>,
    /// Subjects of single-hop questions. No training question may be about them at all.
    subjects: HashSet<String>,
    /// Subjects and relations of gold triples.
    pairs: HashSet<(String, String)>,
    /// The same pairs, phrased like the need of a hop.
    needs: HashSet<String>,
}

/// Minimum Jaccard index of the word sets of two questions that count as nearly equal.
const NEAR: f64 = 0.8;

impl ContaminationFilter {
    /// Adds measured questions.
    pub fn add(&mut self, measured: &[SourceQuestion]) {
        for question in measured {
            self.add_question(&question.question);
            // The title of a passage may have brackets that a training question leaves out.
            if let Some([subject, ..]) = &question.triple {
                self.subjects.extend([normalized(subject), normalized(bare_title(subject))]);
            }
            for [subject, name, _] in question.evidences.iter().chain(&question.triple) {
                self.add_fact(subject, name);
            }
            for (text, _) in question.parts() {
                match text.split_once(">>") {
                    Some((subject, name)) => self.add_fact(subject.trim(), name),
                    None => self.add_question(&text),
                }
            }
        }
    }

    /// Adds the text of a question.
    fn add_question(&mut self, question: &str) {
        self.questions.insert(normalized(question));
        let set: HashSet<String> = words(question).into_iter().collect();
        for word in &set {
            self.sets_by_word.entry(word.clone()).or_default().push(self.word_sets.len());
        }
        self.word_sets.push(set);
    }

    /// Adds a subject and relation.
    fn add_fact(&mut self, subject: &str, name: &str) {
        self.pairs.insert(pair(subject, name));
        // Hops name their subject with or without the parenthesis of its title.
        for subject in [subject, bare_title(subject)] {
            self.needs.insert(match relation(name) {
                Some(Relation { need, .. }) => normalized(&need.replace("{}", subject)),
                None => normalized(&format!("the {name} of {subject}")),
            });
        }
    }

    /// Returns `true` if a question equals a measured one, or nearly does.
    pub fn has_question(&self, question: &str) -> bool {
        self.questions.contains(&normalized(question)) || self.near(question)
    }

    /// Returns `true` if a measured triple has the same subject and relation.
    pub fn has_triple(&self, [subject, name, _]: &GoldTriple) -> bool {
        self.pairs.contains(&pair(subject, name))
    }

    /// Returns `true` if a lesson equals a measured question, or if one of its hops equals one, is a part of one, or
    /// concerns the subject of one.
    pub fn excludes(&self, lesson: &Lesson) -> bool {
        self.has_question(&lesson.question) || lesson.hops.iter().any(|hop| self.excludes_hop(hop))
    }

    fn excludes_hop(&self, hop: &Hop) -> bool {
        let need = |subject: &str| self.needs.contains(&normalized(&hop.need.replace(&hop.subject, subject)));
        // A hop that is stated as a question holds the question in place of its subject.
        let asked = hop.is_question() && (self.has_question(&hop.subject) || self.mentions(&hop.subject));
        let known = |query: &str| self.questions.contains(query) || self.needs.contains(query);
        let queries = || hop.queries.iter().any(|query| known(&normalized(query)));
        asked || self.is_about(&hop.subject) || need(&hop.subject) || need(bare_title(&hop.subject)) || queries()
    }

    /// Returns `true` if a measured single-hop question has this subject.
    pub fn is_about(&self, subject: &str) -> bool {
        self.subjects.contains(&normalized(bare_title(subject))) || self.subjects.contains(&normalized(subject))
    }

    /// Returns `true` if a text contains the subject of a measured single-hop question as consecutive words.
    fn mentions(&self, text: &str) -> bool {
        let words = words(text);
        let run = |from: usize, to: usize| self.subjects.contains(&words[from..=to].join(" "));
        (0..words.len()).any(|from| (from..words.len()).any(|to| run(from, to)))
    }

    /// Returns `true` if a measured question contains all words of a name.
    pub fn names_entity(&self, name: &str) -> bool {
        let words = words(name);
        let rarest = words
            .iter()
            .map(|word| self.sets_by_word.get(word).map_or(&[][..], Vec::as_slice))
            .min_by_key(|at| at.len());
        rarest.is_some_and(|at| at.iter().any(|&at| words.iter().all(|word| self.word_sets[at].contains(word))))
    }

    fn near(&self, question: &str) -> bool {
        let own: HashSet<String> = words(question).into_iter().collect();
        let count = |word: &str| self.sets_by_word.get(word).map_or(0, Vec::len);
        let mut rarest: Vec<&String> = own.iter().collect();
        rarest.sort_by_key(|word| (count(word), *word));
        // Near sets share all but a fifth of these words, hence at least one of this many rarest words.
        let spared = own.len() - (NEAR * own.len() as f64).ceil() as usize;
        let candidates = rarest.iter().take(spared + 1).filter_map(|word| self.sets_by_word.get(*word)).flatten();
        let near = |at: &usize| {
            let both = self.word_sets[*at].intersection(&own).count();
            both as f64 >= NEAR * (own.len() + self.word_sets[*at].len() - both) as f64
        };
        candidates.into_iter().any(near)
    }
}

/// Normalized subject and relation, for comparison.
fn pair(subject: &str, name: &str) -> (String, String) {
    let name = relation(name).map_or(name.trim(), |known| known.name);
    (normalized(bare_title(subject)), name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lessons::corpus::PassageCorpus;
    use crate::lessons::multi_hop::from_parts;
    use crate::lessons::rows::{CorpusPassage, SubQuestion};

    fn contamination() -> ContaminationFilter {
        let mut contamination = ContaminationFilter::default();
        contamination.add(&[
            SourceQuestion {
                question: "In what city was Ann Lee born?".into(),
                triple: Some(["Ann Lee".into(), "place of birth".into(), "Leeds".into()]),
                ..SourceQuestion::default()
            },
            SourceQuestion {
                question: "Who directed the film Low Tide, that was shown in Leeds?".into(),
                evidences: vec![["Low Tide (film)".into(), "director".into(), "Ann Lee".into()]],
                ..SourceQuestion::default()
            },
        ]);
        contamination
    }

    #[test]
    fn measured_questions_are_found_despite_small_changes() {
        let contamination = contamination();
        assert!(contamination.has_question("in what city was ann lee born"));
        assert!(contamination.has_question("Who directed the film \"Low Tide\" that was shown at Leeds?"));
        assert!(!contamination.has_question("In what city was Bob Ray born?"));
        assert!(!contamination.has_question("Who directed High Tide?"));
    }

    proptest! {
        #[test]
        fn every_near_question_is_found(measured in proptest::collection::vec("[a-h]( [a-h]){0,7}", 1..6),
            asked in "[a-h]( [a-h]){0,7}")
        {
            let mut contamination = ContaminationFilter::default();
            let row = |question: &String| SourceQuestion { question: question.clone(), ..SourceQuestion::default() };
            contamination.add(&measured.iter().map(row).collect::<Vec<_>>());
            let set = |text: &str| words(text).into_iter().collect::<HashSet<String>>();
            let own = set(&asked);
            let near = measured.iter().map(|other| set(other)).any(|other| {
                own.intersection(&other).count() as f64 >= NEAR * own.union(&other).count() as f64
            });
            prop_assert_eq!(contamination.has_question(&asked), near);
        }
    }

    #[test]
    fn subjects_and_triples_are_excluded() {
        let contamination = contamination();
        let triple = |subject: &str, relation: &str| [subject.into(), relation.into(), "x".into()];
        assert!(
            contamination.has_triple(&triple("Low Tide", "director"))
                && !contamination.has_triple(&triple("Low Tide", "composer"))
        );
        assert!(contamination.has_triple(&triple("ann lee", "place of birth")));
        assert!(contamination.is_about("Ann Lee (actress)") && !contamination.is_about("Low Tide"));
    }

    fn parts(question: &str, parts: &[(&str, &str)]) -> SourceQuestion {
        let part =
            |(question, answer): &(&str, &str)| SubQuestion { question: (*question).into(), answer: (*answer).into() };
        SourceQuestion {
            question: question.into(),
            answers: parts.last().map(|part| part.1.to_owned()).into_iter().collect(),
            decomposition: parts.iter().map(part).collect(),
            ..SourceQuestion::default()
        }
    }

    #[test]
    fn hops_of_a_measured_decomposition_are_excluded() {
        let mut contamination = ContaminationFilter::default();
        let measured = [("Hill Street >> performer", "Ann Lee"), ("#1 >> place of birth", "Leeds")];
        contamination.add(&[parts("Where was the performer of Hill Street born?", &measured)]);
        contamination.add(&[parts(
            "How many bridges has the town of the mill?",
            &[("Old Mill >> townland", "Ely"), ("How many bridges are there in #1 ?", "three")],
        )]);
        let corpus = PassageCorpus::new(Vec::<CorpusPassage>::new());
        let takes = |hops: &[(&str, &str)]| {
            let asked = parts("What might this be about, after all is said?", hops);
            from_parts(&asked, &corpus).map(|lesson| contamination.excludes(&lesson))
        };
        // This is the second hop of the first measured question, given by its answer and in other words.
        assert_eq!(takes(&[("High Tide >> director", "Ann Lee"), ("#1 >> born in", "Leeds")]), Ok(true));
        assert_eq!(takes(&[("Hill Street (song) >> performer", "Ann Lee")]), Ok(true));
        assert_eq!(takes(&[("How many bridges are in Ely?", "three")]), Ok(true));
        assert_eq!(takes(&[("Old Mill >> townland", "Ely")]), Ok(true));
        // A measured relation does not exclude other relations of the same subject.
        assert_eq!(takes(&[("High Tide >> director", "Ann Lee"), ("#1 >> spouse", "Bob Ray")]), Ok(false));
        assert_eq!(takes(&[("How many people live in Ely?", "three")]), Ok(false));
        let single = |relation: &str| contamination.has_triple(&["Ann Lee".into(), relation.into(), "x".into()]);
        assert!(single("was born in") && !single("occupation"));
    }

    #[test]
    fn hops_about_a_measured_subject_are_excluded() {
        let corpus = PassageCorpus::new(Vec::<CorpusPassage>::new());
        let asked = parts("Who is it then?", &[("High Tide >> director", "Ann Lee"), ("#1 >> spouse", "Bob Ray")]);
        let lesson = from_parts(&asked, &corpus);
        assert_eq!(
            lesson.as_ref().map(|lesson| contamination().excludes(lesson)),
            Ok(true),
            "Ann Lee's birthplace is measured"
        );
        assert_eq!(lesson.map(|lesson| ContaminationFilter::default().excludes(&lesson)), Ok(false));
    }

    #[test]
    fn hop_questions_that_name_a_measured_subject_are_excluded() {
        let corpus = PassageCorpus::new(Vec::<CorpusPassage>::new());
        let takes = |hop: &str| {
            let asked = parts("Where is it then, after all?", &[(hop, "York")]);
            from_parts(&asked, &corpus).map(|lesson| contamination().excludes(&lesson))
        };
        assert_eq!(takes("Which school did ann Lee go to?"), Ok(true));
        assert_eq!(takes("Ann Lee >> sport"), Ok(true));
        assert_eq!(takes("Ann Lee (actress) >> sport"), Ok(true));
        // The words of the subject must be consecutive and complete.
        assert_eq!(takes("Which school did Ann and Lee go to?"), Ok(false));
        assert_eq!(takes("Which school did Joann Lee go to?"), Ok(false));
        assert_eq!(takes("Bob Ray >> sport"), Ok(false));
    }
}
