//! Consistency of the demo corpus: IDs, lengths, references, answers and links between passages.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

const MIN_WORDS: usize = 40;
const MAX_WORDS: usize = 80;

fn lines(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .enumerate()
        .map(|(n, line)| serde_json::from_str(line).unwrap_or_else(|e| panic!("{name}:{}: {e}", n + 1)))
        .collect()
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no string {key:?} in {value}"))
}

fn strings<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    let list = value[key].as_array().unwrap_or_else(|| panic!("no list {key:?} in {value}"));
    list.iter().map(|item| item.as_str().unwrap_or_else(|| panic!("{item} in {key:?} is no string"))).collect()
}

/// Returns `true` if `text` contains `needle` as whole words.
fn mentions(text: &str, needle: &str) -> bool {
    text.match_indices(needle).any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

/// Returns title and text of every passage by its ID. Panics on a duplicate ID.
fn passages(corpus: &[Value]) -> BTreeMap<&str, (&str, &str)> {
    let mut out = BTreeMap::new();
    for line in corpus {
        let id = string(line, "id");
        assert!(out.insert(id, (string(line, "title"), string(line, "text"))).is_none(), "the id {id} occurs twice");
    }
    out
}

#[test]
fn passages_are_whole_and_unique() {
    let corpus = lines("corpus.jsonl");
    let passages = passages(&corpus);
    assert!(passages.len() >= 250, "only {} passages", passages.len());

    let mut titles = BTreeSet::new();
    for line in &corpus {
        let id = string(line, "id");
        let title = string(line, "title");
        let text = string(line, "text");
        assert!(
            !id.is_empty() && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "id {id}"
        );
        assert!(!title.is_empty() && titles.insert(title), "the title {title:?} is empty or occurs twice");
        assert!(!string(&line["metadata"], "topic").is_empty(), "{id} has no topic");
        let words = text.split_whitespace().count();
        assert!((MIN_WORDS..=MAX_WORDS).contains(&words), "{id} has {words} words");
        assert_eq!(text, text.trim(), "{id} has blanks around its text");
    }
}

#[test]
fn most_passages_are_linked() {
    let corpus = lines("corpus.jsonl");
    let passages = passages(&corpus);
    let mut linked = BTreeSet::new();
    for (from, (_, text)) in &passages {
        for (to, (title, _)) in &passages {
            if from != to && mentions(text, title) {
                linked.insert(*from);
                linked.insert(*to);
            }
        }
    }
    let alone: Vec<_> = passages.keys().filter(|id| !linked.contains(*id)).collect();
    assert!(linked.len() * 5 >= passages.len() * 4, "{} of {} are not linked: {alone:?}", alone.len(), passages.len());
}

#[test]
fn triples_belong_to_passages() {
    let corpus = lines("corpus.jsonl");
    let passages = passages(&corpus);
    let mut seen = BTreeSet::new();
    for line in lines("triples.jsonl") {
        let id = string(&line, "id").to_owned();
        let (title, text) = *passages.get(id.as_str()).unwrap_or_else(|| panic!("no passage {id}"));
        let entities = strings(&line, "entities");
        let triples = line["triples"].as_array().unwrap();
        assert!((2..=5).contains(&triples.len()), "{id} has {} triples", triples.len());
        for triple in triples {
            let parts: Vec<&str> = triple.as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
            let [subject, relation, object] = parts[..] else { panic!("{id}: {triple} is no triple") };
            assert!(!relation.trim().is_empty(), "{id}: {triple} has no relation");
            for end in [subject, object] {
                assert!(entities.contains(&end), "{id}: {end:?} is not among the entities");
                assert!(end == title || text.contains(end), "{id}: {end:?} is not in the passage");
            }
        }
        assert!(seen.insert(id.clone()), "{id} has two lines of triples");
    }
    assert_eq!(seen.len(), passages.len(), "passages without triples");
}

#[test]
fn questions_are_answered_by_their_passages() {
    let corpus = lines("corpus.jsonl");
    let passages = passages(&corpus);
    let questions = lines("questions.jsonl");
    assert!(questions.len() >= 45, "only {} questions", questions.len());

    let mut ids = BTreeSet::new();
    let mut hops_seen = BTreeSet::new();
    for line in &questions {
        let id = string(line, "id");
        let question = string(line, "question");
        assert!(ids.insert(id), "the id {id} occurs twice");
        assert!(question.ends_with('?'), "{id} does not end with a question mark");

        let supporting = strings(line, "supporting");
        let hops = usize::try_from(line["hops"].as_u64().unwrap()).unwrap();
        assert_eq!(hops, supporting.len(), "{id}: hops and supporting passages");
        assert!((1..=3).contains(&hops), "{id} has {hops} hops");
        hops_seen.insert(hops);

        let first = *strings(line, "answers").first().unwrap_or_else(|| panic!("{id} has no answer"));
        let found = supporting.iter().any(|passage| {
            let (title, text) = passages.get(passage).unwrap_or_else(|| panic!("{id}: no passage {passage}"));
            mentions(title, first) || mentions(text, first)
        });
        assert!(found, "{id}: {first:?} stands in no supporting passage");
    }
    assert_eq!(hops_seen.len(), 3, "one, two and three hops are all there");
    assert!(questions.iter().any(|line| line["question"] == "Who painted the Mona Lisa?"));
}
