//! Example questions that the facts of an index answer.

use std::collections::{HashMap, HashSet};

use super::question_forms::{Made, filled, form};
use crate::error::IndexError;
use crate::graph::Graph;
use crate::graph::phrase::normalize;
use crate::index::Index;
use crate::store::PassageName;
use crate::triple::Triple;

/// Maximum number of passages whose triples are read, spread evenly over the index.
const SAMPLE: u32 = 1024;

/// Maximum number of facts of a passage that is read. Passages with more are skipped, because reading takes time.
const FACTS_PER_PASSAGE: usize = 512;

/// Maximum number of passages read to find a second fact about the maker of a work.
const SECOND_PASSAGES: usize = 16;

/// Number of questions with two facts after which the search ends, and maximum number of questions with one fact.
const ENOUGH: usize = 64;

/// Longest title that appears in a question, in characters.
const LONGEST_TITLE: usize = 80;

/// Question whose answer the index holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleQuestion {
    /// Question, in English.
    pub question: String,
    /// Facts that answer the question, in the order in which they follow each other: one per hop. Empty for a question
    /// made from a title.
    pub facts: Vec<QuestionFact>,
    /// Passage whose title is asked about. `None` for a question made from facts.
    pub about: Option<PassageName>,
}

/// Fact that answers a question, or leads to the fact that does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionFact {
    /// Triple, as stated.
    pub triple: Triple,
    /// Passage that states the triple.
    pub passage: PassageName,
}

/// Question with a name for its pattern.
#[derive(Debug)]
struct QuestionCandidate {
    pattern: String,
    question: ExampleQuestion,
}

impl Index {
    /// Makes at most `limit` questions, the same ones for the same snapshot. Questions that take two facts come first,
    /// then those that take one, of as many patterns as possible. Questions about titles follow if facts yield too few.
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn example_questions(&self, limit: usize) -> Result<Vec<ExampleQuestion>, IndexError> {
        let mut questions = match self.graph() {
            Some(graph) => self.questions_of_facts(graph, limit)?,
            None => Vec::new(),
        };
        let missing = limit - questions.len().min(limit);
        questions.extend(self.questions_of_titles(missing)?);
        Ok(questions)
    }

    fn questions_of_facts(&self, graph: &Graph, limit: usize) -> Result<Vec<ExampleQuestion>, IndexError> {
        let mut one_hop = Vec::new();
        let mut two_hops = Vec::new();
        for number in self.spread(SAMPLE) {
            if two_hops.len() >= ENOUGH {
                break;
            }
            for triple in readable(graph, number)? {
                let Some(made) = Made::of(&triple) else {
                    one_hop.extend(self.about_subject(number, &triple)?);
                    continue;
                };
                let fact = QuestionFact { triple: triple.clone(), passage: self.passage_name(number)? };
                two_hops.extend(self.about_maker(graph, made, &fact)?);
                let question = ExampleQuestion { question: made.question(), facts: vec![fact], about: None };
                one_hop.push(QuestionCandidate { pattern: made.noun().to_owned(), question });
            }
            one_hop.truncate(ENOUGH);
        }
        Ok(varied(two_hops).chain(varied(one_hop)).take(limit).collect())
    }

    /// Asks for the object of a triple.
    fn about_subject(&self, number: u32, triple: &Triple) -> Result<Option<QuestionCandidate>, IndexError> {
        let Some(form) = form(triple) else { return Ok(None) };
        let facts = vec![QuestionFact { triple: triple.clone(), passage: self.passage_name(number)? }];
        let question = ExampleQuestion { question: filled(form, &triple.subject), facts, about: None };
        Ok(Some(QuestionCandidate { pattern: form.to_owned(), question }))
    }

    /// Asks for something known about the maker of a work, without naming the maker.
    fn about_maker(
        &self,
        graph: &Graph,
        made: Made<'_>,
        first: &QuestionFact,
    ) -> Result<Option<QuestionCandidate>, IndexError> {
        let maker = normalize(made.maker);
        let work = normalize(made.work);
        let Some(phrase) = graph.phrase_id(&maker) else { return Ok(None) };
        for &number in graph.passages_of(phrase).iter().take(SECOND_PASSAGES) {
            for triple in readable(graph, number)? {
                // A fact that names the work again would answer a question about itself.
                if normalize(&triple.subject) != maker || normalize(&triple.object) == work {
                    continue;
                }
                let Some(form) = form(&triple) else { continue };
                let question = filled(form, &made.description());
                let second = QuestionFact { triple, passage: self.passage_name(number)? };
                let facts = vec![first.clone(), second];
                let pattern = format!("{} {form}", made.noun());
                return Ok(Some(QuestionCandidate {
                    pattern,
                    question: ExampleQuestion { question, facts, about: None },
                }));
            }
        }
        Ok(None)
    }

    /// Returns the numbers of at most `sample` passages, evenly spread.
    fn spread(&self, sample: u32) -> Vec<u32> {
        let numbers: Vec<u32> = self.snapshot.store.numbers().collect();
        let sample = numbers.len().min(sample as usize);
        (0..sample).map(|i| numbers[i * numbers.len() / sample]).collect()
    }

    fn questions_of_titles(&self, limit: usize) -> Result<Vec<ExampleQuestion>, IndexError> {
        let mut questions = Vec::new();
        let mut seen = HashSet::new();
        // Twice as many as needed, since some passages may have no title, or the same one.
        let sample = u32::try_from(limit.saturating_mul(2)).unwrap_or(u32::MAX).min(SAMPLE);
        for number in self.spread(sample) {
            if questions.len() == limit {
                break;
            }
            let about = self.passage_name(number)?;
            let title = about.title.trim();
            let usable = !title.is_empty() && title.chars().nth(LONGEST_TITLE).is_none();
            if usable && seen.insert(title.to_owned()) {
                let question = format!("What is known about {title}?");
                questions.push(ExampleQuestion { question, facts: Vec::new(), about: Some(about) });
            }
        }
        Ok(questions)
    }
}

/// Reads the triples of a passage. Returns none if there are too many to read.
fn readable(graph: &Graph, number: u32) -> Result<Vec<Triple>, IndexError> {
    if graph.facts_of(number).len() > FACTS_PER_PASSAGE {
        return Ok(Vec::new());
    }
    graph.triples(number)
}

/// Orders candidates so that different patterns alternate, and drops repeated questions.
fn varied(candidates: Vec<QuestionCandidate>) -> impl Iterator<Item = ExampleQuestion> {
    let mut asked = HashSet::new();
    let mut uses: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<(usize, ExampleQuestion)> = Vec::new();
    for QuestionCandidate { pattern, question } in candidates {
        if asked.insert(question.question.clone()) {
            let used = uses.entry(pattern).or_default();
            ranked.push((*used, question));
            *used += 1;
        }
    }
    // Stable, so that candidates of equal rank keep the order of the index.
    ranked.sort_by_key(|(used, _)| *used);
    ranked.into_iter().map(|(_, question)| question)
}
