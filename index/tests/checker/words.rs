//! Weights of passages by similarity, words and titles in the variant `waymark`, with BM25 written out.

use std::collections::{BTreeMap, HashMap};

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer,
};
use unicode_normalization::UnicodeNormalization;
use waymark_index::{Document, Index};

use super::names::{names, normal};
use super::numbers::dot;
use super::{Seen, hold};

/// Number of the best passages by words that get a weight by them.
const BEST: usize = 200;

/// Computes the weight of each passage in the reset vector: two parts similarity and one part BM25 of `weight`, 0.5 for
/// titles that the question names, and 0.2 for titles to which their facts lead.
pub fn own(seen: &Seen<'_>, weight: f64) -> Result<Vec<f64>, String> {
    let documents = seen.index.documents(None, usize::MAX).unwrap().unwrap();
    hold!(documents.len() == seen.passages, "{} documents and {} passages", documents.len(), seen.passages);
    let numbers: Vec<usize> = documents.iter().map(|document| number(seen.index, document)).collect();
    let question = seen.query.text.trim();
    let scores = bm25(&documents, question);
    let mut found: Vec<usize> = (0..documents.len()).filter(|&place| scores[place] > 0.0).collect();
    found.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(numbers[a].cmp(&numbers[b])));
    found.truncate(BEST);
    let mut own: Vec<f64> = seen.scaled.iter().map(|scaled| weight * scaled * 2.0 / 3.0).collect();
    let mut titles: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for &place in &found {
        own[numbers[place]] += weight * scores[place] / scores[found[0]] / 3.0;
        for form in forms(&documents[place].title) {
            titles.entry(form).or_default().push(numbers[place]);
        }
    }
    let mut named: Vec<&Vec<usize>> = Vec::new();
    for name in names(question, |name| titles.contains_key(name)) {
        // A title with a note has two names, which count once.
        if !named.contains(&&titles[&name]) {
            named.push(&titles[&name]);
        }
    }
    for passages in named {
        passages.iter().for_each(|&number| own[number] += 0.5 / passages.len() as f64);
    }
    for passages in related(seen, &documents, &numbers) {
        passages.iter().for_each(|&number| own[number] += 0.2 / passages.len() as f64);
    }
    Ok(own)
}

/// Passages to whose titles facts about named phrases lead, one fact per phrase: the most similar of those that lead to
/// a title, among the sixteen most similar ones.
fn related(seen: &Seen<'_>, documents: &[Document], numbers: &[usize]) -> Vec<Vec<usize>> {
    let graph = seen.index.graph().unwrap();
    let naming = |phrase: u32| graph.passages_of(phrase);
    let named = names(seen.query.text.trim(), |name| graph.phrase_id(name).is_some());
    let named: Vec<u32> = named.iter().filter_map(|name| graph.phrase_id(name)).collect();
    let titled = |phrase: u32| -> Vec<usize> {
        let places = (0..documents.len()).filter(|&place| naming(phrase).contains(&(numbers[place] as u32)));
        let titled = places.filter(|&place| forms(&documents[place].title).iter().any(|f| f == graph.phrase(phrase)));
        if naming(phrase).len() > 64 { Vec::new() } else { titled.map(|place| numbers[place]).collect() }
    };
    let mut taken = named.clone();
    let mut related = Vec::new();
    for phrase in named.into_iter().filter(|phrase| naming(*phrase).len() <= 8) {
        let ends = |fact: u32| [graph.fact(fact).subject, graph.fact(fact).object];
        let mut facts: Vec<u32> = (0..graph.facts() as u32).filter(|fact| ends(*fact).contains(&phrase)).collect();
        let similarity = |fact: u32| dot(&seen.vector, graph.fact_vector(fact));
        facts.sort_by(|&a, &b| similarity(b).total_cmp(&similarity(a)).then_with(|| graph.fact_order(a, b)));
        facts.truncate(16);
        let others = facts.into_iter().map(|fact| if ends(fact)[0] == phrase { ends(fact)[1] } else { ends(fact)[0] });
        if let Some(other) = others.into_iter().find(|other| !taken.contains(other) && !titled(*other).is_empty()) {
            taken.push(other);
            related.push(titled(other));
        }
    }
    related
}

