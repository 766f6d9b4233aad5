//! `waymark bench search`: searches side by side, and what one that hangs does to the others.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use waymark_index::{Evidence, Index, Mode, OpenOptions, Query};
use waymark_models::kernel::Team;

use crate::agent::{Find, Search, SearchError, SearchLimits, Searcher};
use crate::cli::assembly;
use crate::cli::eval::{Questions, Way};
use crate::config::cores;
use crate::metric::quantile;

/// An index that is held up by one query.
struct Holding {
    index: Index,
    held: Duration,
}

impl Find for Holding {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        if query.text == HANG {
            std::thread::sleep(self.held);
        }
        self.index.find(query)
    }

    fn modes(&self) -> Vec<Mode> {
        Find::modes(&self.index)
    }

    fn snapshot(&self) -> u64 {
        self.index.snapshot()
    }
}

/// Searches an index from many callers at once and prints how many searches a second that makes, and what each takes.
///
/// Then the same once more while searches hang: every one that is told to is held for as long as the bench runs, its
/// caller must be told at its deadline, and nobody else be delayed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  waymark bench search --index corpus.index --questions questions.jsonl --ways passage:fused,graph"
)]
pub(crate) struct Args {
    /// The index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    /// Questions, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,

    /// Ways of searching, as in `waymark eval retrieval`; all that the index offers when not given.
    #[arg(long, value_delimiter = ',', value_name = "WAY")]
    ways: Vec<Way>,

    /// Callers at a time; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    clients: Vec<usize>,

    /// Searches that hang in the last measurement; 0 leaves it out.
    #[arg(long, default_value_t = 8)]
    hanging: usize,

    /// Seconds each measurement takes.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// How many passages.
    #[arg(long, short, default_value_t = 3)]
    k: usize,

    /// Threads that search; 0 takes one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Milliseconds one search may take.
    #[arg(long, default_value_t = 5000)]
    deadline_ms: u64,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// One measurement. Times in milliseconds.
#[derive(Debug, Serialize)]
struct Row {
    way: String,
    clients: usize,
    hanging: usize,
    searches: usize,
    per_second: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    /// The longest that any caller waited, in vain or not.
    most: f64,
    timeouts: usize,
    refused: usize,
}

/// What a search that is to hang asks for.
const HANG: &str = "\u{0}hang";

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(self.clients.iter().all(|&clients| clients > 0), "--clients must be at least 1");
        ensure!((0.1..=600.0).contains(&self.seconds), "--seconds must be from 0.1 to 600");
        let questions = Arc::new(Questions::texts(&self.questions)?);
        let (searcher, ways) = tokio::task::block_in_place(|| self.searcher())?;
        let mut rows = Vec::new();
        for &way in &ways {
            for &clients in &self.clients {
                rows.push(self.measure(&searcher, way, &questions, clients, 0).await?);
            }
            if let Some(&clients) = self.clients.last().filter(|_| self.hanging > 0) {
                rows.push(self.measure(&searcher, way, &questions, clients, self.hanging).await?);
            }
        }
        self.print(&rows)?;
        Ok(())
    }

    fn searcher(&self) -> anyhow::Result<(Searcher, Vec<Way>)> {
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let embedder = assembly::embedder(&self.embedder, self.cache.clone(), Arc::new(Team::new(1)))?;
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let index = Index::open_with(&self.index, Arc::new(embedder), &options)?;
        let ways = if self.ways.is_empty() { Way::defaults(index.modes()) } else { self.ways.clone() };
        let find = Holding { index, held: Duration::from_secs_f64(self.seconds + 1.0) };
        let timeout = Duration::from_millis(self.deadline_ms);
        let limits = SearchLimits { threads, waiting: assembly::SEARCHES_WAITING, timeout };
        Ok((Searcher::new(find, limits)?, ways))
    }

    async fn measure(
        &self,
        searcher: &Searcher,
        way: Way,
        questions: &Arc<Vec<String>>,
        clients: usize,
        hanging: usize,
    ) -> anyhow::Result<Row> {
        let deadline = (Instant::now() + Duration::from_millis(200)).min(Instant::now() + self.deadline());
        let stuck: Vec<_> = (0..hanging)
            .map(|_| {
                let (searcher, query) = (searcher.clone(), way.query(HANG, 1).deadline(deadline));
                tokio::spawn(async move { searcher.search(query.into()).await })
            })
            .collect();
        for stuck in stuck {
            ensure!(stuck.await? == Err(SearchError::Timeout), "a search that hangs was not given up at its deadline");
        }
        let begun = Instant::now();
        let end = begun + Duration::from_secs_f64(self.seconds);
        let next = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..clients)
            .map(|_| {
                let (searcher, questions, next) = (searcher.clone(), Arc::clone(questions), Arc::clone(&next));
                let k = self.k;
                tokio::spawn(async move { call(&searcher, way, &questions, &next, k, end).await })
            })
            .collect();
        let mut called = Vec::new();
        for caller in callers {
            called.extend(caller.await?);
        }
        // Searches that began before the end count, so the time until the last of them returned does too.
        row(way, clients, hanging, begun.elapsed().as_secs_f64(), &called)
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    fn print(&self, rows: &[Row]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
            return Ok(());
        }
        let head = ["clients", "hanging", "searches/s", "p50 ms", "p95 ms", "p99 ms", "most ms", "late", "refused"];
        write!(out, "{:16}", "")?;
        head.iter().try_for_each(|name| write!(out, " {name:>10}"))?;
        for row in rows {
            let Row { way, clients, hanging, per_second, p50, p95, p99, most, timeouts, refused, .. } = row;
            write!(out, "\n{way:16} {clients:>10} {hanging:>10} {per_second:>10.1}")?;
            write!(out, " {p50:>10.2} {p95:>10.2} {p99:>10.2} {most:>10.2} {timeouts:>10} {refused:>10}")?;
        }
        writeln!(out)?;
        Ok(())
    }
}

