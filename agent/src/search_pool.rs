//! Threads for blocking searches, and the replacement of hanging ones.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tracing::Span;

use super::fair_semaphore::{FairPermit, FairSemaphore};

/// Maximum number of hanging searches whose threads are replaced. Beyond it a hanging search costs its thread.
const MAX_STUCK: usize = 64;

/// A fixed number of threads that take jobs from one queue. Every job holds a permit, so the queue never grows beyond
/// the number of threads. When a running job is abandoned, another thread replaces its thread at once, and the old one
/// leaves the pool when the job ends.
pub(super) struct SearchPool {
    jobs: Sender<SearchJob>,
    shared: Arc<SearchPoolState>,
    start: ThreadStart,
}

/// Function that starts a thread.
type ThreadStart = fn(Box<dyn FnOnce() + Send>) -> std::io::Result<()>;

struct SearchPoolState {
    queue: Mutex<Receiver<SearchJob>>,
    /// One permit per thread that is not stuck.
    free: Arc<FairSemaphore>,
    stuck: AtomicUsize,
}

/// A job's work. Returns the completion to run after the thread is free again, which replies to the caller.
pub(super) type JobWork = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

/// Queued work with its state.
struct SearchJob {
    work: JobWork,
    ticket: Arc<JobTicket>,
    permit: FairPermit,
}

/// State of a job, shared with its caller.
#[derive(Debug, Default)]
pub(super) struct JobTicket(AtomicU8);

impl JobTicket {
    /// Returns `true` if the job has ended or was abandoned.
    pub(super) fn ended(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), ENDED | GIVEN_UP)
    }
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;
const GIVEN_UP: u8 = 3;

impl SearchPool {
    /// Starts `threads` threads, for which up to `waiting` searches may wait.
    pub(super) fn new(threads: usize, waiting: usize) -> std::io::Result<SearchPool> {
        let (jobs, queue) = channel();
        let free = FairSemaphore::new(threads, waiting);
        let shared = Arc::new(SearchPoolState { queue: Mutex::new(queue), free, stuck: AtomicUsize::new(0) });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            start(Box::new(move || while shared.run_next_job() {}))?;
        }
        Ok(SearchPool { jobs, shared, start })
    }

    /// Queues a search of `tenant` for a thread; see [`FairSemaphore::wait`]. The permit reserves the thread.
    pub(super) fn thread(&self, tenant: u64) -> Option<oneshot::Receiver<FairPermit>> {
        self.shared.free.wait(tenant)
    }

    /// Returns the number of free threads.
    pub(super) fn free(&self) -> usize {
        self.shared.free.free()
    }

    /// Runs `work` on the thread that `permit` reserves.
    pub(super) fn run(&self, permit: FairPermit, work: JobWork) -> Arc<JobTicket> {
        let ticket = Arc::new(JobTicket::default());
        // Sending fails only after every thread has ended; the work is then dropped together with its reply channel.
        let _ = self.jobs.send(SearchJob { work, ticket: Arc::clone(&ticket), permit });
        ticket
    }

    /// Abandons a job: a waiting job is not started, and the thread of a running job is replaced. If the system refuses
    /// another thread, the thread stays in the pool and is free again when the job ends.
    pub(super) fn give_up(&self, ticket: &Arc<JobTicket>) {
        if ticket.0.compare_exchange(WAITING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok() || ticket.ended() {
            return;
        }
        let more = |stuck: usize| (stuck < MAX_STUCK).then_some(stuck + 1);
        // Counted before a thread is started, so that concurrent calls cannot exceed the bound.
        if self.shared.stuck.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return;
        }
        // The new thread exists before the old one is given up.
        let shared = Arc::clone(&self.shared);
        let ticket = Arc::clone(ticket);
        let span = Span::current();
        let replace = move || {
            if shared.replace(&ticket) {
                span.in_scope(|| tracing::warn!("a search exceeded its deadline: its thread was replaced"));
                drop(span);
                while shared.run_next_job() {}
            }
        };
        if let Err(error) = (self.start)(Box::new(replace)) {
            self.shared.stuck.fetch_sub(1, Ordering::SeqCst);
            tracing::error!(%error, "a search exceeded its deadline, and its thread could not be replaced");
        }
    }
}

