//! Search for the async side: a pool of its own, a bound on what runs, a deadline on every query.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use waymark_index::{Evidence, Mode, Query};

/// Most passages that one search may be asked for, by a policy, a request or a trainer.
pub const MAX_K: usize = 200;

/// What an episode or a client wants found.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchQuery {
    /// What the index is asked. Its deadline counts if it is before the searcher's own limit.
    pub wanted: Query,
    /// The search as a policy wrote it; the same as the text of `wanted` where nobody did.
    pub written: String,
}

impl From<Query> for SearchQuery {
    fn from(wanted: Query) -> SearchQuery {
        SearchQuery { written: wanted.text.clone(), wanted }
    }
}

/// Why a search gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// As many searches run and wait as may.
    #[error("too many searches are waiting")]
    Busy,
    /// It was not finished in time.
    #[error("it took too long")]
    Timeout,
    /// The index does not offer the mode.
    #[error("[{0}] search is not offered here")]
    Unsupported(Mode),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

/// Finds evidence.
pub trait Search: fmt::Debug + Send + Sync {
    /// Finds passages, best first. An empty query finds none. Dropping the future gives the search up.
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>>;

    /// The modes it offers.
    fn modes(&self) -> &[Mode];
}

/// How much a [`Searcher`] takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchLimits {
    /// Searches that run at the same time, each on a thread of its own.
    pub threads: usize,
    /// Searches that may wait for a thread; more are refused.
    pub waiting: usize,
    /// How long a search may take, waiting included.
    pub timeout: Duration,
}

impl Default for SearchLimits {
    fn default() -> Self {
        SearchLimits { threads: 4, waiting: 256, timeout: Duration::from_secs(10) }
    }
}

type Find = dyn Fn(&Query) -> Result<Evidence, SearchError> + Send + Sync;

/// Runs blocking searches beside everything else. A search that hangs keeps its thread and nothing more: its caller
/// gets [`SearchError::Timeout`], and a panic is [`SearchError::Failed`].
#[derive(Clone)]
pub struct Searcher(Arc<Shared>);

struct Shared {
    find: Box<Find>,
    modes: Vec<Mode>,
    snapshot: u64,
    limits: SearchLimits,
    running: Arc<Semaphore>,
    admitted: Arc<Semaphore>,
    pool: Pool,
}

impl fmt::Debug for Searcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Searcher").field("modes", &self.0.modes).field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Searcher {
    /// A searcher over any blocking function that offers `modes`. `snapshot` names what is searched, for queries that
    /// need no search.
    pub fn new(
        find: impl Fn(&Query) -> Result<Evidence, SearchError> + Send + Sync + 'static,
        modes: Vec<Mode>,
        snapshot: u64,
        limits: SearchLimits,
    ) -> std::io::Result<Searcher> {
        let limits = SearchLimits { threads: limits.threads.max(1), ..limits };
        Ok(Searcher(Arc::new(Shared {
            find: Box::new(find),
            modes,
            snapshot,
            limits,
            running: Arc::new(Semaphore::new(limits.threads)),
            admitted: Arc::new(Semaphore::new(limits.threads + limits.waiting)),
            pool: Pool::new(limits.threads)?,
        })))
    }

    /// How many searches run now.
    pub fn running(&self) -> usize {
        self.0.limits.threads - self.0.running.available_permits()
    }

    async fn find(&self, mut wanted: Query) -> Result<Evidence, SearchError> {
        if !self.0.modes.contains(&wanted.mode) {
            return Err(SearchError::Unsupported(wanted.mode));
        }
        if wanted.text.is_empty() {
            return Ok(Evidence::of(self.0.snapshot, wanted.mode, Vec::new()));
        }
        let own = Instant::now() + self.0.limits.timeout;
        let deadline = wanted.deadline.map_or(own, |theirs| own.min(theirs.into()));
        wanted.deadline = Some(deadline.into_std());
        let _admitted = self.0.admitted.clone().try_acquire_owned().map_err(|_| SearchError::Busy)?;
        let answer = async {
            let gone = || SearchError::Failed("the searcher has stopped".to_owned());
            let permit = self.0.running.clone().acquire_owned().await.map_err(|_| gone())?;
            let (reply, answer) = oneshot::channel();
            let shared = self.0.clone();
            self.0.pool.run(Box::new(move || {
                // The permit is held as long as the search runs, also when nobody waits for it any more.
                if !reply.is_closed() {
                    let found = shared.guarded(&wanted);
                    drop(permit);
                    let _ = reply.send(found);
                }
            }));
            answer.await.unwrap_or_else(|_| Err(gone()))
        };
        timeout_at(deadline, answer).await.unwrap_or(Err(SearchError::Timeout))
    }
}

