#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tempfile::TempDir;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::build::{BuildOptions, build};
use crate::corpus::{Corpus, Document};
use crate::embed::fake::HashEmbed;
use crate::evidence::TripleHit;
use crate::invalid_option::InvalidOption;
use crate::mode::Mode;
use crate::options::{KagOptions, Relevance};
use crate::query::ENTITIES;
use crate::rerank::Rerank;
use crate::rerank::fake::WordReranker;
use crate::triple::Triple;

fn document(id: &str, title: &str, text: &str, triples: &[(&str, &str, &str)]) -> Document {
    let triples = triples.iter().map(|&(subject, relation, object)| Triple::new(subject, relation, object)).collect();
    let id = id.to_owned();
    let title = title.to_owned();
    let text = text.to_owned();
    Document { id, title, text, triples: Some(triples), metadata: None }
}

fn index() -> (TempDir, Index) {
    let documents = vec![
        document("seine", "Seine", "The Seine is a river through Paris.", &[("Seine", "flows through", "Paris")]),
        document(
            "louvre",
            "Louvre",
            "The Louvre is a museum in Paris and shows the Mona Lisa.",
            &[("Louvre", "lies in", "Paris"), ("Louvre", "shows", "Mona Lisa")],
        ),
        document("mona", "Mona Lisa", "Leonardo painted the Mona Lisa.", &[("Mona Lisa", "painted by", "Leonardo")]),
        document("thames", "Thames", "The Thames is a river through London.", &[("Thames", "flows through", "London")]),
        document("again", "", "Through Paris flows the river.", &[("Seine", "flows through", "Paris")]),
        document("odd", "???", "Nothing much.", &[("??", "is", "!!")]),
    ];
    built(documents)
}

fn built(documents: Vec<Document>) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("index");
    let embed = HashEmbed::default();
    build(Corpus::from_documents("test", documents), &embed, &out, &BuildOptions::default(), &()).unwrap();
    let index = Index::open(&out, Arc::new(embed)).unwrap();
    (dir, index)
}

fn query(text: &str, k: usize) -> Query {
    let kag = KagOptions { relevance: Relevance::Cosine {}, threshold: 0.2, ..KagOptions::default() };
    Query { kag, ..Query::new(text, Mode::Kag, k) }
}

fn ask(index: &Index, query: &Query) -> Evidence {
    search(index, index.graph().unwrap(), query, query.text.trim(), None).unwrap()
}

/// Rebuilds the graph from the trace as a full matrix, and repeats the walk.
fn masses_again(shown: &KagTrace) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut names: Vec<&str> = Vec::new();
    names.extend(shown.entities.iter().map(|entity| entity.name.as_str()));
    names.extend(shown.chunks.iter().map(|chunk| chunk.title.as_str()).filter(|title| !title.is_empty()));
    names.extend(shown.triples.iter().flat_map(|triple| [triple.subject.as_str(), triple.object.as_str()]));
    let chunks = shown.chunks.len();
    let triples = shown.triples.len();
    let entity = |name: &str| 1 + chunks + triples + names.iter().position(|other| *other == name).unwrap();
    let nodes = 1 + chunks + triples + names.len();
    let mut matrix = vec![vec![0.0_f64; nodes]; nodes];
    let mut join = |a: usize, b: usize, weight: f64| {
        if a != b {
            (matrix[a][b], matrix[b][a]) = (weight, weight);
        }
    };
    for (place, chunk) in shown.chunks.iter().enumerate() {
        join(0, 1 + place, chunk.relevance);
        if !chunk.title.is_empty() {
            join(1 + place, entity(&chunk.title), 1.0);
        }
    }
    for (place, triple) in shown.triples.iter().enumerate() {
        let node = 1 + chunks + place;
        join(0, node, triple.relevance);
        let head = entity(&triple.subject);
        let tail = entity(&triple.object);
        join(head, tail, 1.0);
        for member in std::iter::once(node).chain(triple.chunks.iter().map(|chunk| 1 + chunk)) {
            join(member, head, 1.0);
            join(member, tail, 1.0);
            join(member, node, 1.0);
        }
    }
    let mut start = vec![0.0; nodes];
    start[0] = 1.0;
    shown.entities.iter().for_each(|key| start[entity(&key.name)] = 0.5);
    let sums: Vec<f64> = (0..nodes).map(|column| matrix.iter().map(|row| row[column]).sum()).collect();
    let mut mass = start.clone();
    for _ in 0..shown.options.iterations {
        let step = |row: usize| -> f64 {
            (0..nodes).filter(|&column| sums[column] > 0.0).map(|c| matrix[row][c] / sums[c] * mass[c]).sum()
        };
        let stay = 1.0 - shown.options.damping;
        let go = shown.options.damping;
        mass = (0..nodes).map(|row| go * step(row) + stay * start[row]).collect();
    }
    let keys = shown.entities.iter().map(|key| mass[entity(&key.name)]).collect();
    (mass[1..=chunks].to_vec(), mass[1 + chunks..=chunks + triples].to_vec(), keys)
}

