//! Golden vectors of HippoRAG 2 and RouteRAG's fork: construction of the graph.
#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::lists::ListRows;
use super::scale::Scale;
use super::synonyms::Neighbors;
use super::{Graph, edges, phrase};
use crate::Index;
use crate::golden::{Given, built, cases};
use crate::python;

/// Cases of a section of the golden file of texts. Empty if the file is not available.
fn texts(section: &str) -> Vec<Value> {
    cases("hippo_text_utils", section)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn texts_are_normalized_as_in_the_reference() {
    let normalize = |value: &Value| phrase::normalize(&python::show(value));
    for case in texts("text_processing") {
        match &case["in"] {
            Value::Array(items) => assert_eq!(json!(items.iter().map(normalize).collect::<Vec<_>>()), case["out"]),
            one => assert_eq!(normalize(one), case["out"], "{one}"),
        }
    }
}

#[test]
fn texts_are_named_as_in_the_reference() {
    for case in texts("md5_ids") {
        for kind in ["entity", "chunk", "fact"] {
            assert_eq!(phrase::id(&format!("{kind}-"), text(&case["content"])), case[kind]);
        }
    }
    for case in texts("fact_store_string") {
        let [subject, relation, object] = array(&case["triple"]) else { panic!("{case}") };
        assert_eq!(phrase::fact(text(subject), text(relation), text(object)), case["string"]);
    }
}

#[test]
fn scores_are_scaled_as_in_the_reference() {
    for case in texts("min_max") {
        let numbers = |value| array(value).iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>();
        let given = numbers(&case["in"]);
        let expected = numbers(&case["out"]);
        assert_eq!(given.len(), expected.len(), "{case}");
        let scale = Scale::of(given.iter().copied());
        assert!(given.iter().zip(expected).all(|(x, y)| (scale.apply(*x) - y).abs() < 1e-6), "{case}");
    }
}

/// Builds an index as the reference did, and calls `check` with its graph.
fn with_graph(golden: &Value, check: impl FnOnce(&Graph, &Index)) {
    let temp = tempfile::tempdir().unwrap();
    let embed = Given::of(golden, &["chunk", "entity", "fact"]);
    let index = Index::open(&built(golden, temp.path()), Arc::new(embed)).unwrap();
    check(index.graph().unwrap(), &index);
}

/// Names of the nodes in the golden file.
fn nodes(graph: &Graph, index: &Index) -> Vec<String> {
    let phrases = (0..graph.phrases() as u32).map(|phrase| graph.phrase(phrase).to_owned());
    let title = |number| format!("P:{}", index.snapshot.store.passage(number).unwrap().title);
    phrases.chain((0..graph.passages() as u32).map(title)).collect()
}

type Edges = BTreeMap<(String, String), Vec<f32>>;

fn edge(edges: &mut Edges, a: &str, b: &str, weight: f32) {
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    let weights = edges.entry((a.to_owned(), b.to_owned())).or_default();
    weights.push(weight);
    weights.sort_unstable_by(f32::total_cmp);
}

/// Edges before parallel ones are merged.
fn multi(graph: &Graph, names: &[String]) -> Edges {
    let id = |text: &str| graph.phrase_id(&phrase::normalize(text)).unwrap();
    let stated = (0..graph.passages() as u32).flat_map(|passage| graph.triples(passage).unwrap());
    let stated: Vec<_> = stated.map(|triple| [id(&triple.subject), 0, id(&triple.object)]).collect();
    let mut passages_of = ListRows::new();
    let phrases = 0..graph.phrases() as u32;
    phrases.clone().for_each(|phrase| passages_of.push(&mut graph.passages_of(phrase).to_vec()));
    let pairs = |(numbers, scores): (&[u32], &[f32])| numbers.iter().copied().zip(scores.iter().copied()).collect();
    let synonyms = Neighbors::of(phrases.map(|phrase| pairs(graph.synonyms(phrase))));
    let built = edges::graph(&stated, &passages_of, &synonyms, graph.passages());
    let mut found = Edges::new();
    for raw in built.raw_edges() {
        edge(&mut found, &names[raw.source().index()], &names[raw.target().index()], raw.weight);
    }
    found
}

#[test]
fn graphs_are_those_of_the_reference() {
    for case in cases::<Value>("hipporag_graph_search", "graphs") {
        let variants = case["variants"].as_object().unwrap();
        assert!(!variants.is_empty(), "{}", case["name"]);
        for (variant, expected) in variants {
            let name = format!("{} {variant}", case["name"]);
            with_graph(&case, |graph, index| {
                let names = nodes(graph, index);
                let expected_names = array(&expected["nodes"]).iter().map(|node| text(&node["text"]));
                assert_eq!(names, expected_names.collect::<Vec<_>>(), "{name}");
                let facts = (0..graph.facts() as u32).map(|fact| graph.fact_text(fact));
                assert_eq!(json!(facts.collect::<Vec<_>>()), expected["facts_in_store_order"], "{name}");
                for (phrase, count) in expected["entity_num_chunks"].as_object().unwrap() {
                    let passages = graph.passages_of(graph.phrase_id(phrase).unwrap());
                    assert_eq!(passages.len() as u64, count.as_u64().unwrap(), "{name}: {phrase}");
                }
                let mut wanted = Edges::new();
                for row in array(&expected["edges_undirected_multi"]) {
                    edge(&mut wanted, text(&row[0]), text(&row[1]), row[2].as_f64().unwrap() as f32);
                }
                compare(&multi(graph, &names), &wanted, &name);
                let mut sums = Edges::new();
                let adjacency = graph.adjacency();
                for (node, from) in (0..).zip(&names) {
                    let (targets, weights) = adjacency.row(node);
                    let above = targets.iter().zip(weights).filter(|(target, _)| **target > node);
                    above.for_each(|(&target, &weight)| edge(&mut sums, from, &names[target as usize], weight));
                }
                wanted.values_mut().for_each(|weights| *weights = vec![weights.iter().sum()]);
                compare(&sums, &wanted, &name);
            });
        }
    }
}

fn compare(found: &Edges, wanted: &Edges, name: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{name}");
    for (pair, weights) in wanted {
        let close = found[pair].iter().zip(weights).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close && found[pair].len() == weights.len(), "{name} {pair:?}: {:?}, {weights:?}", found[pair]);
    }
}
