//! `waymark bench search`: concurrent searches, and the effect of hanging ones on the others.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use waymark_agent::metric::quantile;
use waymark_agent::{BlockingSearch, Search, SearchError, SearchLimits, Searcher};
use waymark_index::{Evidence, Index, Mode, OpenOptions, Query, QueryAnnouncement};
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{EmbedderArgs, Size, cores, local_index, or_cores};
use waymark_runtime::evaluate::{Questions, SearchMethod};
use waymark_runtime::query_embedder::QueryEmbedder;

/// An index in which one query hangs.
struct HangingIndex {
    index: Index,
    held: Duration,
}

impl BlockingSearch for HangingIndex {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        if query.text == HANG {
            std::thread::sleep(self.held);
        }
        self.index.find(query)
    }

    fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        if query.text == HANG { None } else { self.index.announce_query(query) }
    }

    fn modes(&self) -> Vec<Mode> {
        BlockingSearch::modes(&self.index)
    }

    fn snapshot(&self) -> u64 {
        self.index.snapshot()
    }
}

/// Searches an index from many concurrent callers and prints throughput and latency.
///
/// Then repeats the measurement while searches hang for the whole run: their callers must get a timeout at the
/// deadline, and no other search may be delayed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark bench search --index corpus.index --questions questions.jsonl \\
      --ways passage:fused,graph")]
pub(crate) struct Args {
    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", value_parser = local_index())]
    index: PathBuf,

    /// File of questions, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,

    /// Search methods, as in `waymark eval retrieval`. The default is all that the index offers.
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    ways: Vec<SearchMethod>,

    /// Numbers of concurrent callers, each measured separately.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    clients: Vec<usize>,

    /// Number of hanging searches in the last measurement; 0 skips it.
    #[arg(long, default_value_t = 8)]
    hanging: usize,

    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// Number of passages per search.
    #[arg(long, short, default_value_t = 3)]
    k: usize,

    /// Number of search threads; 0 takes one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Timeout of one search, in milliseconds.
    #[arg(long, default_value_t = 5000)]
    deadline_ms: u64,

