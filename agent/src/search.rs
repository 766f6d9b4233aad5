//! Async search: a thread pool of its own, a limit on concurrent searches, a deadline for every query.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument, Span};
use waymark_index::{Evidence, Index, IndexError, LiveIndex, Mode, Query, QueryAnnouncement};

use super::search_pool::{JobTicket, SearchPool};

/// A search of an episode or a client.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchQuery {
    /// Query to the index. Its deadline applies if it is earlier than the searcher's own timeout.
    pub wanted: Query,
    /// Search as a policy wrote it. For other searches, the text of `wanted`.
    pub written: String,
    /// Tenant of the search. Tenants get the threads in turn.
    pub tenant: u64,
}

impl From<Query> for SearchQuery {
    fn from(wanted: Query) -> SearchQuery {
        SearchQuery { written: wanted.text.clone(), wanted, tenant: 0 }
    }
}

/// Error of a search.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The queue of searches is full.
    #[error("too many searches are waiting")]
    Busy,
    /// The search exceeded its deadline.
    #[error("it took too long")]
    Timeout,
    /// The index does not offer the mode.
    #[error("[{0}] search is not offered here")]
    Unsupported(Mode),
    /// The search was to rerank its candidates, and no reranker is loaded.
    #[error("no reranker is loaded: start the server with --reranker, or leave `rerank` out")]
    NoReranker,
    /// The search failed.
    #[error("{0}")]
    Failed(String),
}

/// Asynchronous retrieval of evidence.
pub trait Search: fmt::Debug + Send + Sync {
    /// Returns evidence, best first. An empty query returns none. Dropping the future abandons the search.
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>>;

    /// Returns the modes that are available now.
    fn modes(&self) -> Vec<Mode>;

    /// Returns `true` if searches can rerank their candidates.
    fn reranks(&self) -> bool {
        false
    }
}

/// Blocking retrieval, called by a [`Searcher`] on its own threads. The searched index may change between searches.
pub trait BlockingSearch: Send + Sync {
    /// Searches without a time limit other than the query's deadline.
    ///
    /// # Errors
    /// The reason why no evidence could be found.
    fn find(&self, query: &Query) -> Result<Evidence, SearchError>;

    /// Announces a query that waits for a thread, so that the texts of several queries are embedded together. `None` if
    /// there is nothing to gain.
    #[must_use = "dropping the announcement withdraws the query"]
    fn announce_query(&self, _query: &Query) -> Option<QueryAnnouncement> {
        None
    }

    /// Returns the modes that are available now.
    fn modes(&self) -> Vec<Mode>;

    /// Returns `true` if searches can rerank their candidates.
    fn reranks(&self) -> bool {
        false
    }

    /// Returns the current snapshot, for queries that need no search.
    fn snapshot(&self) -> u64;
}

/// Searches a fixed snapshot.
impl BlockingSearch for Index {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        self.search(query).map_err(|error| match error {
            IndexError::Deadline { .. } => SearchError::Timeout,
            IndexError::Unsupported { mode } => SearchError::Unsupported(mode),
            IndexError::NoReranker => SearchError::NoReranker,
            error => SearchError::Failed(error.to_string()),
        })
    }

    fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        self.announce_query(query)
    }

    fn modes(&self) -> Vec<Mode> {
        self.modes().to_vec()
    }

    fn reranks(&self) -> bool {
        self.reranks()
    }

    fn snapshot(&self) -> u64 {
        self.manifest().snapshot
    }
}

/// Searches the snapshot that is current when a search begins.
impl BlockingSearch for LiveIndex {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        BlockingSearch::find(self.current().as_ref(), query)
    }

    fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        self.current().announce_query(query)
    }

    fn modes(&self) -> Vec<Mode> {
        self.current().modes().to_vec()
    }

    fn reranks(&self) -> bool {
        self.current().reranks()
    }

    fn snapshot(&self) -> u64 {
        self.current().manifest().snapshot
    }
}

impl<T: BlockingSearch + ?Sized> BlockingSearch for Arc<T> {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        T::find(self, query)
    }

    fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        T::announce_query(self, query)
    }

    fn modes(&self) -> Vec<Mode> {
        T::modes(self)
    }

    fn reranks(&self) -> bool {
        T::reranks(self)
    }

    fn snapshot(&self) -> u64 {
        T::snapshot(self)
    }
}

/// Limits of a [`Searcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchLimits {
    /// Number of concurrent searches, each on its own thread.
    pub threads: usize,
    /// Maximum number of queued searches. Further ones are refused, or take the places of a tenant with more.
    pub waiting: usize,
    /// Maximum duration of a search, including its time in the queue.
    pub timeout: Duration,
}

