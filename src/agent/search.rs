//! Search for the async side: a pool of its own, a bound on what runs, a deadline on every query.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument, Span};
use waymark_index::{Evidence, Index, IndexError, LiveIndex, Mode, Query};

use super::pool::{Pool, Ticket};

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

    /// The modes it offers now.
    fn modes(&self) -> Vec<Mode>;
}

/// What a [`Searcher`] asks, on threads of its own. It may change from one search to the next.
pub trait Find: Send + Sync {
    /// Searches, for as long as it takes.
    ///
    /// # Errors
    /// Whatever kept evidence from being found.
    fn find(&self, query: &Query) -> Result<Evidence, SearchError>;

    /// The modes that it offers now.
    fn modes(&self) -> Vec<Mode>;

    /// Names what is searched now, for queries that need no search.
    fn snapshot(&self) -> u64;
}

/// One snapshot, always the same.
impl Find for Index {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        self.search(query).map_err(|error| match error {
            IndexError::Deadline { .. } => SearchError::Timeout,
            IndexError::Unsupported { mode } => SearchError::Unsupported(mode),
            error => SearchError::Failed(error.to_string()),
        })
    }

    fn modes(&self) -> Vec<Mode> {
        self.modes().to_vec()
    }

    fn snapshot(&self) -> u64 {
        self.manifest().snapshot
    }
}

/// Each search gets the snapshot that is current when it begins, and keeps it.
impl Find for LiveIndex {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        Find::find(self.current().as_ref(), query)
    }

    fn modes(&self) -> Vec<Mode> {
        self.current().modes().to_vec()
    }

    fn snapshot(&self) -> u64 {
        self.current().manifest().snapshot
    }
}

impl<T: Find + ?Sized> Find for Arc<T> {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        T::find(self, query)
    }

    fn modes(&self) -> Vec<Mode> {
        T::modes(self)
    }

    fn snapshot(&self) -> u64 {
        T::snapshot(self)
    }
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

/// Runs blocking searches beside everything else. Of a search that hangs the caller gets [`SearchError::Timeout`], and
/// another thread takes the place of its own, so that it delays nobody; a panic is [`SearchError::Failed`].
#[derive(Clone)]
pub struct Searcher(Arc<Shared>);

struct Shared {
    find: Box<dyn Find>,
    limits: SearchLimits,
    admitted: Arc<Semaphore>,
    pool: Pool,
}

impl fmt::Debug for Searcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Searcher")
            .field("modes", &self.0.find.modes())
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}

impl Searcher {
    /// A searcher of what `find` finds.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new(find: impl Find + 'static, limits: SearchLimits) -> std::io::Result<Searcher> {
        let limits = SearchLimits { threads: limits.threads.max(1), ..limits };
        Ok(Searcher(Arc::new(Shared {
            find: Box::new(find),
            limits,
            admitted: Arc::new(Semaphore::new(limits.threads + limits.waiting)),
            pool: Pool::new(limits.threads)?,
        })))
    }

    /// How many searches run now, those that were given up not counted.
    pub fn running(&self) -> usize {
        self.0.limits.threads.saturating_sub(self.0.pool.free())
    }

    async fn find(&self, mut wanted: Query) -> Result<Evidence, SearchError> {
        if !self.0.find.modes().contains(&wanted.mode) {
            return Err(SearchError::Unsupported(wanted.mode));
        }
        if wanted.text.is_empty() {
            return Ok(Evidence::of(self.0.find.snapshot(), wanted.mode, Vec::new()));
        }
        let own = Instant::now() + self.0.limits.timeout;
        let deadline = wanted.deadline.map_or(own, |theirs| own.min(theirs.into()));
        wanted.deadline = Some(deadline.into_std());
        let _admitted = self.0.admitted.clone().try_acquire_owned().map_err(|_| SearchError::Busy)?;
        let answer = async {
            let gone = || SearchError::Failed("the searcher has stopped".to_owned());
            let permit = self.0.pool.thread().await.ok_or_else(gone)?;
            let (reply, answer) = oneshot::channel();
            let (shared, span) = (self.0.clone(), Span::current());
            let work = move || -> Box<dyn FnOnce()> {
                // What nobody waits for any more is not begun.
                let late = reply.is_closed() || Instant::now() >= deadline;
                let search = || shared.guarded(&wanted);
                let found = if late { Err(SearchError::Timeout) } else { span.in_scope(search) };
                Box::new(move || drop(reply.send(found)))
            };
            let ticket = self.0.pool.run(permit, Box::new(work));
            let _given_up = GiveUp { shared: self.0.clone(), ticket, deadline };
            answer.await.unwrap_or_else(|_| Err(gone()))
        };
        timeout_at(deadline, answer).await.unwrap_or(Err(SearchError::Timeout))
    }
}

