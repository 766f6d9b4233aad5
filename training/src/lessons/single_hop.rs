//! Single-hop questions made from triples and from facts in articles.

use std::collections::{HashMap, HashSet};

use rand::Rng;
use rand::seq::IndexedRandom;

use super::contamination::ContaminationFilter;
use super::corpus::PassageCorpus;
use super::lesson::{Conclusion, Lesson};
use super::multi_hop::hop;
use super::relation::relation;
use super::rows::{CorpusPassage, ExtractedTriples, SourceQuestion};
use super::text::{bare_title, find_words, normalized};
use super::wikipedia::families;
use super::wikipedia::people;
use super::wikipedia::works;

/// Maximum length of a subject or object, in words.
const LONGEST: usize = 7;

/// Fact that a question can be made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFact {
    /// Subject of the fact.
    pub subject: String,
    /// Name of the relation.
    pub relation: &'static str,
    /// Accepted objects. A question asks for the first one.
    pub objects: Vec<String>,
    /// Passage that states the fact.
    pub source: CorpusPassage,
}

/// Facts from articles about people, their families, films and songs, in the order of the corpus.
pub fn articles(corpus: &PassageCorpus) -> Vec<KnownFact> {
    let of = |document: &CorpusPassage| {
        let known = |fact: people::ArticleFact| KnownFact {
            subject: bare_title(&document.title).to_owned(),
            relation: fact.relation,
            objects: fact.objects,
            source: document.clone(),
        };
        let person = people::facts(document);
        // An article about a person is never about a work.
        let others = if person.is_empty() { works::facts(document) } else { families::facts(document) };
        person.into_iter().chain(others).map(known).collect::<Vec<_>>()
    };
    corpus.documents().iter().flat_map(of).collect()
}

/// Keeps facts whose subject has a single value for the relation: a question about any other has no unique answer.
pub fn unequivocal(mut known: Vec<KnownFact>) -> Vec<KnownFact> {
    let key = |one: &KnownFact| (normalized(&one.subject), one.relation);
    let mut values: HashMap<_, HashSet<String>> = HashMap::new();
    for one in &known {
        let object = one.objects.first().map(|object| normalized(object)).unwrap_or_default();
        values.entry(key(one)).or_default().insert(object);
    }
    let mut taken = HashSet::new();
    // Articles, gold triples and extracted triples repeat each other's facts.
    known.retain(|one| values.get(&key(one)).is_some_and(|objects| objects.len() == 1) && taken.insert(key(one)));
    known
}

/// Facts from extracted triples, in their order, if the passage is about their subject.
pub fn extracted(all: &[ExtractedTriples], corpus: &PassageCorpus) -> Vec<KnownFact> {
    let of = |row: &ExtractedTriples| {
        let Some(source) = corpus.get(&row.id) else { return Vec::new() };
        let known = |triple: &Vec<String>| match &triple[..] {
            [subject, name, object] => known_fact(subject, name, object, source),
            _ => None,
        };
        row.triples.iter().filter_map(known).collect()
    };
    all.iter().flat_map(of).collect()
}

/// Facts from the gold triples of these questions.
pub fn evidences(questions: &[SourceQuestion], corpus: &PassageCorpus) -> Vec<KnownFact> {
    let of = |question: &SourceQuestion| {
        let sources = corpus.all(&question.supporting);
        let known = |[subject, name, object]: &[String; 3]| {
            sources.iter().find_map(|source| known_fact(subject, name, object, source))
        };
        question.evidences.iter().filter_map(known).collect::<Vec<_>>()
    };
    questions.iter().flat_map(of).collect()
}

/// Turns a triple into a fact, if the passage is about its subject and contains its object.
fn known_fact(subject: &str, name: &str, object: &str, source: &CorpusPassage) -> Option<KnownFact> {
    let relation = relation(name)?;
    let short = |text: &str| (1..=LONGEST).contains(&text.split_whitespace().count());
    let about = find_words(&source.title, bare_title(subject)).is_some();
    // A question about a subject that contains the object would give the answer away.
    let said = find_words(&source.text, object).is_some() && find_words(subject, object).is_none();
    (about && said && short(subject) && short(object) && relation.admits(object)).then(|| KnownFact {
        subject: bare_title(subject).to_owned(),
        relation: relation.name,
        objects: vec![object.to_owned()],
        source: source.clone(),
    })
}

/// Makes the lesson for a fact. `None` if the filter excludes it.
pub fn ask(known: &KnownFact, contamination: &ContaminationFilter, id: String, rng: &mut impl Rng) -> Option<Lesson> {
    let relation = relation(known.relation)?;
    let question = relation.asks.choose(rng)?.replace("{}", &known.subject);
    let object = known.objects.first()?;
    let triple = [known.subject.clone(), relation.name.to_owned(), object.clone()];
    // None of the phrasings may be a measured question, not just the chosen one.
    let asks = relation.asks.iter().any(|ask| contamination.has_question(&ask.replace("{}", &known.subject)));
    if contamination.is_about(&known.subject) || contamination.has_triple(&triple) || asks {
        return None;
    }
    Some(Lesson {
        question_id: id,
        question,
        kind: Some(relation.name.to_owned()),
        golds: known.objects.clone(),
        supporting: vec![known.source.id.clone()],
        partly: false,
        hops: vec![hop(relation, &known.subject, object, vec![known.source.clone()])],
        conclusion: Conclusion::Last,
    })
}