fn near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} is not {b:?}");
}

#[test]
fn what_is_shown_gives_the_same_ranking_again() {
    let (_dir, index) = index();
    for (text, entities) in [
        ("Who painted the Mona Lisa in the Louvre?", vec![]),
        ("Which river flows through Paris?", vec!["Paris".to_owned(), " paris ".to_owned(), "Nowhere!".to_owned()]),
        ("something else altogether", vec![]),
    ] {
        for k in [1, 4, 50] {
            let query = Query { entities: entities.clone(), ..query(text, k) };
            let evidence = ask(&index, &query);
            assert_eq!(evidence, ask(&index, &query), "the same question has the same answer");
            let shown = evidence.association.as_ref().unwrap();
            let (chunks, triples, keys) = masses_again(shown);
            near(&chunks, &shown.chunks.iter().map(|chunk| chunk.mass).collect::<Vec<_>>());
            near(&triples, &shown.triples.iter().map(|triple| triple.mass).collect::<Vec<_>>());
            near(&keys, &shown.entities.iter().map(|entity| entity.mass).collect::<Vec<_>>());

            let mut all: Vec<f64> = chunks.into_iter().chain(triples).collect();
            all.sort_by(|a, b| b.total_cmp(a));
            let hits = evidence.hits.iter().map(|hit| (hit.rank, hit.score));
            let triples = evidence.triples.iter().map(|triple| (triple.rank, triple.score));
            let mut ranked: Vec<(usize, f32)> = hits.chain(triples).collect();
            ranked.sort_by_key(|&(rank, _)| rank);
            assert_eq!(ranked.len(), k.min(all.len()));
            for ((place, (rank, score)), mass) in ranked.into_iter().enumerate().zip(&all) {
                assert_eq!(rank, place + 1, "chunks and triples share their ranks");
                assert!((f64::from(score) - mass).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn entities_are_given_or_found_in_the_question() {
    let (_dir, index) = index();
    let names = |query: &Query| {
        let shown = ask(&index, query).association.unwrap();
        shown.entities.into_iter().map(|entity| (entity.name, entity.given)).collect::<Vec<_>>()
    };
    let linked = names(&query("Who painted the Mona Lisa in the Louvre?", 3));
    assert_eq!(linked, [("mona lisa".to_owned(), false), ("louvre".to_owned(), false)]);
    let given = Query { entities: vec!["Mona Lisa".into(), "!".into()], ..query("Who painted it?", 3) };
    assert_eq!(names(&given), [("mona lisa".to_owned(), true)]);
    assert_eq!(names(&query("Who knows?", 3)), []);
    let many = |count| Query { entities: vec!["Paris".into(); count], ..query("Who?", 3) };
    many(ENTITIES).check().unwrap();
    assert!(matches!(many(ENTITIES + 1).check(), Err(InvalidOption { name: "entities", .. })));
}

#[test]
fn triples_know_their_sources_and_join_them() {
    let (_dir, index) = index();
    let evidence = ask(&index, &query("Which river flows through Paris?", 50));
    let seine = evidence.triples.iter().find(|triple| triple.subject == "Seine").unwrap();
    assert_eq!(seine.passages, ["seine", "again"]);
    let shown = evidence.association.unwrap();
    let triple = shown.triples.iter().find(|triple| triple.subject == "seine").unwrap();
    let sources: BTreeSet<&str> = triple.chunks.iter().map(|&place| shown.chunks[place].passage.as_str()).collect();
    assert_eq!(sources, BTreeSet::from(["again", "seine"]));
    // The phrase without letters is excluded, because it would be similar to everything.
    assert!(shown.entities.iter().all(|entity| entity.phrases.iter().all(|found| !found.phrase.is_empty())));
}

#[test]
fn triples_are_shown_in_the_words_of_their_passage() {
    let documents = vec![
        document("first", "A", "One.", &[("Marathon", "has", "runners"), ("Marathon", "Distance", "42.195 km")]),
        document("again", "B", "Two.", &[("MARATHON", "distance", "42 195 KM")]),
        document("logic", "C", "Three.", &[("Kurt G\u{f6}del", "born in", "Br\u{fc}nn")]),
        document("japan", "D", "Four.", &[("Tokyo", "Japanese name", "\u{6771}\u{4eac}")]),
    ];
    let (_dir, index) = built(documents);
    // Every phrase is found, and so is every fact.
    let plain = query("How long is a marathon?", 50);
    let evidence = ask(&index, &Query { kag: KagOptions { entities: 50, ..plain.kag }, ..plain });
    let parts = |hit: &TripleHit| [hit.subject.clone(), hit.relation.clone(), hit.object.clone()];
    let shown: BTreeSet<[String; 3]> = evidence.triples.iter().map(parts).collect();
    let stated = [
        ["Marathon", "has", "runners"],
        ["Marathon", "Distance", "42.195 km"],
        ["Kurt G\u{f6}del", "born in", "Br\u{fc}nn"],
        ["Tokyo", "Japanese name", "\u{6771}\u{4eac}"],
    ];
    assert_eq!(shown, BTreeSet::from(stated.map(|triple| triple.map(str::to_owned))));
    // The normal form identifies and ranks them.
    let known = evidence.association.unwrap().triples;
    assert!(known.iter().any(|triple| triple.object == "42 195 km") && known.iter().any(|t| t.object.is_empty()));
}

#[test]
fn a_deadline_that_has_passed_is_kept() {
    let (_dir, index) = index();
    let late = query("Paris", 3).deadline(Instant::now());
    let error = search(&index, index.graph().unwrap(), &late, "Paris", None).unwrap_err();
    assert!(matches!(error, IndexError::Deadline { .. }));
}

#[test]
fn a_reranker_weighs_chunks_and_triples() {
    let (_dir, plain) = index();
    let question = "Which river flows through Paris?";
    let without = ask(&plain, &query(question, 50));
    let forced = query(question, 50).reranked();
    let error = search(&plain, plain.graph().unwrap(), &forced, question, None).unwrap_err();
    assert!(matches!(error, IndexError::NoReranker), "{error}");

    let index = plain.with_reranker(Arc::new(WordReranker));
    let evidence = ask(&index, &query(question, 50));
    let shown = evidence.association.as_ref().unwrap();
    let (chunks, triples, _) = masses_again(shown);
    near(&chunks, &shown.chunks.iter().map(|chunk| chunk.mass).collect::<Vec<_>>());
    near(&triples, &shown.triples.iter().map(|triple| triple.mass).collect::<Vec<_>>());
    let scores = |texts: &[&str]| WordReranker.rerank(question, texts).unwrap();
    let text = "Seine\nThe Seine is a river through Paris.";
    let seine = shown.chunks.iter().find(|chunk| chunk.passage == "seine").unwrap();
    assert_eq!(seine.relevance, f64::from(scores(&[text])[0].relevance));
    let flows = shown.triples.iter().find(|triple| triple.subject == "seine").unwrap();
    assert_eq!(flows.relevance, f64::from(scores(&["seine flows through paris"])[0].relevance));
    assert!(shown.chunks.is_sorted_by(|a, b| a.relevance >= b.relevance));
    let hit = evidence.hits.iter().find(|hit| hit.passage.id == "seine").unwrap();
    assert_eq!(f64::from(hit.path.rerank.unwrap().relevance), seine.relevance);

    let mut refused = query(question, 50);
    refused.rerank.wanted = Some(false);
    assert_eq!(ask(&index, &refused), without, "the reranker is left out on request");
    // A graph of few chunks takes the reranker's best among more candidates.
    let kag = KagOptions { chunks: 1, triples: 1, ..query(question, 1).kag };
    let narrow = ask(&index, &Query { kag, ..query(question, 1) });
    let narrow = narrow.association.unwrap();
    assert_eq!((narrow.chunks.len(), narrow.triples.len()), (1, 1));
    assert_eq!(narrow.chunks[0].passage, shown.chunks[0].passage);
}

/// Recorder of the stages of a search.
#[derive(Clone, Default)]
struct Stages(Arc<Mutex<Vec<String>>>);

impl Subscriber for Stages {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            if field.name() == "stage" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn each_stage_is_told() {
    let (_dir, index) = index();
    let stages = Stages::default();
    let asked = query("Who painted the Mona Lisa in the Louvre?", 3);
    tracing::subscriber::with_default(stages.clone(), || ask(&index, &asked));
    let mut told = std::mem::take(&mut *stages.0.lock().unwrap());
    told.dedup();
    let expected = [
        "the query was embedded",
        "the vector search",
        "the phrases were searched",
        "the facts were searched",
        "the passages were read",
        "the graph was made",
    ];
    assert_eq!(told, expected.map(|stage| format!("{stage:?}")));
}

#[test]
fn numbers_out_of_range_are_refused() {
    let bad = |change: fn(&mut KagOptions)| {
        let mut query = query("x", 1);
        change(&mut query.kag);
        matches!(query.check(), Err(InvalidOption { name: "kag", .. }))
    };
    assert!(!bad(|_| ()));
    assert!(bad(|kag| kag.damping = 1.0) && bad(|kag| kag.damping = f64::NAN) && bad(|kag| kag.threshold = -0.1));
    assert!(bad(|kag| kag.iterations = 0) && bad(|kag| kag.iterations = 1001) && bad(|kag| kag.chunks = 0));
    assert!(bad(|kag| kag.relevance = Relevance::Sigmoid { slope: f64::INFINITY, center: 0.0 }));
}

#[test]
fn what_a_relevance_does_not_read_is_refused() {
    let read = |relevance: &str| serde_json::from_str::<KagOptions>(&format!("{{\"relevance\": {relevance}}}"));
    assert_eq!(read(r#"{"kind": "cosine"}"#).unwrap().relevance, Relevance::Cosine {});
    assert_eq!(serde_json::to_value(Relevance::Cosine {}).unwrap(), serde_json::json!({"kind": "cosine"}));
    let earlier = read(r#"{"kind": "sigmoid", "slope": 20, "centre": 0.3}"#).unwrap().relevance;
    assert_eq!(earlier, Relevance::Sigmoid { slope: 20.0, center: 0.3 });
    for (relevance, named) in [
        (r#"{"kind": "cosine", "slope": 20}"#, "`slope`"),
        (r#"{"kind": "sigmoid", "slope": 20, "center": 0.3, "middle": 0.5}"#, "`middle`"),
    ] {
        let error = read(relevance).unwrap_err().to_string();
        assert!(error.contains("unknown field") && error.contains(named), "{error}");
    }
}