impl Default for SearchLimits {
    fn default() -> Self {
        SearchLimits { threads: 4, waiting: 256, timeout: Duration::from_secs(10) }
    }
}

/// Runs blocking searches on a thread pool, which tenants use in turn. A hanging search returns
/// [`SearchError::Timeout`] to its caller, and its thread is replaced, so that it delays no other search; a panic is
/// [`SearchError::Failed`].
#[derive(Clone)]
pub struct Searcher(Arc<SearcherState>);

struct SearcherState {
    find: Box<dyn BlockingSearch>,
    limits: SearchLimits,
    pool: SearchPool,
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
    /// Creates a searcher over `find`.
    ///
    /// # Errors
    /// The error of the system when it refuses threads.
    pub fn new(find: impl BlockingSearch + 'static, limits: SearchLimits) -> std::io::Result<Searcher> {
        // Without a thread every search would wait until its deadline.
        let limits = SearchLimits { threads: limits.threads.max(1), ..limits };
        Ok(Searcher(Arc::new(SearcherState {
            find: Box::new(find),
            limits,
            pool: SearchPool::new(limits.threads, limits.waiting)?,
        })))
    }

    /// Returns the number of running searches, without abandoned ones.
    pub fn running(&self) -> usize {
        self.0.limits.threads.saturating_sub(self.0.pool.free())
    }

    async fn find(&self, mut wanted: Query, tenant: u64) -> Result<Evidence, SearchError> {
        if !self.0.find.modes().contains(&wanted.mode) {
            return Err(SearchError::Unsupported(wanted.mode));
        }
        if wanted.text.is_empty() {
            return Ok(Evidence::of(self.0.find.snapshot(), wanted.mode, Vec::new()));
        }
        // The earlier of both deadlines wins.
        let own = Instant::now() + self.0.limits.timeout;
        let deadline = wanted.deadline.map_or(own, |theirs| own.min(theirs.into()));
        wanted.deadline = Some(deadline.into_std());
        let thread = self.0.pool.thread(tenant).ok_or(SearchError::Busy)?;
        // Kept until the search ends, because only the search takes the vector.
        let _announced = self.0.find.announce_query(&wanted);
        let shared = self.0.clone();
        let answer = async move {
            // Another tenant may have taken the place in the queue.
            let permit = thread.await.map_err(|_| SearchError::Busy)?;
            let (reply, answer) = oneshot::channel();
            let finder = shared.clone();
            let span = Span::current();
            let work = move || -> Box<dyn FnOnce()> {
                // A search whose caller has stopped waiting is not started.
                let late = reply.is_closed() || Instant::now() >= deadline;
                let search = || finder.guarded(&wanted);
                let found = if late { Err(SearchError::Timeout) } else { span.in_scope(search) };
                // The caller gets the reply once the thread is free, so that its next search finds it free.
                Box::new(move || drop(reply.send(found)))
            };
            let ticket = shared.pool.run(permit, Box::new(work));
            let _given_up = AbandonOnDrop { shared, ticket, deadline };
            answer.await.unwrap_or_else(|_| Err(SearchError::Failed("the searcher has stopped".to_owned())))
        };
        let answer = async move { timeout_at(deadline, answer).await.unwrap_or(Err(SearchError::Timeout)) };
        // The caller may not be polled for long: a batch rests while its client does not read. A search that waited there
        // would keep the thread that it gets, and not begin.
        let (task, answer) = answer.in_current_span().remote_handle();
        tokio::spawn(task);
        answer.await
    }
}

/// Abandons a search that no caller waits for: at its deadline, even if the caller stopped waiting earlier.
struct AbandonOnDrop {
    shared: Arc<SearcherState>,
    ticket: Arc<JobTicket>,
    deadline: Instant,
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        // Before the deadline and without a runtime, as when the process ends, the search keeps its thread.
        if Instant::now() >= self.deadline {
            self.shared.pool.give_up(&self.ticket);
        } else if !self.ticket.ended()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let shared = self.shared.clone();
            let ticket = self.ticket.clone();
            let deadline = self.deadline;
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
        Box::pin(self.find(query.wanted, query.tenant))
    }

    fn modes(&self) -> Vec<Mode> {
        self.0.find.modes()
    }

    fn reranks(&self) -> bool {
        self.0.find.reranks()
    }
}

impl SearcherState {
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Time that a test gives to anything it waits for.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Counts its results. Searches for `hang` last until they are released, for twice [`PATIENCE`] at most.
    #[derive(Clone, Default)]
    struct Counted {
        done: Arc<AtomicUsize>,
        released: Arc<AtomicBool>,
    }

