//! Lessons from multi-hop questions, with hops from gold triples, decompositions or passages.

use super::comparison::{self, ComparedItem};
use super::corpus::PassageCorpus;
use super::lesson::{Conclusion, FindingForm, Hop, Lesson};
use super::relation::{Relation, relation};
use super::rows::{CorpusPassage, GoldTriple, SourceQuestion};
use super::text::{bare_title, find_words, normalized, overlap, sentences};

/// Reason why no lesson can be made of a question.
pub type SkipReason = &'static str;

/// Creates a hop over a relation. Its queries name the subject and the relation, ask for the object, or consist of the
/// subject alone.
pub fn hop(relation: &Relation, subject: &str, answer: &str, sources: Vec<CorpusPassage>) -> Hop {
    let need = relation.need.replace("{}", subject);
    let mut queries = vec![format!("{subject} {}", relation.words), need.trim_start_matches("the ").to_owned()];
    queries.extend(relation.asks.last().map(|ask| ask.replace("{}", subject)));
    // Last, because the teacher tries the bare subject after all others.
    queries.push(subject.to_owned());
    let subject = subject.to_owned();
    let answer = answer.to_owned();
    Hop { need, subject, queries, answer, cues: relation.cues(), sources, finding_form: FindingForm::Value }
}

fn lesson(question: &SourceQuestion, hops: Vec<Hop>, conclusion: Conclusion) -> Lesson {
    Lesson {
        question_id: question.id.clone(),
        question: question.question.clone(),
        kind: question.kind.clone(),
        golds: question.answers.clone(),
        supporting: question.supporting.clone(),
        partly: question.supporting_complete == Some(false),
        hops,
        conclusion,
    }
}

/// Makes a lesson from gold triples (2WikiMultiHopQA): a chain of two hops, or a comparison of two entities or of the
/// ends of two chains.
///
/// # Errors
/// The reason why the question yields no lesson.
pub fn from_triples(question: &SourceQuestion, corpus: &PassageCorpus) -> Result<Lesson, SkipReason> {
    let sources = corpus.all(&question.supporting);
    let gold = question.answers.first().ok_or("no answer")?;
    let triples = &question.evidences;
    let last = |at: usize| triples.get(at).map_or("", |triple| triple[2].as_str());
    let relation_of = |triple: &GoldTriple| relation(&triple[1]).ok_or("unknown relation");
    let make_hop = |triple: &GoldTriple, subject: &str| {
        relation_of(triple).map(|relation| hop(relation, subject, &triple[2], sources.clone()))
    };
    let name_in_question =
        |triple: &GoldTriple| named(&question.question, &triple[0], &sources).ok_or("subject not in the question");
    match (question.kind.as_deref(), triples.len()) {
        (Some("comparison"), 2) => {
            let names = [name_in_question(&triples[0])?, name_in_question(&triples[1])?];
            let side = |at: usize| ComparedItem { name: &names[at], through: None, value: last(at) };
            let why = comparison::because(&question.question, [side(0), side(1)], gold);
            let hops = vec![make_hop(&triples[0], &names[0])?, make_hop(&triples[1], &names[1])?];
            Ok(lesson(question, hops, Conclusion::Because(why.ok_or("comparison does not follow")?)))
        }
        (Some("bridge_comparison"), 4) => {
            let names = [name_in_question(&triples[0])?, name_in_question(&triples[1])?];
            let side = |at: usize| ComparedItem { name: &names[at], through: Some(last(at)), value: last(at + 2) };
            let why = comparison::because(&question.question, [side(0), side(1)], gold);
            let hops = vec![
                make_hop(&triples[0], &names[0])?,
                make_hop(&triples[2], last(0))?,
                make_hop(&triples[1], &names[1])?,
                make_hop(&triples[3], last(1))?,
            ];
            Ok(lesson(question, hops, Conclusion::Because(why.ok_or("comparison does not follow")?)))
        }
        (_, 2) if normalized(last(1)) == normalized(gold) => {
            let first = name_in_question(&triples[0])?;
            Ok(lesson(
                question,
                vec![make_hop(&triples[0], &first)?, make_hop(&triples[1], last(0))?],
                Conclusion::Last,
            ))
        }
        _ => Err("unsupported form"),
    }
}

/// Text by which the question names a subject, either the title of a passage or the subject itself, in the question's
/// own spelling.
fn named(question: &str, subject: &str, sources: &[CorpusPassage]) -> Option<String> {
    let about = |source: &&CorpusPassage| normalized(bare_title(&source.title)) == normalized(bare_title(subject));
    let titles = sources.iter().filter(about).flat_map(|source| [source.title.as_str(), bare_title(&source.title)]);
    let forms = titles.chain([subject, bare_title(subject)]);
    forms.filter_map(|form| find_words(question, form)).max_by_key(ExactSizeIterator::len).map(|span| {
        let rest = &question[span.end..];
        // Matches end before a closing bracket, which belongs to a title such as "Ann (singer)".
        let end = span.end + usize::from(rest.starts_with(')') && question[span.clone()].contains('('));
        question[span.start..end].to_owned()
    })
}

/// Makes a lesson from a decomposition (MuSiQue).
///
/// # Errors
/// The reason why the question yields no lesson.
pub fn from_parts(question: &SourceQuestion, corpus: &PassageCorpus) -> Result<Lesson, SkipReason> {
    let sources = corpus.all(&question.supporting);
    let mut hops = Vec::new();
    for (text, answer) in question.parts() {
        let hop = match text.split_once(">>") {
            Some((subject, name)) => match relation(name) {
                Some(known) => hop(known, subject.trim(), answer, sources.clone()),
                None => question_hop(&format!("the {} of {}", name.trim(), subject.trim()), answer, sources.clone()),
            },
            None => question_hop(text.trim(), answer, sources.clone()),
        };
        hops.push(hop);
    }
    let last = question.decomposition.last().ok_or("unsupported form")?;
    if !question.answers.iter().any(|gold| normalized(gold) == normalized(&last.answer)) {
        return Err("unsupported form");
    }
    let mut lesson = lesson(question, hops, Conclusion::Last);
    // The first gold answer is given, and it must be the one that the last hop reads.
    lesson.golds.sort_by_key(|gold| normalized(gold) != normalized(&last.answer));
    Ok(lesson)
}

