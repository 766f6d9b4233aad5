//! Single-hop questions, made of triples and of what articles say of people and works.

use std::collections::{HashMap, HashSet};

use rand::Rng;
use rand::seq::IndexedRandom;

use super::chain::hop;
use super::corpus::Corpus;
use super::guard::Guard;
use super::kin;
use super::lesson::{Close, Lesson};
use super::person;
use super::question::{Document, Extracted, Question};
use super::relation::relation;
use super::text::{bare, find, plain};
use super::work;

/// Longest subject and object, in words.
const LONGEST: usize = 7;

/// What one question can be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// What it is about.
    pub subject: String,
    /// The relation's name.
    pub relation: &'static str,
    /// What holds; the first is asked for.
    pub objects: Vec<String>,
    /// The passage that says so.
    pub source: Document,
}

/// What articles say of people, their families, films and songs, in the order of the corpus.
pub fn articles(corpus: &Corpus) -> Vec<Known> {
    let of = |document: &Document| {
        let known = |fact: person::Fact| Known {
            subject: bare(&document.title).to_owned(),
            relation: fact.relation,
            objects: fact.objects,
            source: document.clone(),
        };
        let person = person::facts(document);
        // Who acts in films is none.
        let others = if person.is_empty() { work::facts(document) } else { kin::facts(document) };
        person.into_iter().chain(others).map(known).collect::<Vec<_>>()
    };
    corpus.documents().iter().flat_map(of).collect()
}

/// What is known of things that have one value in a relation: a question about others has no one answer.
pub fn unequivocal(mut known: Vec<Known>) -> Vec<Known> {
    let key = |one: &Known| (plain(&one.subject), one.relation);
    let mut values: HashMap<_, HashSet<String>> = HashMap::new();
    for one in &known {
        let object = one.objects.first().map(|object| plain(object)).unwrap_or_default();
        values.entry(key(one)).or_default().insert(object);
    }
    let mut taken = HashSet::new();
    known.retain(|one| values.get(&key(one)).is_some_and(|objects| objects.len() == 1) && taken.insert(key(one)));
    known
}

/// What extracted triples say, in their order: those whose subject is what the passage is about.
pub fn extracted(all: &[Extracted], corpus: &Corpus) -> Vec<Known> {
    let of = |row: &Extracted| {
        let Some(source) = corpus.get(&row.id) else { return Vec::new() };
        let known = |triple: &Vec<String>| match &triple[..] {
            [subject, name, object] => told(subject, name, object, source),
            _ => None,
        };
        row.triples.iter().filter_map(known).collect()
    };
    all.iter().flat_map(of).collect()
}

/// What gold triples of these questions say.
pub fn evidences(questions: &[Question], corpus: &Corpus) -> Vec<Known> {
    let of = |question: &Question| {
        let sources = corpus.all(&question.supporting);
        let known = |[subject, name, object]: &[String; 3]| {
            sources.iter().find_map(|source| told(subject, name, object, source))
        };
        question.evidences.iter().filter_map(known).collect::<Vec<_>>()
    };
    questions.iter().flat_map(of).collect()
}

/// A triple as something to ask about, where the passage is about its subject and says it in its words.
fn told(subject: &str, name: &str, object: &str, source: &Document) -> Option<Known> {
    let relation = relation(name)?;
    let short = |text: &str| (1..=LONGEST).contains(&text.split_whitespace().count());
    let about = find(&source.title, bare(subject)).is_some();
    let said = find(&source.text, object).is_some() && find(subject, object).is_none();
    (about && said && short(subject) && short(object) && relation.admits(object)).then(|| Known {
        subject: bare(subject).to_owned(),
        relation: relation.name,
        objects: vec![object.to_owned()],
        source: source.clone(),
    })
}

/// The question about something known, unless it is kept out.
pub fn ask(known: &Known, guard: &Guard, id: String, rng: &mut impl Rng) -> Option<Lesson> {
    let relation = relation(known.relation)?;
    let question = relation.asks.choose(rng)?.replace("{}", &known.subject);
    let object = known.objects.first()?;
    let triple = [known.subject.clone(), relation.name.to_owned(), object.clone()];
    // In none of its forms may it be a measured one.
    let asks = relation.asks.iter().any(|ask| guard.knows(&ask.replace("{}", &known.subject)));
    if guard.is_about(&known.subject) || guard.holds(&triple) || asks {
        return None;
    }
    Some(Lesson {
        question_id: id,
        question,
        golds: known.objects.clone(),
        supporting: vec![known.source.id.clone()],
        hops: vec![hop(relation, &known.subject, object, vec![known.source.clone()])],
        close: Close::Last,
    })
}
