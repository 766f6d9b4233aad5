//! Searches restricted by metadata.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corpora::{HashEmbed, document, numbered, write};
use proptest::prelude::*;
use serde_json::json;
use waymark_index::{
    BuildOptions, Condition, Document, Evidence, Index, IndexError, InvalidOption, Mode, OpenOptions, Query, Ranking,
    Triple,
};

fn condition(value: serde_json::Value) -> Condition {
    serde_json::from_value(value).unwrap()
}

/// Documents of the groups 0 to 3; every fifth has no group.
fn grouped(count: usize) -> Vec<Document> {
    let mut documents = numbered(count, "first");
    for (place, document) in documents.iter_mut().enumerate().filter(|(place, _)| place % 5 != 4) {
        document.metadata = json!({"group": place * 7 % 4, "name": format!("n{place}")}).as_object().cloned();
    }
    documents
}

fn of_groups(groups: &BTreeSet<usize>) -> Condition {
    condition(json!({"type": "in", "key": "group", "value": groups}))
}

fn allowed(documents: Vec<Document>, only: &Condition) -> Vec<Document> {
    let silent = serde_json::Map::new();
    let fits = |document: &Document| only.matches(document.metadata.as_ref().unwrap_or(&silent));
    documents.into_iter().filter(fits).collect()
}

fn open(dir: &Path, exact_below: usize) -> Index {
    let options = OpenOptions { exact_below, ..OpenOptions::default() };
    Index::open_with(dir, Arc::new(HashEmbed::default()), &options).unwrap()
}

fn ids(evidence: &Evidence) -> Vec<&str> {
    evidence.hits.iter().map(|hit| hit.passage.id.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn what_is_found_is_what_an_index_of_the_allowed_documents_finds(
        groups in prop::collection::btree_set(0_usize..4, 1..4), word in 0_usize..60, k in 1_usize..12,
    ) {
        let temp = tempfile::tempdir().unwrap();
        let whole = temp.path().join("whole");
        let part = temp.path().join("part");
        let only = of_groups(&groups);
        write(&whole, grouped(60), &BuildOptions::default()).unwrap();
        write(&part, allowed(grouped(60), &only), &BuildOptions::default()).unwrap();
        let whole = open(&whole, usize::MAX);
        let part = open(&part, usize::MAX);
        let query = |ranking, k| Query::new(format!("number{word} topic{}", word % 5), Mode::Passage, k).ranking(ranking);
        let (found, expected) = (
            whole.search(&query(Ranking::Dense, k).only(only.clone())).unwrap(),
            part.search(&query(Ranking::Dense, k)).unwrap(),
        );
        prop_assert_eq!(&found.hits, &expected.hits);
        // Term frequencies differ in the smaller index, so the order is that of the whole index.
        let (found, expected) = (
            whole.search(&query(Ranking::Bm25, k).only(only.clone())).unwrap(),
            whole.search(&query(Ranking::Bm25, 60)).unwrap(),
        );
        let member = |id: &str| allowed(grouped(60), &only).iter().any(|document| document.id == id);
        let scores = |evidence: &Evidence| -> Vec<f32> {
            evidence.hits.iter().filter(|hit| member(&hit.passage.id)).map(|hit| hit.score).take(k).collect()
        };
        prop_assert!(ids(&found).into_iter().all(member));
        prop_assert_eq!(scores(&found).len(), found.hits.len());
        prop_assert_eq!(scores(&found).len(), scores(&expected).len());
        let near = scores(&found).iter().zip(scores(&expected)).all(|(a, b)| (a - b).abs() < 1e-5);
        prop_assert!(near, "{:?} for {:?}", scores(&found), scores(&expected));
        let fused = whole.search(&query(Ranking::Fused, k).only(only.clone())).unwrap();
        prop_assert_eq!(fused.hits.len(), k.min(allowed(grouped(60), &only).len()));
        prop_assert!(ids(&fused).into_iter().all(member));
    }
}

#[test]
fn as_many_are_found_as_there_are() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), grouped(300), &BuildOptions::default()).unwrap();
    let only = condition(json!({"type": "in", "key": "name", "value": ["n1", "n2", "n250"]}));
    for exact_below in [0, usize::MAX] {
        let index = open(temp.path(), exact_below);
        for ranking in [Ranking::Dense, Ranking::Fused] {
            let query = Query::new("number7 topic2", Mode::Passage, 5).ranking(ranking).only(only.clone());
            let found: BTreeSet<String> =
                index.search(&query).unwrap().hits.into_iter().map(|hit| hit.passage.id).collect();
            assert_eq!(found, BTreeSet::from(["p1", "p2", "p250"].map(str::to_owned)));
        }
        let nothing = condition(json!({"type": "eq", "key": "absent", "value": 1}));
        let query = Query::new("number7", Mode::Passage, 5);
        assert!(index.search(&query.clone().only(nothing)).unwrap().hits.is_empty());
        let everything = condition(json!({"type": "ne", "key": "absent", "value": 1}));
        assert_eq!(index.search(&query.clone().only(everything)).unwrap(), index.search(&query).unwrap());
    }
}

