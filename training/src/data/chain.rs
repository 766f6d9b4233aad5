//! Lessons from questions of several hops, whose way is known from gold triples, decompositions or passages.

use super::compare::{self, Side};
use super::corpus::Corpus;
use super::lesson::{Close, Hop, Lesson, Tells};
use super::question::{Document, Question, Triple};
use super::relation::{Relation, relation};
use super::text::{bare, find, overlap, plain, sentences};

/// Why no lesson can be made of a question.
pub type Refusal = &'static str;

/// A hop over a relation. The queries name subject and relation, or ask for it.
pub fn hop(relation: &Relation, subject: &str, answer: &str, sources: Vec<Document>) -> Hop {
    let need = relation.need.replace("{}", subject);
    let mut queries = vec![format!("{subject} {}", relation.words), need.trim_start_matches("the ").to_owned()];
    queries.extend(relation.asks.last().map(|ask| ask.replace("{}", subject)));
    queries.push(subject.to_owned());
    let (subject, answer) = (subject.to_owned(), answer.to_owned());
    Hop { need, subject, queries, answer, cues: relation.cues(), sources, tells: Tells::Value }
}

fn lesson(question: &Question, hops: Vec<Hop>, close: Close) -> Lesson {
    Lesson {
        question_id: question.id.clone(),
        question: question.question.clone(),
        golds: question.answers.clone(),
        supporting: question.supporting.clone(),
        hops,
        close,
    }
}

/// A lesson from gold triples (2WikiMultiHopQA): a chain, or a comparison of two things or of what two chains lead to.
///
/// # Errors
/// Why there is none.
pub fn from_triples(question: &Question, corpus: &Corpus) -> Result<Lesson, Refusal> {
    let sources = corpus.all(&question.supporting);
    let gold = question.answers.first().ok_or("no answer")?;
    let triples = &question.evidences;
    let last = |at: usize| triples.get(at).map_or("", |triple| triple[2].as_str());
    let known = |triple: &Triple| relation(&triple[1]).ok_or("unknown relation");
    let make =
        |triple: &Triple, subject: &str| known(triple).map(|known| hop(known, subject, &triple[2], sources.clone()));
    let asked = |triple: &Triple| named(&question.question, &triple[0], &sources).ok_or("subject not in the question");
    match (question.kind.as_deref(), triples.len()) {
        (Some("comparison"), 2) => {
            let names = [asked(&triples[0])?, asked(&triples[1])?];
            let side = |at: usize| Side { name: &names[at], through: None, value: last(at) };
            let why = compare::because(&question.question, [side(0), side(1)], gold);
            let hops = vec![make(&triples[0], &names[0])?, make(&triples[1], &names[1])?];
            Ok(lesson(question, hops, Close::Because(why.ok_or("comparison does not follow")?)))
        }
        (Some("bridge_comparison"), 4) => {
            let names = [asked(&triples[0])?, asked(&triples[1])?];
            let side = |at: usize| Side { name: &names[at], through: Some(last(at)), value: last(at + 2) };
            let why = compare::because(&question.question, [side(0), side(1)], gold);
            let hops = vec![
                make(&triples[0], &names[0])?,
                make(&triples[2], last(0))?,
                make(&triples[1], &names[1])?,
                make(&triples[3], last(1))?,
            ];
            Ok(lesson(question, hops, Close::Because(why.ok_or("comparison does not follow")?)))
        }
        (_, 2) if plain(last(1)) == plain(gold) => {
            let first = asked(&triples[0])?;
            Ok(lesson(question, vec![make(&triples[0], &first)?, make(&triples[1], last(0))?], Close::Last))
        }
        _ => Err("form not taught"),
    }
}

/// How the question names a subject: by the title of a passage, or by the subject itself, in the question's own
/// spelling.
fn named(question: &str, subject: &str, sources: &[Document]) -> Option<String> {
    let about = |source: &&Document| plain(bare(&source.title)) == plain(bare(subject));
    let titles = sources.iter().filter(about).flat_map(|source| [source.title.as_str(), bare(&source.title)]);
    let forms = titles.chain([subject, bare(subject)]);
    forms.filter_map(|form| find(question, form)).max_by_key(ExactSizeIterator::len).map(|span| {
        let rest = &question[span.end..];
        let end = span.end + usize::from(rest.starts_with(')') && question[span.clone()].contains('('));
        question[span.start..end].to_owned()
    })
}

