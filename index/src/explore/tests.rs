#![allow(clippy::unwrap_used)]
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::corpus::Document;
use crate::embed::fake::HashEmbed;
use crate::graph::Graph;
use crate::triple::Triple;
use crate::{BuildOptions, Corpus, Index, build};

const DIMS: usize = 8;

/// Passages: ID, title, triples.
const PASSAGES: [(&str, &str, &[[&str; 3]]); 6] = [
    (
        "giovanni",
        "Don Giovanni",
        &[["Don Giovanni", "was composed by", "Mozart"], ["Don Giovanni", "opened in", "Prague"]],
    ),
    ("mozart", "Mozart", &[["Mozart", "was born in", "Salzburg"], ["Mozart", "admired", "Haydn"]]),
    ("salzburg", "Salzburg", &[["Salzburg", "lies on", "Salzach"], ["Mozart", "was born in", "Salzburg"]]),
    ("haydn#1", "Haydn", &[["Haydn", "taught", "Mozart"], ["Mozart", "admired", "Haydn"]]),
    ("haydn#2", "Haydn", &[]),
    ("mozartkugel", "", &[["Mozart kugel", "is named after", "Mozart"], ["it", "was invented by", "Paul Fürst"]]),
];

fn built(dir: &Path, with_triples: bool) -> Index {
    let document = |&(id, title, triples): &(&str, &str, &[[&str; 3]])| Document {
        id: id.to_owned(),
        title: title.to_owned(),
        text: format!("Text of {id}."),
        triples: with_triples.then(|| triples.iter().map(|triple| Triple::from(triple.map(str::to_owned))).collect()),
        metadata: None,
    };
    let corpus = Corpus::from_documents("test", PASSAGES.iter().map(document).collect());
    build(corpus, &HashEmbed::new(DIMS), dir, &BuildOptions::default(), &()).unwrap();
    Index::open(dir, Arc::new(HashEmbed::new(DIMS))).unwrap()
}

fn phrase(graph: &Graph, text: &str) -> GraphNode {
    GraphNode { kind: NodeKind::Phrase, number: graph.phrase_id(text).unwrap() }
}

fn nodes(graph: &Graph) -> Vec<GraphNode> {
    let all = |kind, count: usize| (0..count as u32).map(move |number| GraphNode { kind, number });
    all(NodeKind::Phrase, graph.phrases()).chain(all(NodeKind::Passage, graph.passages())).collect()
}

#[test]
fn a_neighborhood_holds_every_edge_with_its_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), true);
    let graph = index.graph().unwrap();
    let mut entries = 0;
    for node in nodes(graph) {
        let Neighborhood { edges, total } = graph.neighborhood(node, None, usize::MAX);
        assert_eq!((edges.len(), total), (graph.degree(node), graph.degree(node)));
        assert!(edges.is_sorted_by(|a, b| a.weight > b.weight || (a.weight == b.weight && a.node < b.node)));
        entries += total;
        for edge in &edges {
            let back = graph.neighborhood(edge.node, None, usize::MAX).edges;
            let back = back.iter().find(|back| back.node == node).unwrap();
            assert_eq!((back.weight, &back.kinds, &back.facts), (edge.weight, &edge.kinds, &edge.facts));
            for &fact in &edge.facts {
                let ends = graph.fact(fact);
                let mut found = [ends.subject, ends.object];
                let mut both = [node.number, edge.node.number];
                found.sort_unstable();
                both.sort_unstable();
                assert_eq!(found, both);
            }
            assert_eq!(edge.kinds.contains(&EdgeKind::Fact), !edge.facts.is_empty());
            assert_eq!(edge.kinds.contains(&EdgeKind::Synonym), edge.cosine.is_some());
            let mention = node.kind != edge.node.kind;
            assert_eq!(edge.kinds == [EdgeKind::Mention], mention, "{edge:?}");
            assert!(!mention || edge.weight == 1.0);
        }
        for limit in 0..total {
            assert_eq!(graph.neighborhood(node, None, limit).edges, edges[..limit], "{node:?}");
        }
        let of = |kind| graph.neighborhood(node, Some(kind), usize::MAX);
        let phrases = of(NodeKind::Phrase);
        let passages = of(NodeKind::Passage);
        assert!(phrases.edges.iter().all(|edge| edge.node.kind == NodeKind::Phrase));
        assert_eq!(phrases.total + passages.total, total);
    }
    assert_eq!(entries, graph.adjacency().targets.len());
    let unknown = GraphNode { kind: NodeKind::Phrase, number: graph.phrases() as u32 };
    assert_eq!(graph.neighborhood(unknown, None, 5), Neighborhood { edges: Vec::new(), total: 0 });
}

