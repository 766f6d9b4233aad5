//! Commits into an index of one size, alone and while it is searched.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use waymark_index::{
    BuildOptions, Changes, CommitOptions, Corpus, CorpusOptions, LiveIndex, Mode, OpenOptions, Query, Ranking, build,
};

use super::hash::HashEmbed;
use super::synthetic;

/// Names of the columns: seconds and bytes per commit of one document, documents per second while the index is searched,
/// milliseconds per search without and with these commits, and seconds of a merge.
pub const HEADER: &str = "passages,dims,commit_p50_s,commit_p95_s,commit_bytes,documents_per_s,alone_fused_p50_ms,alone_fused_p95_ms,\
alone_graph_p50_ms,alone_graph_p95_ms,busy_fused_p50_ms,busy_fused_p95_ms,busy_graph_p50_ms,busy_graph_p95_ms,open_s,merge_s";

/// Number of documents per commit, and per second, in the second part.
const BATCH: usize = 1000;
/// Duration of the second part.
const BUSY: Duration = Duration::from_secs(20);

/// Measures commits into an index. Returns a row of the table, including the line break.
pub fn run(passages: usize, dims: usize, parent: &Path) -> String {
    let temp = tempfile::tempdir_in(parent).unwrap();
    let corpus = temp.path().join("corpus.jsonl");
    let dir = temp.path().join("index");
    synthetic::write(&corpus, passages);
    let embed = HashEmbed::new(dims);
    let options = BuildOptions { journal: false, ..BuildOptions::default() };
    build(Corpus::open(&corpus, &CorpusOptions::default()).unwrap(), &embed, &dir, &options, &()).unwrap();
    let open = OpenOptions { verify: false, ..OpenOptions::default() };
    let embed = Arc::new(embed);
    let live = LiveIndex::open(&dir, Arc::clone(&embed) as _, open.clone()).unwrap();
    let committing = CommitOptions::default();
    let next = AtomicUsize::new(passages);
    let commit = |count: usize| {
        let first = next.fetch_add(count, Ordering::SeqCst);
        let documents = (first..first + count).map(|number| synthetic::document(number, passages));
        live.commit(Changes::upsert(documents), &committing, &()).unwrap()
    };
    let before = written();
    let mut seconds: Vec<f64> = (0..20)
        .map(|_| {
            let begun = Instant::now();
            commit(1);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    let bytes = (written() - before) as f64 / 20.0;
    seconds.sort_by(f64::total_cmp);
    let mut row = vec![passages as f64, dims as f64, seconds[9], seconds[18], bytes];
    let questions = synthetic::questions(50, passages);
    let alone = search(&live, &questions, &|| false);
    let done = AtomicBool::new(false);
    let begun = Instant::now();
    let (busy, added, took) = std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            let mut added = 0;
            while begun.elapsed() < BUSY {
                commit(BATCH);
                added += BATCH;
                std::thread::sleep(Duration::from_secs((added / BATCH) as u64).saturating_sub(begun.elapsed()));
            }
            done.store(true, Ordering::SeqCst);
            (added, begun.elapsed().as_secs_f64())
        });
        let busy = search(&live, &questions, &|| !done.load(Ordering::SeqCst));
        let (added, took) = committing.join().unwrap();
        (busy, added, took)
    });
    row.push(added as f64 / took);
    row.extend(alone.into_iter().chain(busy));
    let begun = Instant::now();
    let opened = LiveIndex::open(&dir, embed, open).unwrap();
    row.push(begun.elapsed().as_secs_f64());
    assert_eq!(opened.state().passages, live.state().passages);
    drop(opened);
    let begun = Instant::now();
    assert!(live.merge(&committing, None).unwrap());
    row.push(begun.elapsed().as_secs_f64());
    let cells: Vec<String> = row.iter().map(|value| format!("{value:.3}")).collect();
    format!("{}\n", cells.join(","))
}

/// Median and 95th percentile in milliseconds of fused and of graph searches. Goes on while `more` returns `true`.
fn search(live: &LiveIndex, questions: &[String], more: &dyn Fn() -> bool) -> [f64; 4] {
    let mut times = [Vec::new(), Vec::new()];
    loop {
        for question in questions {
            for (mode, times) in [Mode::Passage, Mode::Graph].into_iter().zip(&mut times) {
                let ranking = if mode == Mode::Passage { Ranking::Fused } else { Ranking::Dense };
                let query = Query::new(question, mode, 5).ranking(ranking);
                let index = live.current();
                let begun = Instant::now();
                assert!(!index.search(&query).unwrap().hits.is_empty());
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        if !more() {
            break;
        }
    }
    let [fused, graph] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.95].map(|share| times[(share * times.len() as f64).ceil() as usize - 1])
    });
    [fused[0], fused[1], graph[0], graph[1]]
}

/// Number of bytes that this process has written.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}
