//! Graph searches, with every number recomputed from the stored index.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod checker;
mod corpora;
#[path = "../../tests/outside/mod.rs"]
mod outside;

use std::path::Path;
use std::sync::Arc;

use checker::check;
use corpora::{HashEmbed, document, write};
use proptest::prelude::*;
use serde_json::Value;
use waymark_index::{
    BuildOptions, Document, Evidence, FactFilter, FilterError, GraphOptions, GraphTrace, GraphVariant, Index,
    IndexError, Mode, OpenOptions, Query, Ranking, Triple,
};

const WORDS: [&str; 12] =
    ["alpha", "beta", "gamma", "delta", "alpha beta", "gamma rays", "gamma ray", "city", "river", "", "1901", "alphas"];

fn triple(subject: &str, relation: &str, object: &str) -> Triple {
    Triple { subject: subject.to_owned(), relation: relation.to_owned(), object: object.to_owned() }
}

/// Questions that name phrases and titles with capitals and digits.
const QUESTIONS: [&str; 4] = [
    "near the Gamma Rays of Title1",
    "Is Alpha Beta of 1901?",
    "Title0 (part), Title0 and River",
    " gammas Alphas city ",
];

/// Passage that states triples of numbered words. Of four passages, two share a title without its note, and two have
/// one of the words as their title.
fn stating(place: usize, triples: &[(usize, usize, usize)]) -> Document {
    let triples: Vec<Triple> = triples
        .iter()
        .map(|&(s, p, o)| triple(WORDS[s % WORDS.len()], ["is", "has", "near"][p % 3], WORDS[o % WORDS.len()]))
        .collect();
    let text: Vec<String> = triples.iter().map(|t| format!("{} {} {}", t.subject, t.relation, t.object)).collect();
    let title = match place % 4 {
        0 | 1 => format!("Title{}{}", place / 4, ["", " (part)"][place % 2]),
        _ => WORDS[place % WORDS.len()].to_owned(),
    };
    let mut document = document(&format!("p{place}"), &title, &format!("{place} {}", text.join(". ")));
    document.triples = Some(triples);
    document
}

fn some() -> Vec<Document> {
    let triple = |place: usize, i: usize| (place * 5 + i * 7, place + i, place * 3 + i * 2 + 1);
    (0..30).map(|place| stating(place, &(0..place % 5).map(|i| triple(place, i)).collect::<Vec<_>>())).collect()
}

fn open(dir: &Path) -> Index {
    Index::open(dir, Arc::new(HashEmbed::default())).unwrap()
}

/// Filter that keeps the facts at these places, in this order.
#[derive(Debug, Clone)]
struct Keep(Vec<usize>);

impl FactFilter for Keep {
    fn keep(&self, _: &str, candidates: &[[&str; 3]]) -> Result<Vec<usize>, FilterError> {
        Ok(self.0.iter().map(|place| place % candidates.len()).collect())
    }
}

fn searched(index: &Index, query: &Query) -> Evidence {
    let evidence = index.search(query).unwrap();
    check(index, &HashEmbed::default(), query, &evidence).unwrap_or_else(|wrong| panic!("{wrong}: {evidence:#?}"));
    evidence
}

fn query(text: &str, mode: Mode, k: usize, graph: GraphOptions) -> Query {
    Query { graph, ..Query::new(text, mode, k).ranking(Ranking::Dense).explained() }
}