fn start(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().name("search".to_owned()).spawn(work).map(drop)
}

impl SearchPoolState {
    /// Replaces the thread of a running job, from another thread. Returns `false` if the job has ended in the meantime.
    fn replace(&self, ticket: &JobTicket) -> bool {
        let hangs = ticket.0.compare_exchange(RUNNING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if hangs {
            self.free.add_permit();
        } else {
            self.stuck.fetch_sub(1, Ordering::SeqCst);
        }
        hangs
    }

    /// Runs the next job. Returns `true` if the thread should take another one.
    fn run_next_job(&self) -> bool {
        // The lock is held while waiting for a job, not while running it.
        let Ok(SearchJob { work, ticket, permit }) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv()
        else {
            return false;
        };
        let change = |from, to| ticket.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // The caller gave up while the job was queued. Dropping the permit frees the thread.
        if !change(WAITING, RUNNING) {
            return true;
        }
        let tell = work();
        // Fails if the caller has abandoned the job and another thread has replaced this one.
        let stays = change(RUNNING, ENDED);
        if stays {
            drop(permit);
        } else {
            // `replace` has added a permit for the new thread, so the permit of this one must not come back.
            permit.forget();
            self.stuck.fetch_sub(1, Ordering::SeqCst);
        }
        tell();
        stays
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Creates a job that signals its start and ends on a signal.
    fn held() -> (JobWork, Receiver<()>, Sender<()>) {
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let work = move || -> Box<dyn FnOnce()> {
            begun.send(()).unwrap();
            let _ = ends.recv();
            Box::new(|| ())
        };
        (Box::new(work), begins, end)
    }

    /// Starts such a job on the only thread of `pool` and abandons it.
    async fn given_up(pool: &SearchPool) -> Sender<()> {
        let (work, begins, end) = held();
        let ticket = pool.run(pool.thread(0).unwrap().await.unwrap(), work);
        begins.recv_timeout(PATIENCE).unwrap();
        pool.give_up(&ticket);
        end
    }

    /// Checks that the only thread of `pool` takes jobs, and that no job is stuck.
    async fn works(pool: &SearchPool) {
        let permit = tokio::time::timeout(PATIENCE, pool.thread(0).unwrap()).await.unwrap().unwrap();
        let (done, said) = channel();
        let tell = move || {
            let _ = done.send(7);
        };
        pool.run(permit, Box::new(move || -> Box<dyn FnOnce()> { Box::new(tell) }));
        assert_eq!(said.recv_timeout(PATIENCE), Ok(7));
        let began = Instant::now();
        while (pool.free(), pool.shared.stuck.load(Ordering::SeqCst), Arc::strong_count(&pool.shared)) != (1, 0, 2) {
            assert!(began.elapsed() < PATIENCE, "{} threads hold the pool", Arc::strong_count(&pool.shared) - 1);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[tokio::test]
    async fn a_thread_that_cannot_be_replaced_comes_back() {
        let pool =
            SearchPool { start: |_| Err(std::io::Error::other("there are no more")), ..SearchPool::new(1, 8).unwrap() };
        let end = given_up(&pool).await;
        assert_eq!(pool.free(), 0);
        end.send(()).unwrap();
        works(&pool).await;
    }

    #[tokio::test]
    async fn a_job_that_ends_while_its_thread_is_replaced_keeps_it() {
        let late = |work: Box<dyn FnOnce() + Send>| {
            start(Box::new(move || {
                std::thread::sleep(Duration::from_millis(50));
                work();
            }))
        };
        let pool = SearchPool { start: late, ..SearchPool::new(1, 8).unwrap() };
        given_up(&pool).await.send(()).unwrap();
        works(&pool).await;
    }
}
