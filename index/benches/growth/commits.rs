//! Commits into an index of one size, alone and while it is searched and merged, as in a server.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use waymark_index::{
    BuildOptions, Changes, CommitOptions, Corpus, CorpusOptions, LiveIndex, Mode, OpenOptions, Query, Ranking, build,
};

use super::hash::HashEmbed;
use super::{memory, synthetic};

/// Names of the columns: seconds and bytes per commit of one document; documents per second while the index is
/// searched, the longest of these commits, CPU seconds per thousand documents, and the number of merges meanwhile;
/// milliseconds per search before these commits, during them, and after them without a merge, and of CPU time, which
/// other work on the machine does not change; seconds to open the index with its log; peak memory.
pub const HEADER: &str = "passages,dims,commit_p50_s,commit_p95_s,commit_bytes,documents_per_s,commit_max_s,\
cpu_s_per_thousand,merges,\
alone_fused_p50_ms,alone_fused_p95_ms,alone_fused_cpu_ms,alone_graph_p50_ms,alone_graph_p95_ms,alone_graph_cpu_ms,\
busy_fused_p50_ms,busy_fused_p95_ms,busy_fused_cpu_ms,busy_graph_p50_ms,busy_graph_p95_ms,busy_graph_cpu_ms,\
after_fused_p50_ms,after_fused_p95_ms,after_fused_cpu_ms,after_graph_p50_ms,after_graph_p95_ms,after_graph_cpu_ms,\
open_s,merge_s,peak_mib";

/// Number of documents per commit in the second part, of which one begins each second.
const BATCH: usize = 1000;

/// Bytes per second that a merge writes, and the interval of its checks, as in a server.
const MERGE_RATE: u64 = 64 << 20;
const MERGE_CHECK: Duration = Duration::from_secs(2);

/// Measures commits into an index of `passages` for `busy` seconds. Returns a row of the table, including the line
/// break.
pub fn run(passages: usize, dims: usize, parent: &Path, busy: f64) -> String {
    let temp = tempfile::tempdir_in(parent).unwrap();
    let dir = temp.path().join("index");
    let embed = Arc::new(HashEmbed::new(dims));
    base(passages, &embed, parent, &dir);
    let open = OpenOptions { verify: false, ..OpenOptions::default() };
    memory::forget();
    let live = Arc::new(LiveIndex::open(&dir, Arc::clone(&embed) as _, open.clone()).unwrap());
    // As many threads as a server leaves to commits.
    let threads = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2));
    let committing = CommitOptions { threads, ..CommitOptions::default() };
    let next = AtomicUsize::new(passages);
    let commit = |count: usize| {
        let first = next.fetch_add(count, Ordering::SeqCst);
        let documents: Vec<_> = (first..first + count).map(|number| synthetic::document(number, passages)).collect();
        let started = Instant::now();
        live.commit(Changes::upsert(documents), &committing, &()).unwrap();
        started.elapsed().as_secs_f64()
    };
    let before = written();
    let mut seconds: Vec<f64> = (0..20).map(|_| commit(1)).collect();
    let bytes = (written() - before) as f64 / 20.0;
    seconds.sort_by(f64::total_cmp);
    let mut row = vec![passages as f64, dims as f64, seconds[9], seconds[18], bytes];
    let questions = synthetic::questions(50, passages);
    let alone = search(&live, &questions, &|| false);
    live.merge_in_background(committing.clone(), Some(MERGE_RATE), MERGE_CHECK).unwrap();
    let done = AtomicBool::new(false);
    let (during, [added, merges, longest, took, cpu]) = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let started = Instant::now();
            let spent = cpu_seconds();
            let mut longest = 0.0_f64;
            let mut added = 0;
            let mut bases = BTreeSet::new();
            while started.elapsed().as_secs_f64() < busy {
                longest = longest.max(commit(BATCH));
                bases.insert(live.current().manifest().base());
                added += BATCH;
                std::thread::sleep(Duration::from_secs((added / BATCH) as u64).saturating_sub(started.elapsed()));
            }
            done.store(true, Ordering::SeqCst);
            let cpu = cpu_seconds() - spent;
            [added as f64, (bases.len() - 1) as f64, longest, started.elapsed().as_secs_f64(), cpu]
        });
        let during = search(&live, &questions, &|| !done.load(Ordering::SeqCst));
        (during, working.join().unwrap())
    });
    row.extend([added / took, longest, 1e3 * cpu / added, merges]);
    row.extend(alone);
    row.extend(during);
    row.extend(search(&live, &questions, &|| false));
    let started = Instant::now();
    let opened = LiveIndex::open(&dir, embed, open).unwrap();
    row.push(started.elapsed().as_secs_f64());
    assert_eq!(opened.state().passages, live.state().passages);
    drop(opened);
    let started = Instant::now();
    live.merge(&committing, None).unwrap();
    row.extend([started.elapsed().as_secs_f64(), memory::peak()]);
    let cells: Vec<String> = row.iter().map(|value| format!("{value:.3}")).collect();
    format!("{}\n", cells.join(","))
}

/// Copies the index of this size to `dir`. It is built once and kept in `parent`.
fn base(passages: usize, embed: &HashEmbed, parent: &Path, dir: &Path) {
    let kept = parent.join(format!("growth-{passages}-{}", embed.dims));
    if !kept.join("manifest.json").exists() {
        let corpus = dir.with_extension("jsonl");
        synthetic::write(&corpus, passages);
        let options = BuildOptions { journal: false, ..BuildOptions::default() };
        let started = Instant::now();
        build(Corpus::open(&corpus, &CorpusOptions::default()).unwrap(), embed, &kept, &options, &()).unwrap();
        eprintln!("{passages} passages: built in {:.1} s", started.elapsed().as_secs_f64());
    }
    for entry in walkdir::WalkDir::new(&kept) {
        let entry = entry.unwrap();
        let target = dir.join(entry.path().strip_prefix(&kept).unwrap());
        if entry.file_type().is_dir() {
            std::fs::create_dir(&target).unwrap();
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Median and 95th percentile in milliseconds, and median of the CPU time, of fused and of graph searches. Goes on while
/// `more` returns `true`.
fn search(live: &LiveIndex, questions: &[String], more: &dyn Fn() -> bool) -> [f64; 6] {
    let mut times = [Vec::new(), Vec::new()];
    let mut cpu = [Vec::new(), Vec::new()];
    loop {
        for question in questions {
            for (place, mode) in [Mode::Passage, Mode::Graph].into_iter().enumerate() {
                let ranking = if mode == Mode::Passage { Ranking::Fused } else { Ranking::Dense };
                let query = Query::new(question, mode, 5).ranking(ranking);
                let index = live.current();
                let started = Instant::now();
                let spent = cpu_seconds();
                assert!(!index.search(&query).unwrap().hits.is_empty());
                cpu[place].push((cpu_seconds() - spent) * 1e3);
                times[place].push(started.elapsed().as_secs_f64() * 1e3);
            }
        }
        if !more() {
            break;
        }
    }
    let [fused, graph] = &mut times;
    let [fused_cpu, graph_cpu] = &mut cpu;
    [
        quantile(fused, 0.5),
        quantile(fused, 0.95),
        quantile(fused_cpu, 0.5),
        quantile(graph, 0.5),
        quantile(graph, 0.95),
        quantile(graph_cpu, 0.5),
    ]
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[(share * times.len() as f64).ceil() as usize - 1]
}

/// Time that this thread has spent on a core, in seconds. 0 where the system does not tell.
fn cpu_seconds() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = times.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.unwrap_or_default() / 1e9
}

/// Number of bytes that this process has written.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}
