#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::build::{BuildOptions, build};
use crate::condition::{Comparison, Condition};
use crate::corpus::{Corpus, Document};
use crate::embed::fake::HashEmbed;
use crate::index::Index;
use crate::mode::Mode;
use crate::query::Query;
use crate::triple::Triple;

/// Results of Graph-R1's program; its `source` tells how they were made.
const GOLDEN: &str = include_str!("graph_r1.json");

fn built(documents: Vec<Document>) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("index");
    let embed = HashEmbed::default();
    build(Corpus::from_documents("test", documents), &embed, &out, &BuildOptions::default(), &()).unwrap();
    let index = Index::open(&out, Arc::new(embed)).unwrap();
    (dir, index)
}

fn document(number: usize, triples: Vec<Triple>) -> Document {
    let metadata = serde_json::json!({ "number": number }).as_object().cloned();
    let id = format!("p{number}");
    Document { title: id.clone(), text: format!("Passage {number}."), id, triples: Some(triples), metadata }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn triple(value: &Value) -> Triple {
    let parts = texts(value);
    Triple::new(parts[0], parts[1], parts[2])
}

#[test]
fn facts_are_ranked_as_by_graph_r1() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let mut checked = 0;
    for case in golden["cases"].as_array().unwrap() {
        let passages = case["passages"].as_array().unwrap().iter().enumerate();
        let stated = |passage: &Value| passage.as_array().unwrap().iter().map(triple).collect();
        let (_dir, index) = built(passages.map(|(number, passage)| document(number, stated(passage))).collect());
        let graph = index.graph().unwrap();
        let known: Vec<u32> = (0..graph.facts() as u32).collect();
        let sentence = |fact: u32| {
            let fact = graph.fact(fact);
            format!("{} {} {}", graph.phrase(fact.subject), fact.relation, graph.phrase(fact.object))
        };
        for query in case["queries"].as_array().unwrap() {
            let entities: Vec<u32> =
                texts(&query["entities"]).into_iter().map(|name| graph.phrase_id(name).unwrap()).collect();
            let matched = query["facts"].as_array().unwrap().iter().map(|fact| texts(fact).join(" "));
            let matched: Vec<u32> =
                matched.map(|text| *known.iter().find(|&&fact| sentence(fact) == text).unwrap()).collect();
            let found = ranked_facts(graph, &entities, &matched);
            let expected = query["results"].as_array().unwrap();
            assert_eq!(found.len().min(10), expected.len());
            for ((fact, score), expected) in found.iter().zip(expected) {
                assert_eq!(sentence(*fact), expected[0].as_str().unwrap(), "{query}");
                assert!((score - expected[1].as_f64().unwrap()).abs() < 6e-4, "{score} {expected}");
                checked += 1;
            }
        }
    }
    assert!(checked > 300, "{checked}");
}

fn seine() -> (TempDir, Index) {
    let stated = [
        vec![Triple::new("The Seine", "flows through", "Paris"), Triple::new("Paris", "lies in", "France")],
        vec![Triple::new("the seine", "flows through", "Paris!"), Triple::new("Rouen", "lies on", "The Seine")],
        vec![Triple::new("Thames", "flows through", "London")],
    ];
    built(stated.into_iter().enumerate().map(|(number, triples)| document(number, triples)).collect())
}

#[test]
fn facts_come_in_the_words_of_their_passages() {
    let (_dir, index) = seine();
    let query = Query { triples: 3, ..Query::new("Where does the Seine flow?", Mode::Hypergraph, 2) };
    let evidence = index.search(&query).unwrap();
    assert_eq!((evidence.triples.len(), evidence.walk.is_none()), (3, true));
    let seine =
        evidence.triples.iter().find(|fact| fact.relation == "flows through" && fact.object == "Paris").unwrap();
    assert_eq!((seine.subject.as_str(), &seine.passages[..]), ("The Seine", &["p0".to_owned(), "p1".to_owned()][..]));
    let ranks: Vec<usize> = evidence.triples.iter().map(|fact| fact.rank).collect();
    assert_eq!(ranks, [1, 2, 3]);
    assert!(evidence.triples.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let passages: Vec<(usize, &str)> = evidence.hits.iter().map(|hit| (hit.rank, hit.passage.id.as_str())).collect();
    assert_eq!(passages.len(), 2, "{passages:?}");
    assert_eq!(evidence, index.search(&query).unwrap());
    let few = index.search(&Query { triples: 1, ..query }).unwrap();
    assert_eq!(few.triples, evidence.triples[..1]);
}

#[test]
fn a_condition_holds_before_the_best_entities_and_facts_are_taken() {
    let seine = |number| document(number, vec![Triple::new(format!("Seine {number}"), "flows through", "Paris")]);
    let thames = document(8, vec![Triple::new("Thames", "washes", "London")]);
    let (_dir, index) = built((0..8).map(seine).chain([thames]).collect());
    let only = Condition::Compare { key: "number".into(), test: Comparison::Equal, value: 8.into() };
    let evidence = index.search(&Query::new("Seine", Mode::Hypergraph, 5).only(only)).unwrap();
    assert_eq!(evidence.triples.len(), 1, "{:?}", evidence.triples);
    assert_eq!(evidence.hits.iter().map(|hit| hit.passage.id.as_str()).collect::<Vec<_>>(), ["p8"]);
}

#[test]
fn a_condition_leaves_facts_of_its_passages_only() {
    let (_dir, index) = seine();
    let only = Condition::Compare { key: "number".into(), test: Comparison::Equal, value: 1.into() };
    let evidence = index.search(&Query::new("Seine", Mode::Hypergraph, 5).only(only)).unwrap();
    assert_eq!(evidence.triples.len(), 2, "{:?}", evidence.triples);
    assert!(evidence.triples.iter().all(|fact| fact.passages == ["p1"]));
    assert_eq!(evidence.hits.iter().map(|hit| hit.passage.id.as_str()).collect::<Vec<_>>(), ["p1"]);
}
