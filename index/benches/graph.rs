//! A whole graph search, and what each of its stages takes, the embedding of the query left out:
//! `cargo bench -p waymark-index --bench graph -- [INDEX or passages] [rounds]`.
//!
//! INDEX is the folder of an index with a graph; a number makes up a corpus of so many passages with nine triples each,
//! embedded as bags of hashed words. Queries are facts, mixed in pairs: their words, and their vectors.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use waymark_index::{
    BuildOptions, Corpus, Document, Embed, EmbedError, GraphVariant, Index, Manifest, Mode, OpenOptions, Query,
    Ranking, Triple, build,
};

const QUERIES: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let first = arguments.first().map_or("2000", String::as_str);
    let rounds = arguments.get(1).map_or(5, |text| text.parse().unwrap());
    match first.parse() {
        Ok(passages) => {
            let dir = tempfile::tempdir().unwrap();
            make_up(passages, dir.path());
            measure(dir.path(), rounds);
        }
        Err(_) => measure(Path::new(first), rounds),
    }
}

fn measure(dir: &Path, rounds: usize) {
    let manifest = Manifest::read(dir).unwrap();
    let embed = Arc::new(Given {
        id: manifest.embedder.id,
        dims: manifest.embedder.dims,
        next: AtomicUsize::new(0),
        queries: Mutex::default(),
    });
    let started = Instant::now();
    let index = Index::open_with(dir, Arc::clone(&embed) as _, &OpenOptions::default()).unwrap();
    let graph = index.graph().expect("an index with a graph");
    println!(
        "{} passages, {} phrases, {} facts, {} entries of the adjacency, {} numbers per vector; opened in {:.0} ms",
        graph.passages(),
        graph.phrases(),
        graph.facts(),
        graph.adjacency().targets.len(),
        embed.dims,
        started.elapsed().as_secs_f64() * 1e3
    );
    let fact = |number: usize| graph.fact_vector((number % graph.facts()) as u32);
    let mixed = |i: usize| fact(i * 7919).iter().zip(fact(i * 104_729 + 1)).map(|(a, b)| a + 0.6 * b).collect();
    *embed.queries.lock().unwrap() = (0..QUERIES).map(mixed).collect();
    let text = |number: usize| graph.fact_text((number % graph.facts()) as u32);
    let texts: Vec<String> =
        (0..QUERIES).map(|i| format!("{} and {}?", text(i * 7919), text(i * 104_729 + 1))).collect();
    let stages = Stages::default();
    let clock = stages.0.clone();
    tracing::subscriber::set_global_default(stages).unwrap();
    let local = OpenOptions { walk_below: 0, ..OpenOptions::default() };
    let local = Index::open_with(dir, Arc::clone(&embed) as _, &local).unwrap();
    for (name, index, mode, variant) in [
        ("graph", &index, Mode::Graph, GraphVariant::RouteRag),
        ("graph, HippoRAG 2", &index, Mode::Graph, GraphVariant::HippoRag),
        ("graph, Waymark", &index, Mode::Graph, GraphVariant::Waymark),
        ("hybrid", &index, Mode::Hybrid, GraphVariant::RouteRag),
        ("triples, GraphRAG-R1", &index, Mode::Triples, GraphVariant::GraphRagR1),
        ("graph, by a local walk", &local, Mode::Graph, GraphVariant::RouteRag),
        ("passage", &index, Mode::Passage, GraphVariant::RouteRag),
    ] {
        println!("{name}: {}", times(index, mode, variant, rounds, (&texts, &clock)));
        for (stage, mut spent) in std::mem::take(&mut clock.lock().unwrap().shares) {
            spent.sort_by(f64::total_cmp);
            println!("    {:>8.3} ms  from before {stage}", spent[spent.len() / 2]);
        }
    }
}

