//! A fork-join team of threads for kernels that run for microseconds.
//!
//! A decode step has a few hundred short parallel regions, so starting one must cost about a microsecond and no
//! allocation: workers live as long as the team, stay awake for some tens of microseconds after their last region,
//! and only then park. The caller takes part as worker 0.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Number of polls before a waiter starts to yield its core: a few microseconds. Not more, because when other
/// programs leave the team fewer cores than threads, the awaited thread may need this very core.
const SPINS: u32 = 60;
/// Number of yields before a waiter parks: some tens of microseconds on an idle machine.
const YIELDS: u32 = 200;

use super::item_claims::ItemClaims;
use super::lanes::LANES;
use super::packed;
use super::worker_memory::WorkerMemory;

type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed number of threads that run one body together and wait for one another.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of one region, so concurrent callers take turns.
    turn: Mutex<()>,
    /// Number of items claimed in the current [`sweep`](Self::sweep), per thread.
    cursors: Box<[CacheAligned<AtomicUsize>]>,
    /// Working memory per thread; see [`memory`](Self::memory).
    memories: Box<[CacheAligned<Mutex<Vec<packed::CacheLine>>>]>,
}

/// A cache line of its own for fields that different threads write.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CacheAligned<T>(pub(super) T);

struct Shared {
    /// Number of the current region; workers wait for it to change.
    region: CacheAligned<AtomicUsize>,
    /// Number of workers that have not finished the current region.
    running: CacheAligned<AtomicUsize>,
    /// Body and caller of the current region; written only while no worker runs.
    job: Mutex<Option<Job>>,
    /// First panic of a worker in the current region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    /// Set per worker while the worker is parked or about to park.
    parked: Box<[CacheAligned<AtomicBool>]>,
}

#[derive(Clone)]
struct Job {
    body: BodyPointer,
    caller: Thread,
    /// Number of threads that run the body, the caller included.
    threads: usize,
}

