//! Threads for searches that block, and what becomes of those that hang.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Span;

/// Threads that hanging searches may hold besides the pool's own. Beyond them a hanging search costs its thread.
const MAX_STUCK: usize = 64;

/// So many threads that take jobs from one queue. Who runs a job holds a permit, so the queue never grows beyond the
/// threads; when a job is given up while it runs, its thread leaves the pool once it comes back, and another takes its
/// place at once.
pub(super) struct Pool {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    start: Start,
}

/// How a thread is begun.
type Start = fn(Box<dyn FnOnce() + Send>) -> std::io::Result<()>;

struct Shared {
    queue: Mutex<Receiver<Job>>,
    /// As many as there are threads that are not stuck.
    free: Arc<Semaphore>,
    stuck: AtomicUsize,
}

/// What is to be done. It gives what is to be done once its thread is free again: telling its caller.
pub(super) type Work = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

/// Work, and how its caller can give it up.
struct Job {
    work: Work,
    ticket: Arc<Ticket>,
    permit: OwnedSemaphorePermit,
}

/// A job, from the side of its caller.
#[derive(Debug, Default)]
pub(super) struct Ticket(AtomicU8);

impl Ticket {
    /// Whether the job needs nothing any more.
    pub(super) fn ended(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), ENDED | GIVEN_UP)
    }
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;
const GIVEN_UP: u8 = 3;

impl Pool {
    pub(super) fn new(threads: usize) -> std::io::Result<Pool> {
        let (jobs, queue) = channel();
        let free = Arc::new(Semaphore::new(threads));
        let shared = Arc::new(Shared { queue: Mutex::new(queue), free, stuck: AtomicUsize::new(0) });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            start(Box::new(move || while shared.one() {}))?;
        }
        Ok(Pool { jobs, shared, start })
    }

    /// Waits until a thread is free, and holds it. Nothing where the pool has ended.
    pub(super) async fn thread(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.free).acquire_owned().await.ok()
    }

    /// How many threads are free.
    pub(super) fn free(&self) -> usize {
        self.shared.free.available_permits()
    }

    /// Does `work` on the thread that `permit` holds.
    pub(super) fn run(&self, permit: OwnedSemaphorePermit, work: Work) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        // Fails only when every thread is gone; then the work is dropped, and what it would have answered with.
        let _ = self.jobs.send(Job { work, ticket: Arc::clone(&ticket), permit });
        ticket
    }

    /// Gives a job up: it is not begun any more, or its thread is replaced. Where the system gives no other, its thread stays
    /// in the pool, and is free again when the job has ended.
    pub(super) fn give_up(&self, ticket: &Arc<Ticket>) {
        if ticket.0.compare_exchange(WAITING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok() || ticket.ended() {
            return;
        }
        let more = |stuck: usize| (stuck < MAX_STUCK).then_some(stuck + 1);
        if self.shared.stuck.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return;
        }
        // The other thread is there before the job's own is let go.
        let (shared, ticket, span) = (Arc::clone(&self.shared), Arc::clone(ticket), Span::current());
        let replace = move || {
            if shared.replace(&ticket) {
                span.in_scope(|| tracing::warn!("a search hangs: its thread was replaced"));
                drop(span);
                while shared.one() {}
            }
        };
        if let Err(error) = (self.start)(Box::new(replace)) {
            self.shared.stuck.fetch_sub(1, Ordering::SeqCst);
            tracing::error!(%error, "a search hangs, and its thread could not be replaced");
        }
    }
}

fn start(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().name("search".to_owned()).spawn(work).map(drop)
}

impl Shared {
    /// Takes the place of the thread that does a job, on another one; not where the job has ended in the meantime.
    fn replace(&self, ticket: &Ticket) -> bool {
        let hangs = ticket.0.compare_exchange(RUNNING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if hangs {
            self.free.add_permits(1);
        } else {
            self.stuck.fetch_sub(1, Ordering::SeqCst);
        }
        hangs
    }

    /// Does the next job; whether the thread is to take another.
    fn one(&self) -> bool {
        // The lock is held while waiting for a job, not while doing it.
        let Ok(Job { work, ticket, permit }) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv() else {
            return false;
        };
        let change = |from, to| ticket.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !change(WAITING, RUNNING) {
            return true;
        }
        let tell = work();
        let stays = change(RUNNING, ENDED);
        if stays {
            drop(permit);
        } else {
            // Somebody took its place.
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

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A job that says when it begins, and ends when it is told to.
    fn held() -> (Work, Receiver<()>, Sender<()>) {
        let ((begun, begins), (end, ends)) = (channel(), channel::<()>());
        let work = move || -> Box<dyn FnOnce()> {
            begun.send(()).unwrap();
            let _ = ends.recv();
            Box::new(|| ())
        };
        (Box::new(work), begins, end)
    }

    /// Begins such a job on the only thread of `pool`, and gives it up.
    async fn given_up(pool: &Pool) -> Sender<()> {
        let (work, begins, end) = held();
        let ticket = pool.run(pool.thread().await.unwrap(), work);
        begins.recv_timeout(PATIENCE).unwrap();
        pool.give_up(&ticket);
        end
    }

    /// The only thread of `pool` takes jobs, and nothing is stuck any more.
    async fn works(pool: &Pool) {
        let permit = tokio::time::timeout(PATIENCE, pool.thread()).await.unwrap().unwrap();
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
        let pool = Pool { start: |_| Err(std::io::Error::other("there are no more")), ..Pool::new(1).unwrap() };
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
        let pool = Pool { start: late, ..Pool::new(1).unwrap() };
        given_up(&pool).await.send(()).unwrap();
        works(&pool).await;
    }
}