fn graph_options() -> impl Strategy<Value = GraphOptions> {
    (
        prop::sample::select(&GraphVariant::ALL[..]),
        1_usize..8,
        prop_oneof![0.1..0.9, Just(0.95)],
        prop_oneof![3 => Just(0.05), 1 => Just(0.0), 1 => 0.0..1.0],
    )
        .prop_map(|(variant, linking_top_k, damping, passage_weight)| GraphOptions {
            variant,
            linking_top_k,
            damping,
            passage_weight,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_search_of_any_graph_can_be_recomputed(
        passages in prop::collection::vec(prop::collection::vec((0_usize..12, 0_usize..3, 0_usize..12), 0..5), 1..20),
        searches in prop::collection::vec((
            prop::sample::select([&WORDS[..9], &QUESTIONS].concat()), 0_usize..3, 1_usize..25, graph_options(),
            prop::option::of(prop::collection::vec(0_usize..8, 0..5)),
        ), 6),
    ) {
        prop_assume!(passages.iter().any(|triples| !triples.is_empty()));
        let temp = tempfile::tempdir().unwrap();
        let documents = passages.iter().zip(0..).map(|(triples, place)| stating(place, triples)).collect();
        write(temp.path(), documents, &BuildOptions::default()).unwrap();
        for (text, mode, k, graph, keep) in searches {
            let mode = [Mode::Graph, Mode::Hybrid, Mode::Triples][mode];
            let index = open(temp.path());
            let index = match keep {
                Some(places) => index.with_fact_filter(Arc::new(Keep(places))),
                None => index,
            };
            let query = query(text, mode, k, graph);
            let evidence = index.search(&query).unwrap();
            let checked = check(&index, &HashEmbed::default(), &query, &evidence);
            prop_assert!(checked.is_ok(), "{checked:?}: {query:?} {evidence:#?}");
        }
    }
}

/// Changes every number, text and boolean in `value`, one at a time, and drops every list item. Calls `look` with each
/// result and the path of the change.
fn tamper(value: &Value, whole: &mut dyn FnMut(Value) -> Value, at: &str, look: &mut dyn FnMut(&str, Value)) {
    match value {
        Value::Number(number) => {
            let changed = match number.as_u64() {
                Some(whole) => Value::from(whole + 1),
                None => Value::from(number.as_f64().unwrap() * 1.01 + 1e-3),
            };
            look(at, whole(changed));
        }
        Value::String(text) => look(at, whole(Value::from(format!("{text}x")))),
        Value::Bool(truth) => look(at, whole(Value::from(!truth))),
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                let mut fewer = items.clone();
                fewer.remove(place);
                look(&format!("{at}/-{place}"), whole(Value::from(fewer)));
                let mut inner = |changed| {
                    let mut items = items.clone();
                    items[place] = changed;
                    whole(Value::from(items))
                };
                tamper(item, &mut inner, &format!("{at}/{place}"), look);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let mut inner = |changed| {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), changed);
                    whole(Value::from(fields))
                };
                tamper(field, &mut inner, &format!("{at}/{name}"), look);
            }
        }
        Value::Null => {}
    }
}

#[test]
fn evidence_that_was_tampered_with_is_found_out() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), some(), &BuildOptions::default()).unwrap();
    let text = "gamma rays near the River of Title1 in 1901";
    for (variant, mode, keep) in [
        (GraphVariant::RouteRag, Mode::Graph, None),
        (GraphVariant::RouteRag, Mode::Hybrid, None),
        (GraphVariant::RouteRag, Mode::Triples, Some(vec![2, 0])),
        (GraphVariant::RouteRag, Mode::Graph, Some(vec![])),
        (GraphVariant::Waymark, Mode::Graph, None),
        (GraphVariant::Waymark, Mode::Hybrid, None),
        (GraphVariant::Waymark, Mode::Triples, Some(vec![1, 3])),
    ] {
        let index = open(temp.path());
        let index = match keep {
            Some(places) => index.with_fact_filter(Arc::new(Keep(places))),
            None => index,
        };
        let query = query(text, mode, 4, variant.into());
        let evidence = searched(&index, &query);
        let mut changes = 0;
        let json = serde_json::to_value(&evidence).unwrap();
        tamper(&json, &mut |whole| whole, "", &mut |at, changed| {
            // Some changes, such as an unknown mode, make no evidence at all.
            let Ok(changed) = serde_json::from_value::<Evidence>(changed) else { return };
            changes += 1;
            let checked = check(&index, &HashEmbed::default(), &query, &changed);
            assert!(checked.is_err(), "{variant}, {mode}: a change of {at} was not found out: {changed:#?}");
        });
        assert!(changes > 50, "only {changes} changes were tried");
    }
}

