//! Measures recall and speed of the nearest-neighbor graph against an exact scan, with several numbers of candidates: whole
//! searches, which read their passages, and the graph alone, which returns numbers: `cargo bench -p waymark-index --bench
//! vector -- [--vectors FILE --dims N | --count N --dims N] [--dump DIR]`.
//!
//! Vectors come from a flat file of little-endian `f32`, or are generated as points around centers, like texts on
//! common subjects. The last 500 are the queries. `--dump` writes them for `scripts/bench/hnsw.py`, which measures
//! hnswlib on the same data; run the two one after the other, never at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use waymark_index::{
    BuildOptions, Corpus, Document, Embed, EmbedError, Index, Mode, OpenOptions, Query, Ranking, build,
};

const QUERIES: usize = 500;
const K: usize = 10;

fn main() {
    let options = Options::read();
    let rows = options.rows();
    assert!(rows.len() > 2 * QUERIES, "{} vectors are too few", rows.len());
    let count = rows.len() - QUERIES;
    if let Some(dir) = &options.dump {
        dump(dir, &rows, options.dims);
    }
    let embed = Arc::new(Table { rows, dims: options.dims });
    let dir = tempfile::tempdir().unwrap();
    let document = |row: usize| Document {
        id: row.to_string(),
        title: String::new(),
        text: row.to_string(),
        triples: None,
        metadata: None,
    };
    let corpus = Corpus::from_documents("vectors", (0..count).map(document).collect());
    let started = Instant::now();
    let built = BuildOptions { journal: false, ..BuildOptions::default() };
    build(corpus, embed.as_ref(), dir.path(), &built, &()).unwrap();
    println!("{count} vectors of {} numbers, {QUERIES} queries, k = {K}", options.dims);
    println!(
        "built in {:.1} s with {} threads, store and BM25 included",
        started.elapsed().as_secs_f64(),
        built.threads
    );

    let open = |exact_below, candidates| {
        let options = OpenOptions { exact_below, candidates, ..OpenOptions::default() };
        Index::open_with(dir.path(), Arc::clone(&embed) as _, &options).unwrap()
    };
    let queries = &embed.rows[count..];
    let scan = open(usize::MAX, 1);
    let (exact, seconds) = times(queries, &|place, _| search(&scan, count + place));
    println!("exact scan             {:>9.0} queries/s", QUERIES as f64 / seconds);
    for candidates in [32, 64, 128, 256] {
        let index = open(0, candidates);
        let (found, seconds) = times(queries, &|place, _| search(&index, count + place));
        print(&format!("whole search, {candidates:>3}"), &exact, &found, seconds);
        let (found, seconds) = times(queries, &|_, query| {
            index.nearest(query, K).unwrap().into_iter().map(|(number, _)| number).collect()
        });
        print(&format!("graph alone,  {candidates:>3}"), &exact, &found, seconds);
    }
}

/// Numbers of the passages that a query found.
type Found = HashSet<u32>;

/// Returns the results of each query, and the seconds of the fastest of three sequential rounds.
fn times(queries: &[Vec<f32>], find: &dyn Fn(usize, &[f32]) -> Found) -> (Vec<Found>, f64) {
    let mut best = f64::INFINITY;
    let mut found = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        found = queries.iter().enumerate().map(|(place, query)| find(place, query)).collect();
        best = best.min(started.elapsed().as_secs_f64());
    }
    (found, best)
}

fn search(index: &Index, row: usize) -> Found {
    let query = Query::new(row.to_string(), Mode::Passage, K).ranking(Ranking::Dense);
    index.search(&query).unwrap().hits.into_iter().map(|hit| hit.passage.id.parse().unwrap()).collect()
}

fn print(name: &str, exact: &[Found], found: &[Found], seconds: f64) {
    let hits = exact.iter().zip(found).map(|(exact, found)| exact.intersection(found).count()).sum::<usize>();
    println!(
        "{name:<22} {:>9.0} queries/s  recall@{K} {:.4}",
        QUERIES as f64 / seconds,
        hits as f64 / (QUERIES * K) as f64
    );
}

/// Embedder that maps the number of a row to that row.
#[derive(Debug)]
struct Table {
    rows: Vec<Vec<f32>>,
    dims: usize,
}

impl Embed for Table {
    fn id(&self) -> &str {
        "table"
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        Ok(texts.iter().map(|text| self.rows[text.parse::<usize>().unwrap()].clone()).collect())
    }
}

struct Options {
    vectors: Option<PathBuf>,
    count: usize,
    dims: usize,
    dump: Option<PathBuf>,
}

impl Options {
    fn read() -> Options {
        let mut options = Options { vectors: None, count: 20_000, dims: 384, dump: None };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
            match name.as_str() {
                "--vectors" => options.vectors = Some(value.into()),
                "--count" => options.count = value.parse().unwrap(),
                "--dims" => options.dims = value.parse().unwrap(),
                "--dump" => options.dump = Some(value.into()),
                _ => panic!("{name} is not known"),
            }
        }
        options
    }

    /// Vectors of length 1, queries last.
    fn rows(&self) -> Vec<Vec<f32>> {
        let Some(path) = &self.vectors else { return clustered(self.count + QUERIES, self.dims) };
        let bytes = std::fs::read(path).unwrap();
        let numbers = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect::<Vec<_>>();
        let rows = numbers.chunks_exact(self.dims).map(<[f32]>::to_vec).collect::<Vec<_>>();
        // A stride coprime to the count draws queries from everywhere.
        let step = (1..).map(|i| 7919 + 2 * i).find(|step| gcd(*step, rows.len()) == 1).unwrap();
        (0..rows.len()).map(|i| rows[i * step % rows.len()].clone()).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Points around as many centers as the square root of their number: half of a point is its center, half is its own.
fn clustered(count: usize, dims: usize) -> Vec<Vec<f32>> {
    let mut random = Random(42);
    let mut row = || (0..dims).map(|_| random.normal()).collect::<Vec<_>>();
    let centers: Vec<_> = (0..count.isqrt()).map(|_| row()).collect();
    (0..count)
        .map(|i| {
            let mut point = row();
            point.iter_mut().zip(&centers[i % centers.len()]).for_each(|(own, center)| *own += center);
            unit(&mut point);
            point
        })
        .collect()
}

fn unit(row: &mut [f32]) {
    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    row.iter_mut().for_each(|x| *x /= length);
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Approximately normal number: the sum of twelve uniform numbers minus six.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }
}

/// Writes passages and queries as flat files.
fn dump(dir: &Path, rows: &[Vec<f32>], dims: usize) {
    std::fs::create_dir_all(dir).unwrap();
    let (passages, queries) = rows.split_at(rows.len() - QUERIES);
    for (name, rows) in [("passages.f32", passages), ("queries.f32", queries)] {
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    std::fs::write(dir.join("dims"), dims.to_string()).unwrap();
}
