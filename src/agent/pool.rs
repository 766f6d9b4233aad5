//! Threads for searches that block, and what becomes of those that hang.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Threads that hanging searches may hold besides the pool's own. Beyond them a hanging search costs its thread.
const MAX_STUCK: usize = 64;

/// So many threads that take jobs from one queue. Who runs a job holds a permit, so the queue never grows beyond the
/// threads; when a job is given up while it runs, its thread leaves the pool once it comes back, and another takes its
/// place at once.
pub(super) struct Pool {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

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
        (0..threads).try_for_each(|_| spawn(Arc::clone(&shared)))?;
        Ok(Pool { jobs, shared })
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

    /// Gives a job up: it is not begun any more, or its thread is replaced.
    pub(super) fn give_up(&self, ticket: &Ticket) {
        if ticket.0.compare_exchange(WAITING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return;
        }
        let more = |stuck: usize| (stuck < MAX_STUCK).then_some(stuck + 1);
        if self.shared.stuck.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return;
        }
        let running = ticket.0.compare_exchange(RUNNING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !running {
            // It has ended in the meantime.
            self.shared.stuck.fetch_sub(1, Ordering::SeqCst);
        } else if let Err(error) = spawn(Arc::clone(&self.shared)) {
            tracing::error!(%error, "a search hangs, and its thread could not be replaced");
        } else {
            tracing::warn!("a search hangs: its thread was replaced");
            self.shared.free.add_permits(1);
        }
    }
}

fn spawn(shared: Arc<Shared>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("search".to_owned());
    thread.spawn(move || while shared.one() {}).map(drop)
}

impl Shared {
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
