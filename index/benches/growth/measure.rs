//! Builds and searches a corpus of one size.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use waymark_index::{BuildOptions, Corpus, CorpusOptions, Index, Manifest, Mode, OpenOptions, Query, Ranking, build};

use super::hash::HashEmbed;
use super::phases::Phases;
use super::{memory, synthetic};

/// Number of questions searched in each mode.
const QUESTIONS: usize = 200;
const K: usize = 5;

/// Names of the columns, in seconds, MiB, and milliseconds per sequential search.
pub const HEADER: &str = "passages,dims,triples,phrases,facts,edges,build_s,build_peak_mib,disk_mib,open_s,\
search_peak_mib,bm25_p50_ms,bm25_p95_ms,dense_p50_ms,dense_p95_ms,fused_p50_ms,fused_p95_ms,graph_p50_ms,graph_p95_ms,\
hybrid_p50_ms,hybrid_p95_ms";

/// Builds and searches an index. Returns a row of the table, including the line break.
pub fn run(passages: usize, dims: usize, parent: &Path) -> String {
    let dir = tempfile::tempdir_in(parent).unwrap();
    let corpus = dir.path().join("corpus.jsonl");
    let out = dir.path().join("index");
    synthetic::write(&corpus, passages);
    let embed = HashEmbed::new(dims);
    memory::forget();
    let started = Instant::now();
    let phases = Phases::default();
    let options = BuildOptions { journal: false, ..BuildOptions::default() };
    let corpus = Corpus::open(&corpus, &CorpusOptions::default()).unwrap();
    let manifest = build(corpus, &embed, &out, &options, &phases).unwrap().manifest;
    let mut row = vec![passages as f64, dims as f64];
    row.extend(graph(&manifest));
    row.extend([started.elapsed().as_secs_f64(), memory::peak()]);
    row.push(manifest.files.values().map(|file| file.bytes).sum::<u64>() as f64 / f64::from(1 << 20));
    for (phase, seconds) in phases.seconds() {
        eprintln!("{passages} passages: {phase} {seconds:.1} s");
    }

    memory::forget();
    let started = Instant::now();
    let index =
        Index::open_with(&out, Arc::new(embed), &OpenOptions { verify: false, ..OpenOptions::default() }).unwrap();
    row.push(started.elapsed().as_secs_f64());
    let questions = synthetic::questions(QUESTIONS, passages);
    let mut times = Vec::new();
    for ranking in [Ranking::Bm25, Ranking::Dense, Ranking::Fused] {
        times.extend(search(&index, &questions, Mode::Passage, ranking));
    }
    for mode in [Mode::Graph, Mode::Hybrid] {
        times.extend(search(&index, &questions, mode, Ranking::Dense));
    }
    row.push(memory::peak());
    row.extend(times);
    let cells: Vec<String> = row.iter().map(|value| cell(*value)).collect();
    format!("{}\n", cells.join(","))
}

/// Number of triples, phrases, facts and edges.
fn graph(manifest: &Manifest) -> [f64; 4] {
    let Some(graph) = &manifest.graph else { return [0.0; 4] };
    [graph.triples, graph.phrases, graph.facts, graph.edges].map(|count| count as f64)
}

/// Median and 95th percentile in milliseconds, without the first search. NaN if the index lacks the mode.
fn search(index: &Index, questions: &[String], mode: Mode, ranking: Ranking) -> [f64; 2] {
    if !index.modes().contains(&mode) {
        return [f64::NAN; 2];
    }
    let mut times: Vec<f64> = questions
        .iter()
        .map(|question| {
            let query = Query::new(question, mode, K).ranking(ranking);
            let started = Instant::now();
            let evidence = index.search(&query).unwrap();
            assert!(!evidence.hits.is_empty(), "{question}");
            started.elapsed().as_secs_f64() * 1e3
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    [0.5, 0.95].map(|share| times[(share * times.len() as f64).ceil() as usize - 1])
}

/// Formats whole numbers as such, and others with three decimals.
fn cell(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