    impl Counted {
        fn done(&self) -> usize {
            self.done.load(SeqCst)
        }

        fn release(&self) {
            self.released.store(true, SeqCst);
        }
    }

    impl BlockingSearch for Counted {
        fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
            let begun = Instant::now();
            match query.text.as_str() {
                "hang" => {
                    while !self.released.load(SeqCst) && begun.elapsed() < 2 * PATIENCE {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                "panic" => std::panic::panic_any("on purpose"),
                _ => {}
            }
            self.done.fetch_add(1, SeqCst);
            Ok(Evidence::of(7, query.mode, Vec::new()))
        }

        fn modes(&self) -> Vec<Mode> {
            vec![Mode::Passage]
        }

        fn snapshot(&self) -> u64 {
            7
        }
    }

    fn searcher(limits: SearchLimits, counted: &Counted) -> Searcher {
        Searcher::new(counted.clone(), limits).unwrap()
    }

    fn limits(threads: usize, waiting: usize, timeout: Duration) -> SearchLimits {
        SearchLimits { threads, waiting, timeout }
    }

    fn query(text: &str) -> SearchQuery {
        Query::new(text, Mode::Passage, 3).into()
    }

    /// Query whose caller waits for this time from now on.
    fn within(text: &str, time: Duration) -> SearchQuery {
        query(text).wanted.deadline((Instant::now() + time).into_std()).into()
    }

    async fn settles(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "it never came about that {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_search_that_hangs_stalls_nobody_else() {
        let counted = Counted::default();
        let searcher = searcher(limits(2, 8, Duration::from_secs(3)), &counted);
        let hanging = tokio::spawn({
            let searcher = searcher.clone();
            async move { searcher.search(query("hang")).await }
        });
        settles("it runs", || searcher.running() == 1).await;
        for _ in 0..10 {
            assert!(searcher.search(query("a")).await.is_ok());
        }
        assert!(searcher.running() <= 1);
        assert_eq!(hanging.await.unwrap(), Err(SearchError::Timeout));
        assert_eq!(counted.done(), 10, "it still hangs");
        counted.release();
    }