#[test]
fn facts_of_both_directions_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), true);
    let graph = index.graph().unwrap();
    let edges = graph.neighborhood(phrase(graph, "haydn"), Some(NodeKind::Phrase), 10).edges;
    let mozart = edges.iter().find(|edge| edge.node == phrase(graph, "mozart")).unwrap();
    let told: Vec<&str> = mozart.facts.iter().map(|&fact| graph.fact(fact).relation).collect();
    assert_eq!(told, ["taught", "admired"]);
    // Stated once by one passage, and twice by two.
    assert!(mozart.weight >= 3.0, "{mozart:?}");
}

#[test]
fn phrases_are_found_by_the_beginnings_of_their_words() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), true);
    let graph = index.graph().unwrap();
    let found = |text: &str, limit: usize| -> Vec<(&str, PhraseMatchKind)> {
        let lookup = graph.find_phrases(text, limit);
        assert!(lookup.complete);
        lookup.matches.iter().map(|found| (graph.phrase(found.phrase), found.kind)).collect()
    };
    let exact = ("mozart", PhraseMatchKind::Exact);
    let prefix = ("mozart kugel", PhraseMatchKind::Prefix);
    assert_eq!(found(" MOZART!", 10), [exact, prefix]);
    assert_eq!(found("mozart", 1), [exact]);
    assert_eq!(found("gio", 10), [("don giovanni", PhraseMatchKind::Inside)]);
    assert_eq!(found("iovanni", 10), []);
    // Equal matches are ordered by their number of edges.
    assert_eq!(found("salz", 10)[0].0, "salzburg");
    assert_eq!(found("§ ", 10), []);
    assert_eq!(found("zzz", 10), []);
}

#[test]
fn questions_are_answered_by_facts_that_passages_state() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), true);
    let questions = index.example_questions(20).unwrap();
    assert_eq!(questions, index.example_questions(20).unwrap());
    let texts: Vec<&str> = questions.iter().map(|question| question.question.as_str()).collect();
    assert_eq!(
        texts,
        [
            "Where was the composer of Don Giovanni born?",
            "Who composed Don Giovanni?",
            "Where was Mozart born?",
            "What does Salzburg lie on?",
            "After whom or what is Mozart kugel named?",
            "What is known about Don Giovanni?",
            "What is known about Mozart?",
            "What is known about Salzburg?",
            "What is known about Haydn?",
        ]
    );
    for ExampleQuestion { facts, about, .. } in &questions {
        assert_eq!(facts.is_empty(), about.is_some());
        for QuestionFact { triple, passage } in facts {
            let number = index.number(&passage.id).unwrap().unwrap();
            assert!(index.stated_triples(number).unwrap().1.contains(triple));
        }
    }
    assert_eq!(index.example_questions(2).unwrap(), questions[..2]);
    assert_eq!(index.example_questions(0).unwrap(), []);
}

#[test]
fn without_a_graph_only_titles_are_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), false);
    assert!(index.graph().is_none());
    let questions = index.example_questions(3).unwrap();
    assert!(questions.iter().all(|question| question.facts.is_empty() && question.about.is_some()));
    assert_eq!(questions.len(), 3);
    assert_eq!(index.stated_triples(0).unwrap(), (TripleSource::None, Vec::new()));
}

#[test]
fn chunks_know_their_neighbors() {
    let dir = tempfile::tempdir().unwrap();
    let index = built(dir.path(), true);
    let siblings = |id: &str| {
        let ChunkSiblings { previous, next } = index.chunk_siblings(id).unwrap();
        [previous, next]
    };
    let id = |id: &str| Some(id.to_owned());
    assert_eq!(siblings("haydn#1"), [None, id("haydn#2")]);
    assert_eq!(siblings("haydn#2"), [id("haydn#1"), None]);
    for alone in ["mozart", "haydn#x", "haydn#0", "x#18446744073709551615"] {
        assert_eq!(siblings(alone), [None, if alone == "haydn#0" { id("haydn#1") } else { None }], "{alone}");
    }
    let number = index.number("mozart").unwrap().unwrap();
    let (source, triples) = index.stated_triples(number).unwrap();
    assert_eq!((source, triples.len()), (TripleSource::Given, 2));
    assert_eq!(index.passage_name(number).unwrap().title, "Mozart");
    assert!(index.passage_name(99).is_err());
    assert!(index.published().is_some());
}