#[test]
fn real_triples_are_walked_as_their_definition_says() {
    let files = ["musique_train/corpus.jsonl", "musique_train/openie.jsonl", "musique_train/train.jsonl"];
    let Some(data) = outside::data(&files) else { return };
    let [corpus, openie, questions] = files.map(|file| std::fs::read_to_string(data.join(file)).unwrap());
    let rows = |text: &str| text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let triples: std::collections::HashMap<String, Vec<Triple>> = rows(&openie)
        .iter()
        .map(|row| {
            let triples = row["triples"].as_array().unwrap().iter().filter_map(Value::as_array);
            let three = triples.filter(|parts| parts.len() == 3);
            (text(&row["id"]), three.map(|t| triple(&text(&t[0]), &text(&t[1]), &text(&t[2]))).collect())
        })
        .collect();
    let documents = rows(&corpus).into_iter().take(400).map(|row| {
        let mut document = document(&text(&row["id"]), &text(&row["title"]), &text(&row["text"]));
        document.triples = triples.get(&document.id).cloned();
        document
    });
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), documents.collect(), &BuildOptions::default()).unwrap();
    let index = open(temp.path());
    for (question, place) in rows(&questions).iter().take(12).zip(0..) {
        let variant = GraphVariant::ALL[place % GraphVariant::ALL.len()];
        for mode in [Mode::Graph, Mode::Hybrid, Mode::Triples] {
            searched(&index, &query(&text(&question["question"]), mode, 5, variant.into()));
        }
    }
}

#[test]
fn a_local_walk_finds_what_the_whole_one_finds() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), some(), &BuildOptions::default()).unwrap();
    let options = OpenOptions { walk_below: 0, ..OpenOptions::default() };
    let local = Index::open_with(temp.path(), Arc::new(HashEmbed::default()), &options).unwrap();
    let texts = ["gamma rays", "alpha beta", "the river 1901"];
    for (text, variant) in texts.iter().flat_map(|text| GraphVariant::ALL.map(|variant| (*text, variant))) {
        // All passages have a weight of their own here, so both walks start alike; the sample that scales similarities
        // covers all passages.
        let query = query(text, Mode::Graph, 30, variant.into());
        let whole = searched(&open(temp.path()), &query);
        let local = local.search(&query).unwrap();
        let walk = whole.walk.as_ref().unwrap();
        let walked = local.walk.as_ref().unwrap();
        assert!(walked.local && walked.missing > 0.0 && walked.missing < 1e-3, "{}", walked.missing);
        assert_eq!(&GraphTrace { local: true, missing: walked.missing, ..walk.clone() }, walked);
        let mass = |evidence: &Evidence, id: &str| {
            let hit = evidence.hits.iter().find(|hit| hit.passage.id == id);
            hit.map_or(0.0, |hit| hit.path.graph.as_ref().unwrap().mass)
        };
        let off: f64 = whole
            .hits
            .iter()
            .map(|hit| (hit.path.graph.as_ref().unwrap().mass - mass(&local, &hit.passage.id)).abs())
            .sum();
        assert!(off <= walked.missing + walk.missing + 1e-6, "{off} is off, and {} is missing", walked.missing);
        for (a, b) in whole.hits.iter().zip(&local.hits) {
            assert!((a.score - b.score).abs() < 1e-4, "{variant}: {} against {}", a.score, b.score);
            assert!((a.path.graph.as_ref().unwrap().reset - b.path.graph.as_ref().unwrap().reset).abs() < 1e-6);
        }
        assert_eq!(whole.hits.len(), local.hits.len());
    }
}

#[derive(Debug)]
struct Broken;

impl FactFilter for Broken {
    fn keep(&self, query: &str, candidates: &[[&str; 3]]) -> Result<Vec<usize>, FilterError> {
        if query == "fail" { Err("no answer".into()) } else { Ok(vec![candidates.len()]) }
    }
}

#[test]
fn a_filter_that_fails_is_named() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), some(), &BuildOptions::default()).unwrap();
    let index = open(temp.path()).with_fact_filter(Arc::new(Broken));
    for (text, words) in [("fail", "no answer"), ("gamma", "place 5 of 5")] {
        let error = index.search(&query(text, Mode::Graph, 3, GraphOptions::default())).unwrap_err();
        assert!(matches!(error, IndexError::Filter { .. }) && error.to_string().contains("filter"), "{error}");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains(words), "{error:?}");
    }
    // Passage search needs no filter.
    assert_eq!(index.search(&query("fail", Mode::Passage, 3, GraphOptions::default())).unwrap().hits.len(), 3);
}

#[test]
fn a_search_of_the_graph_ends_at_its_deadline() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), some(), &BuildOptions::default()).unwrap();
    let past = std::time::Instant::now() - std::time::Duration::from_millis(1);
    for mode in [Mode::Graph, Mode::Hybrid, Mode::Triples] {
        let query = query("gamma", mode, 3, GraphOptions::default()).deadline(past);
        assert!(matches!(open(temp.path()).search(&query), Err(IndexError::Deadline { .. })));
    }
}