/// Pointer to the body with its lifetime erased; [`Team::run`] keeps the body alive until every worker is done.
#[derive(Clone, Copy)]
struct BodyPointer(*const Body<'static>);

// SAFETY: the pointee is `Sync`, and `Team::run` outlives every use.
unsafe impl Send for BodyPointer {}

impl Team {
    /// Starts a team of `threads` threads, including the caller of [`run`](Self::run); 0 counts as 1. If the system
    /// refuses a thread, the team continues with those started, as reported by [`threads`](Self::threads).
    pub fn new(threads: usize) -> Self {
        Self::assemble(threads, |worker, shared| {
            thread::Builder::new().name(format!("kernel-{worker}")).spawn(move || shared.work(worker))
        })
    }

    fn assemble(threads: usize, start: impl Fn(usize, Arc<Shared>) -> io::Result<JoinHandle<()>>) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            region: CacheAligned(AtomicUsize::new(0)),
            running: CacheAligned(AtomicUsize::new(0)),
            job: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            parked: (0..threads).map(|_| CacheAligned(AtomicBool::new(false))).collect(),
        });
        let mut workers = Vec::with_capacity(threads - 1);
        for worker in 1..threads {
            match start(worker, shared.clone()) {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    tracing::warn!(wanted = threads, got = worker, %error, "the system refuses more threads");
                    break;
                }
            }
        }
        let cursors = (0..=workers.len()).map(|_| CacheAligned(AtomicUsize::new(0))).collect();
        let memories = (0..=workers.len()).map(|_| CacheAligned(Mutex::new(Vec::new()))).collect();
        Self { shared, workers, turn: Mutex::new(()), cursors, memories }
    }

    /// Number of threads that run a body.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(worker, workers)` once on every thread and returns when all are done.
    ///
    /// Callable from any thread; concurrent callers take turns. A call from inside a body of the same team
    /// deadlocks.
    ///
    /// # Panics
    /// If the body panics on any thread: resumes this panic after all threads are done.
    pub fn run(&self, body: &Body<'_>) {
        if self.workers.is_empty() {
            return body(0, 1);
        }
        self.region(&|| (), body);
    }

    /// Distributes the items below `count`: `body` runs once on every thread and takes items from its claims. A
    /// thread processes its own contiguous share in order, which favors the hardware prefetcher, and then takes
    /// over items of other threads.
    pub(crate) fn sweep(&self, count: usize, body: &(dyn Fn(ItemClaims<'_>) + Sync)) {
        if self.workers.is_empty() {
            return body(ItemClaims::new(&[CacheAligned(AtomicUsize::new(0))], count, 0));
        }
        let reset = || self.cursors.iter().for_each(|cursor| cursor.0.store(0, Ordering::Relaxed));
        self.region(&reset, &|worker, _| body(ItemClaims::new(&self.cursors, count, worker)));
    }

    /// Working memory of at least `lines` cache lines, with arbitrary content, for thread `worker` in its body of a
    /// [`sweep`](Self::sweep). The memory is kept, so a similar region allocates nothing. Only concurrent callers
    /// of a team of one thread, which otherwise do not take turns, ever wait for it.
    pub(super) fn memory(&self, worker: usize, lines: usize) -> MutexGuard<'_, Vec<packed::CacheLine>> {
        let mut memory = lock(&self.memories[worker].0);
        if memory.len() < lines {
            let missing = lines - memory.len();
            memory.reserve_exact(missing);
            memory.resize(lines, packed::CacheLine([0; 64]));
        }
        memory
    }

    /// Working memory of thread `worker` for `len` values, like [`memory`](Self::memory). Bodies that allocated buffers
    /// of their own would need more or less memory at once, depending on how much their threads overlap.
    pub(crate) fn floats(&self, worker: usize, len: usize) -> WorkerMemory<'_> {
        WorkerMemory::new(self.memory(worker, len.div_ceil(LANES)))
    }

    /// Runs one parallel region. `prepare` runs first, while no other region is active.
    fn region(&self, prepare: &dyn Fn(), body: &Body<'_>) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        prepare();
        self.shared.start(body, &self.workers);
        let own = catch_unwind(AssertUnwindSafe(|| body(0, self.threads())));
        self.shared.join();
        let other = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(panic) = own.err().or(other) {
            resume_unwind(panic);
        }
    }

    /// Runs `body(item)` for every item below `count`, in unspecified order.
    pub fn each(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.workers.is_empty() {
            return (0..count).for_each(body);
        }
        self.sweep(count, &|claims| claims.for_each(body));
    }

    /// Returns `body(item)` for every item below `count`, in order.
    pub fn map<T: Send + Sync>(&self, count: usize, body: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        let results: Vec<_> = (0..count).map(|_| OnceLock::new()).collect();
        self.each(count, &|item| drop(results[item].set(body(item))));
        // All are set: a panic of the body would have ended `each`.
        results.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    /// Splits the rows of `data`, each `width` values, into one contiguous share per thread and runs
    /// `body(first row, share)` on each. With fewer than `grain` rows per thread, fewer threads take part.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn rows<T: Send>(&self, data: &mut [T], width: usize, grain: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
        assert!(width > 0 && data.len().is_multiple_of(width), "data is not a whole number of rows");
        let rows = data.len() / width;
        let shares = (rows / grain.max(1)).clamp(1, self.threads());
        if shares == 1 {
            return body(0, data);
        }
        let base = Base(data.as_mut_ptr());
        self.run(&|worker, _| {
            let range = share(rows, worker, shares);
            if range.is_empty() {
                return;
            }
            let len = range.len() * width;
            // SAFETY: shares of different workers are disjoint row ranges inside `data`, which is borrowed mutably
            // until `run` returns.
            let part = unsafe { std::slice::from_raw_parts_mut(base.at(range.start * width), len) };
            body(range.start, part);
        });
    }
}