/// Searches one question after the other until `end`; the milliseconds and the outcome of each.
async fn call(
    searcher: &Searcher,
    way: Way,
    questions: &[String],
    next: &AtomicUsize,
    k: usize,
    end: Instant,
) -> Vec<(f64, Result<(), SearchError>)> {
    let mut called = Vec::new();
    while Instant::now() < end {
        let question = &questions[next.fetch_add(1, Ordering::Relaxed) % questions.len()];
        let begun = Instant::now();
        let found = searcher.search(way.query(question, k).into()).await;
        called.push((begun.elapsed().as_secs_f64() * 1e3, found.map(drop)));
    }
    called
}

fn row(
    way: Way,
    clients: usize,
    hanging: usize,
    seconds: f64,
    called: &[(f64, Result<(), SearchError>)],
) -> anyhow::Result<Row> {
    let count = |error: &SearchError| called.iter().filter(|(_, result)| result.as_ref() == Err(error)).count();
    let failed =
        |result: &Result<(), SearchError>| matches!(result, Err(SearchError::Failed(_) | SearchError::Unsupported(_)));
    if let Some((_, Err(error))) = called.iter().find(|(_, result)| failed(result)) {
        anyhow::bail!("{way} search: {error}");
    }
    let mut times: Vec<f64> = called.iter().filter(|(_, result)| result.is_ok()).map(|(time, _)| *time).collect();
    Ok(Row {
        way: way.to_string(),
        clients,
        hanging,
        searches: times.len(),
        per_second: times.len() as f64 / seconds,
        p50: quantile(&mut times, 0.5),
        p95: quantile(&mut times, 0.95),
        p99: quantile(&mut times, 0.99),
        most: called.iter().map(|(time, _)| *time).fold(0.0, f64::max),
        timeouts: count(&SearchError::Timeout),
        refused: count(&SearchError::Busy),
    })
}