fn number(index: &Index, document: &Document) -> usize {
    index.number(&document.id).unwrap().unwrap() as usize
}

/// Normal forms of a title, with the note in parentheses at its end and without.
fn forms(title: &str) -> Vec<String> {
    let bare = title.strip_suffix(')').and_then(|title| Some(title.rsplit_once('(')?.0));
    let mut forms: Vec<String> = [Some(title), bare].into_iter().flatten().map(normal).collect();
    forms.dedup();
    forms.retain(|form| !form.is_empty());
    forms
}

/// Computes `Σ times·idf·2.2·tf / (tf + 1.2·(0.25 + 0.75·length/average))` of every document, with doubled titles.
fn bm25(documents: &[Document], question: &str) -> Vec<f64> {
    let mut terms = Vec::new();
    for Document { title, text, .. } in documents {
        terms.push([analyzed(title), analyzed(title), analyzed(text)].concat());
    }
    let average = terms.iter().map(Vec::len).sum::<usize>() as f64 / terms.len() as f64;
    let counts: Vec<HashMap<&str, f64>> = terms.iter().map(|terms| counted(terms)).collect();
    let mut scores = vec![0.0; documents.len()];
    let asked = analyzed(question);
    for (term, times) in counted(&asked) {
        let holding = counts.iter().filter(|counts| counts.contains_key(term)).count() as f64;
        let idf = (1.0 + (documents.len() as f64 - holding + 0.5) / (holding + 0.5)).ln();
        for ((score, counts), terms) in scores.iter_mut().zip(&counts).zip(&terms) {
            let Some(count) = counts.get(term) else { continue };
            let norm = 1.2 * (0.25 + 0.75 * stored_length(terms.len()) / average);
            *score += times * idf * 2.2 * count / (count + norm);
        }
    }
    scores
}

fn counted(terms: &[String]) -> HashMap<&str, f64> {
    let mut counts = HashMap::new();
    terms.iter().for_each(|term| *counts.entry(term.as_str()).or_default() += 1.0);
    counts
}

/// Splits a text into terms.
fn analyzed(text: &str) -> Vec<String> {
    let words = TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(80));
    let words = words.filter(AsciiFoldingFilter).filter(LowerCaser);
    let mut analyzer = words.filter(Stemmer::new(Language::English)).build();
    let mut terms = Vec::new();
    let composed: String = text.nfc().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).collect();
    analyzer.token_stream(&spaced(&composed)).process(&mut |token| terms.push(token.text.clone()));
    terms
}

/// Words of a text with spaces between them. Letters of scripts without spaces become overlapping pairs.
fn spaced(text: &str) -> String {
    let letters: Vec<char> = text.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
    let kind = |c: char| (c == ' ', is_unspaced(c));
    let mut parts: Vec<String> = Vec::new();
    for run in letters.chunk_by(|a, b| kind(*a) == kind(*b)) {
        match run.len() {
            2.. if is_unspaced(run[0]) => parts.extend(run.windows(2).map(|pair| pair.iter().collect::<String>())),
            _ => parts.push(run.iter().collect()),
        }
    }
    parts.join(" ")
}

/// Returns `true` for letters of Thai, Lao, Burmese, Khmer, Chinese, Japanese and Korean.
fn is_unspaced(c: char) -> bool {
    let ranges = [(0x0e00, 0x0eff), (0x1000, 0x109f), (0x1100, 0x11ff), (0x1780, 0x17ff), (0x3005, 0x9fff)];
    let further = [(0xac00, 0xd7af), (0xf900, 0xfaff), (0xff66, 0xff9f), (0x2_0000, 0x3_ffff)];
    ranges.into_iter().chain(further).any(|(first, last)| (first..=last).contains(&u32::from(c)))
}

/// Length of a document as tantivy stores it in one byte: exact below 40, else with four significant bits beyond 24.
fn stored_length(length: usize) -> f64 {
    let Some(beyond) = length.checked_sub(24).filter(|beyond| *beyond >= 16) else { return length as f64 };
    let lost = beyond.ilog2() - 3;
    (24 + (beyond >> lost << lost)) as f64
}