/// A lesson from a decomposition (MuSiQue).
///
/// # Errors
/// Why there is none.
pub fn from_parts(question: &Question, corpus: &Corpus) -> Result<Lesson, Refusal> {
    let sources = corpus.all(&question.supporting);
    let mut hops = Vec::new();
    for (text, answer) in question.parts() {
        let hop = match text.split_once(">>") {
            Some((subject, name)) => match relation(name) {
                Some(known) => hop(known, subject.trim(), answer, sources.clone()),
                None => asked(&format!("the {} of {}", name.trim(), subject.trim()), answer, sources.clone()),
            },
            None => asked(text.trim(), answer, sources.clone()),
        };
        hops.push(hop);
    }
    let last = question.decomposition.last().ok_or("form not taught")?;
    if !question.answers.iter().any(|gold| plain(gold) == plain(&last.answer)) {
        return Err("form not taught");
    }
    let mut lesson = lesson(question, hops, Close::Last);
    lesson.golds.sort_by_key(|gold| plain(gold) != plain(&last.answer));
    Ok(lesson)
}

/// A hop that is put in the words of a smaller question.
fn asked(text: &str, answer: &str, sources: Vec<Document>) -> Hop {
    let text = text.replace(" ?", "?");
    let bare = text.trim_end_matches('?').to_owned();
    let need = match bare.split(' ').next().map(str::to_lowercase).as_deref() {
        Some("the") if !bare.contains(" is ") => bare.clone(),
        _ => format!("the answer to \"{bare}\""),
    };
    let queries = vec![bare.clone(), text];
    Hop { need, subject: bare, queries, answer: answer.to_owned(), cues: &[], sources, tells: Tells::Value }
}

/// A lesson from two gold passages alone (HotpotQA): one names the other, which holds the answer; or both are compared.
///
/// # Errors
/// Why there is none.
pub fn from_passages(question: &Question, corpus: &Corpus) -> Result<Lesson, Refusal> {
    let sources = corpus.all(&question.supporting);
    let [a, b] = &sources[..] else { return Err("form not taught") };
    let gold = question.answers.first().ok_or("no answer")?;
    let names = |document: &Document| find(&question.question, bare(&document.title)).is_some();
    let titled = |gold: &str| sources.iter().any(|source| plain(bare(&source.title)) == plain(gold));
    if names(a) && names(b) && (matches!(gold.as_str(), "yes" | "no") || titled(gold)) {
        let hops = [a, b].map(|document| words_of(document, &question.question)).into_iter().collect();
        return Ok(lesson(question, hops, Close::Because(format!("Taken together, the answer is {gold}."))));
    }
    let holds = |document: &Document| find(&document.text, gold).is_some();
    let links = |from: &Document, to: &Document| find(&from.text, bare(&to.title)).is_some();
    let (first, last) = match (holds(a), holds(b)) {
        _ if holds(b) && links(a, b) && (names(a) || !holds(a)) => (a, b),
        _ if holds(a) && links(b, a) => (b, a),
        _ => return Err("no way from passage to passage"),
    };
    let title = bare(&last.title);
    let own = bare(&first.title);
    let known = names(first);
    let link = Hop {
        need: if known { format!("information about {own}") } else { "what the question describes".to_owned() },
        subject: own.to_owned(),
        queries: known.then(|| own.to_owned()).into_iter().chain([trimmed(&question.question)]).collect(),
        answer: title.to_owned(),
        cues: &[],
        sources: vec![first.clone()],
        tells: Tells::Link,
    };
    let mut queries = vec![format!("{title} {}", keywords(&question.question, last)), title.to_owned()];
    queries.retain(|query| !query.ends_with(' '));
    let end = Hop {
        need: format!("more information about {title}"),
        subject: title.to_owned(),
        queries,
        answer: gold.clone(),
        cues: &[],
        sources: vec![last.clone()],
        tells: Tells::Words,
    };
    Ok(lesson(question, vec![link, end], Close::Last))
}

/// What a passage says that is nearest to a question, in its own words.
fn words_of(document: &Document, question: &str) -> Hop {
    let title = bare(&document.title);
    let sentences = sentences(&document.text);
    let nearest =
        sentences.iter().rev().max_by_key(|sentence| overlap(sentence, question)).copied().unwrap_or_default();
    Hop {
        need: format!("information about {title}"),
        subject: title.to_owned(),
        queries: vec![title.to_owned(), format!("{title} {}", keywords(question, document))],
        answer: nearest.split_whitespace().take(18).collect::<Vec<_>>().join(" "),
        cues: &[],
        sources: vec![document.clone()],
        tells: Tells::Words,
    }
}

/// Words of a question that its passage holds too, but for those of its title.
fn keywords(question: &str, document: &Document) -> String {
    let title = plain(&document.title);
    let there = |word: &&str| {
        let word = plain(word);
        word.chars().count() > 3 && !title.contains(&word) && find(&document.text, &word).is_some()
    };
    question
        .split_whitespace()
        .filter(there)
        .take(4)
        .map(|word| word.trim_matches([',', '?', '"']))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A question as a query.
fn trimmed(question: &str) -> String {
    question.trim().trim_end_matches('?').trim().to_owned()
}