#[test]
fn hits_say_what_their_documents_say() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), grouped(10), &BuildOptions::default()).unwrap();
    let hits = open(temp.path(), usize::MAX).search(&Query::new("number1", Mode::Passage, 10)).unwrap().hits;
    let metadata = |id: &str| hits.iter().find(|hit| hit.passage.id == id).unwrap().metadata.clone();
    assert_eq!(metadata("p1"), json!({"group": 3, "name": "n1"}).as_object().cloned());
    assert_eq!(metadata("p4"), None);
}

/// Six similar documents, whose metadata alternates between the sides `a` and `b`.
fn stating() -> Vec<Document> {
    let triple = |subject: &str, object: &str| Triple {
        subject: subject.to_owned(),
        relation: "wrote".to_owned(),
        object: object.to_owned(),
    };
    let said = [("Goethe", "Faust"), ("Goethe", "Faust"), ("Goethe", "Egmont"), ("Kleist", "Penthesilea")];
    let documents = said.iter().chain(&said).zip(0..6).map(|(&(subject, object), place)| {
        let side = if place % 2 == 0 { "a" } else { "b" };
        let mut document = document(&format!("{side}{place}"), object, &format!("{subject} wrote {object}."));
        document.triples = Some(vec![triple(subject, object)]);
        document.metadata = json!({"side": side}).as_object().cloned();
        document
    });
    documents.collect()
}

#[test]
fn over_the_graph_nothing_else_is_found_and_no_triple_tells_of_it() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), stating(), &BuildOptions::default()).unwrap();
    for walk_below in [0, usize::MAX] {
        let options = OpenOptions { walk_below, ..OpenOptions::default() };
        let index = Index::open_with(temp.path(), Arc::new(HashEmbed::default()), &options).unwrap();
        for mode in Mode::ALL {
            let query = Query::new("What has Goethe written? Faust", mode, 4);
            let only = condition(json!({"type": "eq", "key": "side", "value": "b"}));
            let found = index.search(&query.clone().only(only)).unwrap();
            assert!(!found.hits.is_empty(), "{mode}");
            assert!(ids(&found).iter().all(|id| id.starts_with('b')), "{mode}: {found:?}");
            let named: Vec<&String> = found.triples.iter().flat_map(|triple| &triple.passages).collect();
            assert!(named.iter().all(|id| id.starts_with('b')), "{mode}: {named:?}");
            // Only a2 states the fact.
            assert!(found.triples.iter().all(|triple| triple.object.to_lowercase() != "egmont"), "{mode}: {found:?}");
            if matches!(mode, Mode::Triples | Mode::Kag | Mode::Hypergraph) {
                let all = index.search(&Query { k: 20, ..query }).unwrap();
                assert!(all.triples.iter().any(|triple| triple.object.to_lowercase() == "egmont"), "{mode}: {all:?}");
                assert!(!named.is_empty(), "{mode}");
            }
        }
    }
}

#[test]
fn a_walk_is_the_same_and_what_may_not_be_found_is_left_out_of_its_end() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), stating(), &BuildOptions::default()).unwrap();
    let index = open(temp.path(), usize::MAX);
    let query = Query::new("What has Goethe written? Faust", Mode::Graph, 6);
    let all = index.search(&query).unwrap();
    let only = condition(json!({"type": "eq", "key": "side", "value": "a"}));
    let found = index.search(&Query { k: 2, ..query.only(only) }).unwrap();
    assert_eq!(found.walk, all.walk);
    let mass = |hit: &waymark_index::Hit| hit.path.graph.as_ref().map(|arrival| arrival.mass);
    let of_a = all.hits.iter().filter(|hit| hit.passage.id.starts_with('a')).take(2);
    let expected: Vec<_> = of_a.map(|hit| (hit.passage.id.as_str(), mass(hit))).collect();
    assert_eq!(found.hits.iter().map(|hit| (hit.passage.id.as_str(), mass(hit))).collect::<Vec<_>>(), expected);
    assert_eq!(found.hits.iter().map(|hit| hit.rank).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_cannot_be_asked_for_is_refused_and_a_deadline_holds() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), grouped(10), &BuildOptions::default()).unwrap();
    let index = open(temp.path(), usize::MAX);
    let query = Query::new("number1", Mode::Passage, 3).ranking(Ranking::Bm25);
    let refused = index.search(&query.clone().only(Condition::All(Vec::new())));
    assert!(matches!(refused, Err(IndexError::BadQuery(InvalidOption { name: "filters", .. }))), "{refused:?}");
    let past = query.only(of_groups(&BTreeSet::from([1]))).deadline(Instant::now() - Duration::from_millis(1));
    assert!(matches!(index.search(&past), Err(IndexError::Deadline { stage: "the metadata was read" })));
}