    #[tokio::test]
    async fn with_every_thread_stuck_callers_are_told_in_time_and_then_refused() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 1, Duration::from_secs(2)), &counted);
        // Given up before the thread is replaced.
        let soon = within("a", Duration::from_millis(500));
        let (stuck, waits, refused) =
            tokio::join!(searcher.search(query("hang")), searcher.search(soon), searcher.search(query("b")));
        assert_eq!(
            (stuck, waits, refused),
            (Err(SearchError::Timeout), Err(SearchError::Timeout), Err(SearchError::Busy))
        );
        // A search whose caller has stopped waiting is not started.
        counted.release();
        settles("the search that hung ends", || counted.done() == 1).await;
        assert!(searcher.search(query("c")).await.is_ok());
        assert_eq!(counted.done(), 2);
    }

    #[tokio::test]
    async fn a_tenant_with_fewer_searches_takes_a_place_in_a_full_queue() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 2, PATIENCE), &counted);
        let of = |tenant, text| searcher.search(SearchQuery { tenant, ..query(text) });
        let (runs, waits, gives_way, other, refused, ()) =
            tokio::join!(of(1, "hang"), of(1, "a"), of(1, "b"), of(2, "c"), of(2, "d"), async { counted.release() });
        assert!([&runs, &waits, &other].iter().all(|result| result.is_ok()), "{runs:?} {waits:?} {other:?}");
        assert_eq!((gives_way, refused), (Err(SearchError::Busy), Err(SearchError::Busy)));
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_holds_no_thread() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 8, PATIENCE), &counted);
        let mut first = searcher.search(query("hang"));
        let mut second = searcher.search(query("a"));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        counted.release();
        assert!(searcher.search(query("b")).await.is_ok());
        assert_eq!(counted.done(), 3);
        assert!(first.await.is_ok() && second.await.is_ok());
    }

    #[tokio::test]
    async fn threads_that_hang_are_replaced() {
        let counted = Counted::default();
        let searcher = searcher(limits(2, 64, Duration::from_secs(3)), &counted);
        let hanging = futures::future::join_all((0..2).map(|_| searcher.search(query("hang"))));
        assert!(hanging.await.iter().all(|result| *result == Err(SearchError::Timeout)));
        for _ in 0..20 {
            assert!(searcher.search(query("a")).await.is_ok());
        }
        assert_eq!(counted.done(), 20, "both threads still hang");
        counted.release();
        settles("they end, and nobody runs any more", || counted.done() == 22 && searcher.running() == 0).await;
        assert_eq!(searcher.0.pool.free(), 2, "as many threads as before, no more and no less");
    }

    #[tokio::test]
    async fn a_caller_who_goes_early_leaves_nothing_stuck() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 8, PATIENCE), &counted);
        let hanging = searcher.search(within("hang", Duration::from_secs(4)));
        let gone = tokio::time::timeout(Duration::from_millis(100), hanging);
        assert!(gone.await.is_err());
        assert_eq!(searcher.running(), 1, "it runs on until its own deadline");
        assert_eq!(searcher.search(query("a")).await.map(|evidence| evidence.snapshot), Ok(7));
        assert_eq!(counted.done(), 1, "it still hangs");
        counted.release();
    }

    #[tokio::test]
    async fn a_callers_deadline_counts_if_it_is_sooner() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 1, PATIENCE), &counted);
        let asked = Instant::now();
        let soon = within("hang", Duration::from_millis(30));
        assert_eq!(searcher.search(soon).await, Err(SearchError::Timeout));
        assert!(asked.elapsed() < PATIENCE / 2);
        counted.release();
    }

    #[tokio::test]
    async fn a_panic_fails_one_search() {
        // Printing a backtrace may take a second on a busy machine.
        let searcher = searcher(limits(1, 1, PATIENCE), &Counted::default());
        let failed = searcher.search(query("panic")).await.unwrap_err();
        assert_eq!(failed, SearchError::Failed("the search panicked: on purpose".into()));
        assert!(searcher.search(query("a")).await.is_ok());
    }

    #[tokio::test]
    async fn what_needs_no_search_or_has_none_is_answered_at_once() {
        let counted = Counted::default();
        let searcher = searcher(limits(1, 1, PATIENCE), &counted);
        assert_eq!(searcher.search(query("")).await.unwrap().snapshot, 7);
        let graph = Query::new("a", Mode::Graph, 3);
        assert_eq!(searcher.search(graph.into()).await, Err(SearchError::Unsupported(Mode::Graph)));
        assert_eq!(counted.done(), 0);
    }

    /// Counts the queries that are announced now, and all that ever were. Its searches run until `expected` queries
    /// have been announced at the same time, for [`PATIENCE`] at most.
    #[derive(Clone, Default)]
    struct Announced {
        now: Arc<AtomicUsize>,
        all: Arc<AtomicUsize>,
        expected: Arc<AtomicUsize>,
        seen: Arc<AtomicUsize>,
    }

    struct Withdrawal(Arc<AtomicUsize>);

    impl Drop for Withdrawal {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }

    impl BlockingSearch for Announced {
        fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE {
                self.seen.fetch_max(self.now.load(SeqCst), SeqCst);
                if self.seen.load(SeqCst) >= self.expected.load(SeqCst) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Evidence::of(7, query.mode, Vec::new()))
        }

        fn announce_query(&self, _: &Query) -> Option<QueryAnnouncement> {
            self.now.fetch_add(1, SeqCst);
            self.all.fetch_add(1, SeqCst);
            Some(Box::new(Withdrawal(self.now.clone())))
        }

        fn modes(&self) -> Vec<Mode> {
            vec![Mode::Passage]
        }

        fn snapshot(&self) -> u64 {
            7
        }
    }

    #[tokio::test]
    async fn waiting_queries_are_announced_until_their_searches_end() {
        let find = Announced { expected: Arc::new(AtomicUsize::new(5)), ..Announced::default() };
        let searcher = Searcher::new(find.clone(), limits(1, 4, 2 * PATIENCE)).unwrap();
        let all = futures::future::join_all((0..5).map(|_| searcher.search(query("a")))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(find.seen.load(SeqCst), 5, "those that wait for the thread too");
        assert_eq!(find.now.load(SeqCst), 0);
        // A refused search is not announced.
        let two = Searcher::new(find.clone(), limits(1, 0, 2 * PATIENCE)).unwrap();
        find.expected.store(usize::MAX, SeqCst);
        let first = tokio::spawn({
            let two = two.clone();
            async move { two.search(query("a")).await }
        });
        settles("the first runs", || two.running() == 1).await;
        assert_eq!(two.search(query("b")).await, Err(SearchError::Busy));
        find.expected.store(0, SeqCst);
        assert!(first.await.unwrap().is_ok());
        assert_eq!((find.all.load(SeqCst), find.now.load(SeqCst)), (6, 0));
    }
}