/// Part of `0..count` for share `index` of `shares`: contiguous, with sizes differing by at most one, and empty for
/// an `index` beyond `shares`.
pub fn share(count: usize, index: usize, shares: usize) -> Range<usize> {
    let at = |index: usize| count * index.min(shares) / shares;
    at(index)..at(index + 1)
}

/// A base address that may be sent to workers, which write disjoint parts after it.
pub(crate) struct Base<T>(pub(crate) *mut T);

// SAFETY: only an address; code that dereferences it is responsible for disjointness.
unsafe impl<T: Send> Send for Base<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    /// Address of the element at `offset`.
    ///
    /// # Safety
    /// `offset` must lie inside the allocation.
    pub(crate) unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.add(offset) }
    }
}

impl Shared {
    fn start(&self, body: &Body<'_>, workers: &[JoinHandle<()>]) {
        // SAFETY: only the lifetime changes; `Team::run` does not return before `join` has seen every worker finish.
        let body = BodyPointer(unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) });
        *lock(&self.job) = Some(Job { body, caller: thread::current(), threads: workers.len() + 1 });
        self.running.0.store(workers.len(), Ordering::Relaxed);
        self.region.0.fetch_add(1, Ordering::SeqCst);
        self.wake(workers);
    }

    fn wake(&self, workers: &[JoinHandle<()>]) {
        for (worker, handle) in workers.iter().enumerate() {
            if self.parked[worker + 1].0.swap(false, Ordering::SeqCst) {
                handle.thread().unpark();
            }
        }
    }

    fn join(&self) {
        let done = || self.running.0.load(Ordering::SeqCst) == 0;
        if !poll(done) {
            // The last worker unparks the caller unconditionally, possibly after this call has returned. That costs one
            // spurious wake-up of a later loop like this one.
            while !done() {
                thread::park();
            }
        }
        *lock(&self.job) = None;
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            wait(&self.parked[worker].0, || self.region.0.load(Ordering::SeqCst) != seen);
            seen = self.region.0.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let Some(Job { body, caller, threads }) = lock(&self.job).clone() else { continue };
            // SAFETY: the caller waits in `join` until this worker has decremented the count below, and the body is
            // not used after that.
            let body = unsafe { &*body.0 };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(worker, threads))) {
                lock(&self.panic).get_or_insert(panic);
            }
            // Once the count is 0 the region is over, and another caller may have begun the next one: from here on
            // only this thread's own handle of the caller may be used, and no state of the region.
            if self.running.0.fetch_sub(1, Ordering::SeqCst) == 1 {
                caller.unpark();
            }
        }
    }
}

/// Polls for a while, first spinning, then yielding. Returns `true` as soon as `ready` does.
fn poll(ready: impl Fn() -> bool) -> bool {
    for turn in 0..SPINS + YIELDS {
        if ready() {
            return true;
        }
        if turn < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
    }
    false
}

/// Waits until `ready`, first polling, then parked with `parked` set so that the other side knows to unpark.
fn wait(parked: &AtomicBool, ready: impl Fn() -> bool) {
    if poll(&ready) {
        return;
    }
    loop {
        // Either this thread sees the condition after setting the flag, or the other side sees the flag after
        // making the condition true: both sides use sequentially consistent order.
        parked.store(true, Ordering::SeqCst);
        if ready() {
            parked.store(false, Ordering::SeqCst);
            return;
        }
        thread::park();
    }
}