impl Search for Searcher {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(self.find(query.wanted))
    }

    fn modes(&self) -> &[Mode] {
        &self.0.modes
    }
}

impl Shared {
    fn guarded(&self, query: &Query) -> Result<Evidence, SearchError> {
        catch_unwind(AssertUnwindSafe(|| (self.find)(query))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(SearchError::Failed(format!("the search panicked: {}", message.unwrap_or_default())))
        })
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that take jobs from one queue. Callers hold a permit per thread, so the queue never grows beyond them.
struct Pool(std::sync::mpsc::Sender<Job>);

impl Pool {
    fn new(threads: usize) -> std::io::Result<Pool> {
        let (sender, jobs) = std::sync::mpsc::channel::<Job>();
        let jobs = Arc::new(std::sync::Mutex::new(jobs));
        for i in 0..threads {
            let jobs = jobs.clone();
            std::thread::Builder::new().name(format!("search-{i}")).spawn(move || {
                loop {
                    // The lock is held while waiting for a job, not while doing it.
                    let job = jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => break,
                    }
                }
            })?;
        }
        Ok(Pool(sender))
    }

    fn run(&self, job: Job) {
        // Fails only when every thread is gone; the job's reply channel closes and its caller is told.
        let _ = self.0.send(job);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    fn searcher(limits: SearchLimits, done: &Arc<AtomicUsize>) -> Searcher {
        let done = done.clone();
        let find = move |query: &Query| {
            match query.text.as_str() {
                "hang" => std::thread::sleep(Duration::from_millis(400)),
                "panic" => std::panic::panic_any("on purpose"),
                _ => {}
            }
            done.fetch_add(1, SeqCst);
            Ok(Evidence::of(7, query.mode, Vec::new()))
        };
        Searcher::new(find, vec![Mode::Passage], 7, limits).unwrap()
    }

    fn limits(threads: usize, waiting: usize, timeout: u64) -> SearchLimits {
        SearchLimits { threads, waiting, timeout: Duration::from_millis(timeout) }
    }

    fn query(text: &str) -> SearchQuery {
        Query::new(text, Mode::Passage, 3).into()
    }

    #[tokio::test]
    async fn a_search_that_hangs_stalls_nobody_else() {
        let done = Arc::default();
        let searcher = searcher(limits(2, 8, 100), &done);
        let hanging = tokio::spawn({
            let searcher = searcher.clone();
            async move { searcher.search(query("hang")).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        for _ in 0..10 {
            assert!(searcher.search(query("a")).await.is_ok());
        }
        assert_eq!(searcher.running(), 1);
        assert_eq!(hanging.await.unwrap(), Err(SearchError::Timeout));
    }

    #[tokio::test]
    async fn with_every_thread_stuck_callers_are_told_in_time_and_then_refused() {
        let done: Arc<AtomicUsize> = Arc::default();
        let searcher = searcher(limits(1, 1, 100), &done);
        let asked = Instant::now();
        let (stuck, waits, refused) =
            tokio::join!(searcher.search(query("hang")), searcher.search(query("a")), searcher.search(query("b")));
        assert_eq!(
            (stuck, waits, refused),
            (Err(SearchError::Timeout), Err(SearchError::Timeout), Err(SearchError::Busy))
        );
        assert!(asked.elapsed() < Duration::from_millis(350));
        // What nobody waits for any more is not begun.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(done.load(SeqCst), 1);
        assert!(searcher.search(query("c")).await.is_ok());
    }

    #[tokio::test]
    async fn a_callers_deadline_counts_if_it_is_sooner() {
        let searcher = searcher(limits(1, 1, 10_000), &Arc::default());
        let asked = Instant::now();
        let soon = query("hang").wanted.deadline((asked + Duration::from_millis(30)).into_std());
        assert_eq!(searcher.search(soon.into()).await, Err(SearchError::Timeout));
        assert!(asked.elapsed() < Duration::from_millis(300));
    }

    #[tokio::test]
    async fn a_panic_fails_one_search() {
        let searcher = searcher(limits(1, 1, 1000), &Arc::default());
        let failed = searcher.search(query("panic")).await.unwrap_err();
        assert_eq!(failed, SearchError::Failed("the search panicked: on purpose".into()));
        assert!(searcher.search(query("a")).await.is_ok());
    }

    #[tokio::test]
    async fn what_needs_no_search_or_has_none_is_answered_at_once() {
        let done = Arc::default();
        let searcher = searcher(limits(1, 1, 1000), &done);
        assert_eq!(searcher.search(query("")).await.unwrap().snapshot, 7);
        let graph = Query::new("a", Mode::Graph, 3);
        assert_eq!(searcher.search(graph.into()).await, Err(SearchError::Unsupported(Mode::Graph)));
        assert_eq!(done.load(SeqCst), 0);
    }
}