/// Creates a hop that is stated as a sub-question.
fn question_hop(text: &str, answer: &str, sources: Vec<CorpusPassage>) -> Hop {
    let text = text.replace(" ?", "?");
    let bare = text.trim_end_matches('?').to_owned();
    let need = match bare.split(' ').next().map(str::to_lowercase).as_deref() {
        Some("the") if !bare.contains(" is ") => bare.clone(),
        _ => format!("the answer to \"{bare}\""),
    };
    let queries = vec![bare.clone(), text];
    Hop {
        need,
        subject: bare,
        queries,
        answer: answer.to_owned(),
        cues: &[],
        sources,
        finding_form: FindingForm::Value,
    }
}

/// Makes a lesson from two gold passages (HotpotQA): either one names the other, which holds the answer, or the
/// question compares both.
///
/// # Errors
/// The reason why the question yields no lesson.
pub fn from_passages(question: &SourceQuestion, corpus: &PassageCorpus) -> Result<Lesson, SkipReason> {
    let sources = corpus.all(&question.supporting);
    let [a, b] = &sources[..] else { return Err("unsupported form") };
    let gold = question.answers.first().ok_or("no answer")?;
    let names = |document: &CorpusPassage| find_words(&question.question, bare_title(&document.title)).is_some();
    let titled = |gold: &str| sources.iter().any(|source| normalized(bare_title(&source.title)) == normalized(gold));
    if names(a) && names(b) && (matches!(gold.as_str(), "yes" | "no") || titled(gold)) {
        // A question that names both passages compares them; the passages themselves hold no common answer.
        let hops = [a, b].map(|document| nearest_sentence_hop(document, &question.question)).into_iter().collect();
        return Ok(lesson(question, hops, Conclusion::Because(format!("Taken together, the answer is {gold}."))));
    }
    let holds = |document: &CorpusPassage| find_words(&document.text, gold).is_some();
    let links = |from: &CorpusPassage, to: &CorpusPassage| find_words(&from.text, bare_title(&to.title)).is_some();
    let (first, last) = match (holds(a), holds(b)) {
        _ if holds(b) && links(a, b) && (names(a) || !holds(a)) => (a, b),
        _ if holds(a) && links(b, a) => (b, a),
        _ => return Err("no link between the passages"),
    };
    let title = bare_title(&last.title);
    let own = bare_title(&first.title);
    let known = names(first);
    let link = Hop {
        need: if known { format!("information about {own}") } else { "what the question describes".to_owned() },
        subject: own.to_owned(),
        queries: known.then(|| own.to_owned()).into_iter().chain([trimmed(&question.question)]).collect(),
        answer: title.to_owned(),
        cues: &[],
        sources: vec![first.clone()],
        finding_form: FindingForm::Link,
    };
    let mut queries = vec![format!("{title} {}", keywords(&question.question, last)), title.to_owned()];
    // Without keywords, the first query would be the title and a space.
    queries.retain(|query| !query.ends_with(' '));
    let end = Hop {
        need: format!("more information about {title}"),
        subject: title.to_owned(),
        queries,
        answer: gold.clone(),
        cues: &[],
        sources: vec![last.clone()],
        finding_form: FindingForm::Words,
    };
    Ok(lesson(question, vec![link, end], Conclusion::Last))
}

/// Creates a hop whose answer is the sentence of the passage that is closest to the question, up to its 18th word.
fn nearest_sentence_hop(document: &CorpusPassage, question: &str) -> Hop {
    let title = bare_title(&document.title);
    let sentences = sentences(&document.text);
    let nearest =
        // `max_by_key` takes the last of equal sentences, so the reversal prefers the earliest.
        sentences.iter().rev().max_by_key(|sentence| overlap(sentence, question)).copied().unwrap_or_default();
    Hop {
        need: format!("information about {title}"),
        subject: title.to_owned(),
        queries: vec![title.to_owned(), format!("{title} {}", keywords(question, document))],
        answer: nearest.split_whitespace().take(18).collect::<Vec<_>>().join(" "),
        cues: &[],
        sources: vec![document.clone()],
        finding_form: FindingForm::Words,
    }
}

/// Up to four words of the question that also occur in the passage but not in its title.
fn keywords(question: &str, document: &CorpusPassage) -> String {
    let title = normalized(&document.title);
    let there = |word: &&str| {
        let word = normalized(word);
        word.chars().count() > 3 && !title.contains(&word) && find_words(&document.text, &word).is_some()
    };
    question
        .split_whitespace()
        .filter(there)
        .take(4)
        .map(|word| word.trim_matches([',', '?', '"']))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Question without its question mark, for use as a query.
fn trimmed(question: &str) -> String {
    question.trim().trim_end_matches('?').trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_incomplete_list_of_supporting_passages_is_noted() {
        for (complete, partly) in [("null", false), ("true", false), ("false", true)] {
            let row =
                format!(r#"{{"id": "1", "question": "Who?", "answers": ["x"], "supporting_complete": {complete}}}"#);
            let question: SourceQuestion = serde_json::from_str(&row).unwrap();
            assert_eq!(lesson(&question, Vec::new(), Conclusion::Last).partly, partly, "{row}");
        }
    }
}
