//! Measures how building scales with the corpus. Not run with the other tests; `WAYMARK_PASSAGES` sets the number of
//! generated passages, of five triples each.
#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::batch_embedder::BatchEmbedder;
use crate::corpus::Document;
use crate::embed::fake::HashEmbed;
use crate::embedding_cache::EmbeddingCache;
use crate::layout::graph_file;
use crate::progress::{BuildPhase, BuildProgress};
use crate::prompts::Prompts;
use crate::store::{PassageStore, StoreWriter};

const DIMS: usize = 384;

/// Start of the measurement, and begin and end of each phase in seconds.
struct Times(Instant, Mutex<BTreeMap<String, (f64, f64)>>);

impl BuildProgress for Times {
    fn update(&self, phase: BuildPhase, _: u64, _: Option<u64>) {
        let now = self.0.elapsed().as_secs_f64();
        self.1.lock().unwrap().entry(phase.to_string()).or_insert((now, now)).1 = now;
    }
}

/// Random number below `limit`, small ones far more often, as names are distributed in texts.
fn skewed(state: &mut u64, limit: f64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let even = (*state >> 11) as f64 / (1_u64 << 53) as f64;
    (limit * even * even * even) as u64
}

fn statements(passage: usize, passages: usize, state: &mut u64) -> Vec<Triple> {
    let mut name = || {
        let name = skewed(state, 8.0 * passages as f64);
        format!("given{} family{}", name % 5003, name / 7)
    };
    let about = format!("given{} title{passage}", passage % 5003);
    (0..5).map(|i| Triple::new(about.clone(), format!("relation {}", passage % 97 + i), name())).collect()
}

#[test]
#[ignore = "measures: WAYMARK_PASSAGES says how many"]
fn growth() {
    let passages: usize = std::env::var("WAYMARK_PASSAGES").map_or(10_000, |count| count.parse().unwrap());
    let temp = tempfile::tempdir().unwrap();
    let embed = HashEmbed::new(DIMS);
    let mut state = 88_172_645_463_325_252;
    let path = |name| temp.path().join(name);
    let mut store = StoreWriter::create(&path("store")).unwrap();
    let mut triples = TripleWriter::create(&path(graph_file::TRIPLES)).unwrap();
    for number in 0..passages {
        let id = number.to_string();
        let text = "A passage.".to_owned();
        store.add(&Document { id, title: String::new(), text, triples: None, metadata: None }).unwrap();
        triples.add(number as u32, &statements(number, passages, &mut state), TripleOrigin::Given).unwrap();
    }
    store.finish().unwrap();
    let store = PassageStore::open(&path("store")).unwrap();
    let prompts = &Prompts::default();
    let memory = EmbeddingCache::open(temp.path(), &embed, prompts, false).unwrap();
    let embedding = BatchEmbedder { embed: &embed, prompts, batch: 64, memory: &memory };
    let times = Times(Instant::now(), Mutex::default());
    let draft = GraphDraft { dir: temp.path(), store: &store, embedding, previous: None, threads: 2, progress: &times };
    let info = draft.build(triples, None, None).unwrap();
    let built = times.0.elapsed().as_secs_f64();
    println!("{info:?}\nbuilt in {built:.1} s, {:.0} triples/s", info.triples as f64 / built);
    times.1.into_inner().unwrap().iter().for_each(|(phase, (from, to))| println!("{phase}: {from:.1} s to {to:.1} s"));
    let start = Instant::now();
    let graph = Graph::open(temp.path(), &info, passages, DIMS).unwrap();
    println!("opened in {:.2} s, {} synonyms", start.elapsed().as_secs_f64(), graph.base.synonyms.len());
    for name in graph_file::ALL {
        println!("{name}: {} MB", std::fs::metadata(path(name)).unwrap().len() / 1_000_000);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.starts_with("VmHWM") || line.starts_with("RssAnon"))
        .for_each(|line| println!("{line}"));
}