/// Locks a mutex, ignoring poison: a panic elsewhere leaves these mutexes' plain data intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.region.0.fetch_add(1, Ordering::SeqCst);
        self.shared.wake(&self.workers);
        for worker in self.workers.drain(..) {
            // A worker catches its own panics, so the join cannot fail.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_worker_runs_once_per_region() {
        for threads in [1, 2, 3, 7] {
            let team = Team::new(threads);
            let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for region in 0..300 {
                team.run(&|worker, workers| {
                    assert_eq!(workers, threads);
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                if region % 100 == 0 {
                    thread::sleep(Duration::from_millis(2)); // let them park
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == region + 1));
            }
        }
    }

    #[test]
    fn slow_workers_are_waited_for() {
        let team = Team::new(3);
        let done = AtomicUsize::new(0);
        team.run(&|worker, _| {
            thread::sleep(Duration::from_millis(5 * worker as u64));
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(3);
        for victim in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|worker, _| assert!(worker != victim, "worker {worker} fell"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("worker {victim} fell"));
        }
        let count = AtomicUsize::new(0);
        team.each(100, &|item| {
            count.fetch_add(item, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 4950);
    }

    #[test]
    fn results_come_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads);
            let squares: Vec<_> = (0..40).map(|item| item * item).collect();
            assert_eq!(team.map(40, &|item| item * item), squares);
            assert_eq!(team.map(0, &|item| item), [0; 0]);
        }
    }

    #[test]
    fn concurrent_callers_take_turns() {
        let team = Team::new(2);
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        team.run(&|_, workers| {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < workers);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn no_caller_sleeps_for_ever_while_others_take_over() {
        const CALLERS: usize = 6;
        let team = Arc::new(Team::new(3));
        let (sender, receiver) = std::sync::mpsc::channel();
        for caller in 0..CALLERS {
            let team = team.clone();
            let sender = sender.clone();
            thread::spawn(move || {
                for region in 0..400 {
                    team.run(&|worker, _| {
                        // The sleep is often long enough for the caller to park, and ends at a different moment each
                        // time.
                        if worker > 0 && (region + caller) % 3 > 0 {
                            thread::sleep(Duration::from_micros((region * 7 % 40) as u64));
                        }
                    });
                }
                sender.send(()).unwrap();
            });
        }
        for _ in 0..CALLERS {
            receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }

    #[test]
    fn a_sweep_reaches_every_item_once_and_a_slow_thread_is_helped() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads);
            for count in [0, 1, 3, 1000] {
                let reached: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                team.sweep(count, &|claims| {
                    for item in claims {
                        if item == 0 && count > 1 {
                            thread::sleep(Duration::from_millis(5));
                        }
                        reached[item].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(reached.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn memory_is_kept_from_region_to_region_one_piece_per_thread() {
        for threads in [1, 3] {
            let team = Team::new(threads);
            let sweep = |lines: usize, before: u8, after: u8| {
                team.sweep(0, &|claims| {
                    let mut memory = team.memory(claims.worker(), lines);
                    assert!(memory.len() >= lines && memory[..2].iter().all(|line| line.0 == [before; 64]));
                    memory.fill(packed::CacheLine([after; 64]));
                });
            };
            sweep(2, 0, 1);
            sweep(5, 1, 2);
            sweep(2, 2, 3);
            team.sweep(0, &|claims| assert_eq!(team.memory(claims.worker(), 0).len(), 5));
        }
    }

    #[test]
    fn a_team_goes_on_with_the_threads_it_gets() {
        let team = Team::assemble(4, |worker, shared| match worker {
            1 => Ok(thread::spawn(move || shared.work(worker))),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        });
        assert_eq!(team.threads(), 2);
        let runs = AtomicUsize::new(0);
        team.run(&|worker, workers| {
            assert!(worker < 2 && workers == 2);
            runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.into_inner(), 2);
    }

    #[test]
    fn rows_are_split_without_overlap() {
        let team = Team::new(4);
        for rows in [1, 2, 5, 64] {
            let mut data = vec![0u32; rows * 3];
            team.rows(&mut data, 3, 1, &|first, part| {
                for (row, values) in part.chunks_exact_mut(3).enumerate() {
                    values.iter_mut().for_each(|value| *value += (first + row) as u32 + 1);
                }
            });
            assert!(data.iter().enumerate().all(|(i, &value)| value as usize == i / 3 + 1));
        }
        assert_eq!(share(10, 7, 4), 10..10);
    }
}