    /// Maximum size of the cache of query vectors, such as `16MiB`, the size in a server; 0, the default, disables it.
    /// Questions are repeated, so with a cache most of them are embedded only once.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    query_cache: Size,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// One measurement. Times in milliseconds.
#[derive(Debug, Serialize)]
struct SearchLatency {
    way: String,
    clients: usize,
    hanging: usize,
    searches: usize,
    per_second: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    /// Longest wait of any caller, successful or not.
    most: f64,
    timeouts: usize,
    refused: usize,
}

/// Query of a search that has to hang.
const HANG: &str = "\u{0}hang";

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(self.clients.iter().all(|&clients| clients > 0), "--clients must be at least 1");
        ensure!((0.1..=600.0).contains(&self.seconds), "--seconds must be from 0.1 to 600");
        let questions = Arc::new(Questions::texts(&self.questions)?);
        let (searcher, ways) = tokio::task::block_in_place(|| self.searcher())?;
        let mut rows = Vec::new();
        for way in &ways {
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

    fn searcher(&self) -> anyhow::Result<(Searcher, Vec<SearchMethod>)> {
        let threads = or_cores(self.threads);
        // As many threads as a server gives to the embedder.
        let team = Arc::new(Team::new(cores()));
        let embedder = assembly::embedder(&self.embedder.resolve_for(&self.index)?, self.cache.clone(), team)?;
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let embedder = QueryEmbedder::new(Arc::new(embedder), self.query_cache.0);
        let index = Index::open_with(&self.index, Arc::new(embedder), &options)?;
        let ways = if self.ways.is_empty() { SearchMethod::defaults(index.modes()) } else { self.ways.clone() };
        // Longer than the measurement, so the threads hang to its end.
        let find = HangingIndex { index, held: Duration::from_secs_f64(self.seconds + 1.0) };
        let timeout = Duration::from_millis(self.deadline_ms);
        let limits = SearchLimits { threads, waiting: assembly::SEARCHES_WAITING, timeout };
        Ok((Searcher::new(find, limits)?, ways))
    }

    async fn measure(
        &self,
        searcher: &Searcher,
        way: &SearchMethod,
        questions: &Arc<Vec<String>>,
        clients: usize,
        hanging: usize,
    ) -> anyhow::Result<SearchLatency> {
        // Hanging searches are to hold their threads, not to delay the measurement by a long deadline.
        let deadline = (Instant::now() + Duration::from_millis(200)).min(Instant::now() + self.deadline());
        let stuck: Vec<_> = (0..hanging)
            .map(|_| {
                let searcher = searcher.clone();
                let query = way.query(HANG, 1).deadline(deadline);
                tokio::spawn(async move { searcher.search(query.into()).await })
            })
            .collect();
        for stuck in stuck {
            ensure!(stuck.await? == Err(SearchError::Timeout), "a hanging search did not time out at its deadline");
        }
        let started = Instant::now();
        let end = started + Duration::from_secs_f64(self.seconds);
        let next = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..clients)
            .map(|_| {
                let searcher = searcher.clone();
                let questions = Arc::clone(questions);
                let next = Arc::clone(&next);
                let k = self.k;
                let way = way.clone();
                tokio::spawn(async move { call(&searcher, &way, &questions, &next, k, end).await })
            })
            .collect();
        let mut called = Vec::new();
        for caller in callers {
            called.extend(caller.await?);
        }
        // Searches that began before the end count, so the time until the last of them returned does too.
        row(way, clients, hanging, started.elapsed().as_secs_f64(), &called)
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    fn print(&self, rows: &[SearchLatency]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
            return Ok(());
        }
        let columns = ["clients", "hanging", "searches/s", "p50 ms", "p95 ms", "p99 ms", "most ms", "late", "refused"];
        write!(out, "{:16}", "")?;
        columns.iter().try_for_each(|name| write!(out, " {name:>10}"))?;
        for row in rows {
            let SearchLatency { way, clients, hanging, per_second, p50, p95, p99, most, timeouts, refused, .. } = row;
            write!(out, "\n{way:16} {clients:>10} {hanging:>10} {per_second:>10.1}")?;
            write!(out, " {p50:>10.2} {p95:>10.2} {p99:>10.2} {most:>10.2} {timeouts:>10} {refused:>10}")?;
        }
        writeln!(out)?;
        Ok(())
    }
}

/// Searches one question after another until `end`. Returns the milliseconds and the outcome of each.
async fn call(
    searcher: &Searcher,
    way: &SearchMethod,
    questions: &[String],
    next: &AtomicUsize,
    k: usize,
    end: Instant,
) -> Vec<(f64, Result<(), SearchError>)> {
    let mut called = Vec::new();
    while Instant::now() < end {
        let question = &questions[next.fetch_add(1, Ordering::Relaxed) % questions.len()];
        let started = Instant::now();
        let found = searcher.search(way.query(question, k).into()).await;
        called.push((started.elapsed().as_secs_f64() * 1e3, found.map(drop)));
    }
    called
}

fn row(
    way: &SearchMethod,
    clients: usize,
    hanging: usize,
    seconds: f64,
    called: &[(f64, Result<(), SearchError>)],
) -> anyhow::Result<SearchLatency> {
    let count = |error: &SearchError| called.iter().filter(|(_, result)| result.as_ref() == Err(error)).count();
    let failed =
        |result: &Result<(), SearchError>| matches!(result, Err(SearchError::Failed(_) | SearchError::Unsupported(_)));
    if let Some((_, Err(error))) = called.iter().find(|(_, result)| failed(result)) {
        anyhow::bail!("{way} search: {error}");
    }
    let mut times: Vec<f64> = called.iter().filter(|(_, result)| result.is_ok()).map(|(time, _)| *time).collect();
    Ok(SearchLatency {
        way: way.to_string(),
        clients,
        hanging,
        searches: times.len(),
        per_second: times.len() as f64 / seconds,
        p50: quantile(&mut times, 0.5),
        p95: quantile(&mut times, 0.95),
        p99: quantile(&mut times, 0.99),
        // Late searches count here, because they show whether the deadline holds.
        most: called.iter().map(|(time, _)| *time).fold(0.0, f64::max),
        timeouts: count(&SearchError::Timeout),
        refused: count(&SearchError::Busy),
    })
}