/// Searches and says how long that took.
fn times(
    index: &Index,
    mode: Mode,
    variant: GraphVariant,
    rounds: usize,
    (texts, clock): (&[String], &Mutex<Clock>),
) -> String {
    let ranking = if mode == Mode::Passage { Ranking::Dense } else { mode.ranking_beside(variant) };
    let mut times = Vec::new();
    for round in 0..=rounds {
        for text in texts {
            let query = Query { graph: variant.into(), ..Query::new(text, mode, 5).ranking(ranking) };
            clock.lock().unwrap().begun.clear();
            let started = Instant::now();
            let evidence = index.search(&query).unwrap();
            // The first round warms up.
            if round > 0 {
                times.push(started.elapsed().as_secs_f64() * 1e3);
                clock.lock().unwrap().end();
            }
            assert!(!evidence.hits.is_empty());
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[times.len() * share / 100];
    format!("p50 {:.3} ms, p95 {:.3} ms, least {:.3} ms", at(50), at(95), times[0])
}

/// Hands out the vectors of queries in turn.
struct Given {
    id: String,
    dims: usize,
    next: AtomicUsize,
    queries: Mutex<Vec<Vec<f32>>>,
}

impl Embed for Given {
    fn id(&self) -> &str {
        &self.id
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let queries = self.queries.lock().unwrap();
        Ok(texts.iter().map(|_| queries[self.next.fetch_add(1, Ordering::Relaxed) % queries.len()].clone()).collect())
    }
}

/// Notes when each stage of a search begins: the index says so in an event.
#[derive(Default)]
struct Stages(Arc<Mutex<Clock>>);

#[derive(Default)]
struct Clock {
    begun: Vec<(String, Instant)>,
    shares: BTreeMap<String, Vec<f64>>,
}

impl Clock {
    fn end(&mut self) {
        let ends: Vec<Instant> = self.begun.iter().skip(1).map(|(_, at)| *at).chain([Instant::now()]).collect();
        for ((stage, at), (place, end)) in self.begun.drain(..).zip(ends.into_iter().enumerate()) {
            self.shares.entry(format!("{} ({stage})", place + 1)).or_default().push((end - at).as_secs_f64() * 1e3);
        }
    }
}

struct Stage(Option<String>);

impl Visit for Stage {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stage" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Stages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("waymark_index::search")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut stage = Stage(None);
        event.record(&mut stage);
        if let Some(stage) = stage.0 {
            self.0.lock().unwrap().begun.push((stage, Instant::now()));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Builds an index of made-up passages: each is about a name of its own and two that others are about.
fn make_up(passages: usize, dir: &Path) {
    let mut random = 7_u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % limit
    };
    let name = |i: usize| format!("name{i} kind{}", i % 97);
    let mut documents = Vec::new();
    for passage in 0..passages {
        let triple = |i: usize, other: usize| {
            let object = match i % 3 {
                0 => name(other % passages),
                1 => format!("thing{other}"),
                _ => format!("place{} of part{}", passage * 5 + i, other % 50),
            };
            Triple { subject: name(passage), relation: format!("relation{}", other % 20), object }
        };
        let triples: Vec<Triple> = (0..9).map(|i| triple(i, below(passages * 4))).collect();
        let text = triples.iter().map(|t| format!("{} {} {}.", t.subject, t.relation, t.object)).collect::<Vec<_>>();
        documents.push(Document {
            id: passage.to_string(),
            title: name(passage),
            text: text.join(" "),
            triples: Some(triples),
            metadata: None,
        });
    }
    let options = BuildOptions { journal: false, ..BuildOptions::default() };
    build(Corpus::from_documents("made up", documents), &Words, dir, &options, &()).unwrap();
}

/// Bags of hashed words.
struct Words;

impl Embed for Words {
    fn id(&self) -> &str {
        "words"
    }

    fn dims(&self) -> usize {
        384
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(texts.iter().map(|text| words(text)).collect())
    }
}

fn words(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0; 384];
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let mut state = word
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        for x in &mut vector {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *x += (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }
    vector
}
