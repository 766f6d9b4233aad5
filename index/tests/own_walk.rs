//! Waymark's own variant of graph search: what it adds to RouteRAG's.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpora;

use corpora::{document, open, write};
use waymark_index::{
    BuildOptions, Evidence, GraphOptions, GraphVariant, Index, Mode, Query, Ranking, SearchOptions, Triple,
};

/// Index in which the fact about Quill is the least similar to questions about rivers.
fn index(dir: &std::path::Path) -> Index {
    let stating = |id: &str, text: &str, triples: Vec<Triple>| {
        let mut document = document(id, "", text);
        document.triples = Some(triples);
        document
    };
    let mut documents: Vec<_> = (0..40)
        .map(|i| {
            let river = Triple::new(format!("river {i}"), "flows past", format!("which city {i}"));
            stating(&format!("river{i}"), &format!("A river flows past which city {i}"), vec![river])
        })
        .collect();
    documents.push(stating("quill", "One author", vec![Triple::new("Quill Roe", "born", "Oslo")]));
    documents.push(stating("oslo", "A capital", vec![Triple::new("Oslo", "lies at", "Akerselva")]));
    documents.push(stating("words", "The pen name of Roe was zephyr", Vec::new()));
    write(dir, documents, &BuildOptions::default()).unwrap();
    open(dir).unwrap()
}

fn search(index: &Index, text: &str, mode: Mode, variant: GraphVariant) -> Evidence {
    index.search(&Query { graph: variant.into(), ..Query::new(text, mode, 43).ranking(Ranking::Fused) }).unwrap()
}

fn place(evidence: &Evidence, id: &str) -> usize {
    evidence.hits.iter().position(|hit| hit.passage.id == id).unwrap()
}

const QUESTION: &str = "Which river flows past the city of Quill Roe?";

#[test]
fn named_phrases_start_the_walk() {
    let temp = tempfile::tempdir().unwrap();
    let index = index(temp.path());
    let own = search(&index, QUESTION, Mode::Graph, GraphVariant::Waymark);
    let published = search(&index, QUESTION, Mode::Graph, GraphVariant::RouteRag);
    let seeds =
        |evidence: &Evidence| evidence.walk.as_ref().unwrap().phrases.iter().map(|p| p.phrase.clone()).collect();
    let with: Vec<String> = seeds(&own);
    let without: Vec<String> = seeds(&published);
    assert!(with.contains(&"quill roe".to_owned()) && !without.contains(&"quill roe".to_owned()));
    assert!(place(&own, "quill") < place(&published, "quill"), "{own:?}");
    assert!(place(&own, "oslo") < place(&published, "oslo"), "the next passage of the chain: {own:?}");
}

#[test]
fn passages_that_share_words_have_more_weight() {
    let temp = tempfile::tempdir().unwrap();
    let index = index(temp.path());
    let reset = |variant: GraphVariant, text: &str| {
        let query = Query { graph: GraphOptions::from(variant), ..Query::new(text, Mode::Graph, 43).explained() };
        let hits = index.search(&query).unwrap().hits;
        let hit = hits.into_iter().find(|hit| hit.passage.id == "words").unwrap();
        hit.path.graph.unwrap().reset
    };
    // The best passage by words and by vectors has the whole weight in both variants.
    let whole = "The pen name of Roe was zephyr";
    assert!((reset(GraphVariant::Waymark, whole) - 0.05).abs() < 1e-6);
    assert!((reset(GraphVariant::RouteRag, whole) - 0.05).abs() < 1e-6);
    assert!(
        reset(GraphVariant::Waymark, "a river flows zephyr") > reset(GraphVariant::RouteRag, "a river flows zephyr")
    );
}

#[test]
fn the_fact_that_a_question_asks_for_leads_to_a_passage() {
    let temp = tempfile::tempdir().unwrap();
    let stating = |id: &str, title: &str, facts: &[(&str, &str)]| {
        let mut document = document(id, title, &format!("About {id}"));
        let name = title.trim_end_matches(" (city)");
        document.triples = Some(facts.iter().map(|(relation, object)| Triple::new(name, *relation, *object)).collect());
        document
    };
    let film = [
        ("directed by", "Guido Brignone"),
        ("starring in a leading role", "Marcella Albani"),
        ("filmed on location at", "Vienna"),
    ];
    let documents = vec![
        stating("film", "Devotion", &film),
        stating("director", "Guido Brignone", &[("born in", "Milan")]),
        stating("actress", "Marcella Albani", &[("born in", "Rome")]),
        stating("other", "Vienna (city)", &[("lies at", "Danube")]),
    ];
    write(temp.path(), documents, &BuildOptions::default()).unwrap();
    let index = open(temp.path()).unwrap();
    // IDs of passages with more weight than in the published variant.
    let gaining = |question: &str| -> Vec<String> {
        let reset = |variant: GraphVariant| {
            let query = Query { graph: variant.into(), ..Query::new(question, Mode::Graph, 4).explained() };
            let hits = index.search(&query).unwrap().hits;
            let reset = hits.into_iter().map(|hit| (hit.passage.id, hit.path.graph.unwrap().reset));
            reset.collect::<std::collections::BTreeMap<_, _>>()
        };
        let [published, own] = [GraphVariant::RouteRag, GraphVariant::Waymark].map(reset);
        own.into_iter().filter(|(id, weight)| *weight > published[id] + 0.1).map(|(id, _)| id).collect()
    };
    assert_eq!(gaining("Was Devotion directed by whom"), ["director", "film"]);
    assert_eq!(gaining("Who is starring in a leading role of Devotion"), ["actress", "film"]);
    // The phrase is the title without its note.
    assert_eq!(gaining("At what location was Devotion filmed on"), ["film", "other"]);
    assert_eq!(gaining("who is starring in a leading role of it"), [""; 0]);
}

#[test]
fn the_hybrid_mode_keeps_to_the_graph() {
    let temp = tempfile::tempdir().unwrap();
    let index = index(temp.path());
    let graph = search(&index, QUESTION, Mode::Graph, GraphVariant::Waymark);
    let hybrid = search(&index, QUESTION, Mode::Hybrid, GraphVariant::Waymark);
    assert_eq!(graph.hits[0].passage.id, hybrid.hits[0].passage.id);
    let score = hybrid.hits[0].path.graph.as_ref().map(|rank| 1.0 / rank.rank as f64).unwrap();
    assert!(f64::from(hybrid.hits[0].score) >= score - 1e-6);
    let options = |variant: GraphVariant| SearchOptions {
        mode: Some(Mode::Hybrid),
        graph: Some(variant.into()),
        ..SearchOptions::default()
    };
    assert_eq!(options(GraphVariant::Waymark).query("x").ranking, Ranking::Fused);
    assert_eq!(options(GraphVariant::RouteRag).query("x").ranking, Ranking::Dense);
}