/// Gives a search up when nobody waits for it any more: at its deadline, also when its caller went earlier.
struct GiveUp {
    shared: Arc<Shared>,
    ticket: Arc<Ticket>,
    deadline: Instant,
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        if Instant::now() >= self.deadline {
            self.shared.pool.give_up(&self.ticket);
        } else if !self.ticket.ended()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (shared, ticket, deadline) = (self.shared.clone(), self.ticket.clone(), self.deadline);
            let wait = async move {
                sleep_until(deadline).await;
                shared.pool.give_up(&ticket);
            };
            runtime.spawn(wait.in_current_span());
        }
    }
}

impl Search for Searcher {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(self.find(query.wanted))
    }

    fn modes(&self) -> Vec<Mode> {
        self.0.find.modes()
    }
}

impl Shared {
    fn guarded(&self, query: &Query) -> Result<Evidence, SearchError> {
        catch_unwind(AssertUnwindSafe(|| self.find.find(query))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(SearchError::Failed(format!("the search panicked: {}", message.unwrap_or_default())))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Counts what it has found.
    struct Counted(Arc<AtomicUsize>);

    impl Find for Counted {
        fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
            match query.text.as_str() {
                "hang" => std::thread::sleep(Duration::from_millis(400)),
                "panic" => std::panic::panic_any("on purpose"),
                _ => {}
            }
            self.0.fetch_add(1, SeqCst);
            Ok(Evidence::of(7, query.mode, Vec::new()))
        }

        fn modes(&self) -> Vec<Mode> {
            vec![Mode::Passage]
        }

        fn snapshot(&self) -> u64 {
            7
        }
    }

    fn searcher(limits: SearchLimits, done: &Arc<AtomicUsize>) -> Searcher {
        Searcher::new(Counted(done.clone()), limits).unwrap()
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
    async fn threads_that_hang_are_replaced() {
        let done: Arc<AtomicUsize> = Arc::default();
        let searcher = searcher(limits(2, 64, 100), &done);
        let hanging = futures::future::join_all((0..2).map(|_| searcher.search(query("hang"))));
        assert!(hanging.await.iter().all(|result| *result == Err(SearchError::Timeout)));
        let asked = Instant::now();
        for _ in 0..20 {
            assert!(searcher.search(query("a")).await.is_ok());
        }
        assert!(asked.elapsed() < Duration::from_millis(100), "both threads hang for 300 ms more");
        assert_eq!(done.load(SeqCst), 20);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((done.load(SeqCst), searcher.running()), (22, 0), "they end, and nobody runs any more");
        assert_eq!(searcher.0.pool.free(), 2, "as many threads as before, no more and no less");
    }

    #[tokio::test]
    async fn a_caller_who_goes_early_leaves_nothing_stuck() {
        let searcher = searcher(limits(1, 8, 150), &Arc::default());
        let gone = tokio::time::timeout(Duration::from_millis(20), searcher.search(query("hang")));
        assert!(gone.await.is_err());
        assert_eq!(searcher.running(), 1, "it runs on until its own deadline");
        let asked = Instant::now();
        assert_eq!(searcher.search(query("a")).await.map(|evidence| evidence.snapshot), Ok(7));
        assert!(asked.elapsed() < Duration::from_millis(300), "it would have taken 380 ms to its end");
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
        // Printing a backtrace may take a second on a busy machine.
        let searcher = searcher(limits(1, 1, 20_000), &Arc::default());
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
