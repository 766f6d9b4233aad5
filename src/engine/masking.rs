//! Masks for constrained turns, found on threads of their own while the engine's thread computes logits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use waymark_models::sampler::TokenMask;

use super::constraint::{Constraint, Follow};
use super::worker::message;

/// Threads that find masks.
const THREADS: usize = 2;

/// How long the rows of a step wait for their masks, all together, once the logits are there. A mask takes tens of
/// microseconds and was begun a forward pass ago, so this is long; a row that has waited in vain leaves the step, which
/// goes on without it.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);

/// The threads, started with the first constrained turn.
#[derive(Debug, Default)]
pub(super) struct Masks {
    jobs: Option<Sender<Job>>,
}

#[derive(Debug)]
struct Job {
    work: Work,
    slot: Arc<Slot>,
}

#[derive(Debug)]
enum Work {
    Begin(Arc<dyn Constraint>),
    Next(Box<dyn Follow>, u32),
}

/// Where a turn finds its next mask.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Working,
    Done(Result<(Box<dyn Follow>, Option<TokenMask>), String>),
    /// Its mask is being used; the rule waits for the token that is chosen with it.
    Used(Option<Box<dyn Follow>>),
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Masks {
    /// Begins a turn: its first mask is found from now on.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(super) fn begin(&mut self, constraint: &Arc<dyn Constraint>) -> Result<Masking, String> {
        let jobs = match &self.jobs {
            Some(jobs) => jobs.clone(),
            None => self.jobs.insert(start()?).clone(),
        };
        let masking = Masking { jobs, slot: Arc::default() };
        masking.send(Work::Begin(Arc::clone(constraint)));
        Ok(masking)
    }
}

fn start() -> Result<Sender<Job>, String> {
    let (jobs, queue) = channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..THREADS {
        let queue = Arc::clone(&queue);
        let spawned = thread::Builder::new().name("waymark-grammar".into()).spawn(move || while one(&queue) {});
        spawned.map_err(|error| format!("no thread for grammars can be started: {error}"))?;
    }
    Ok(jobs)
}

/// Does the next job; false when there will be none any more.
fn one(queue: &Mutex<Receiver<Job>>) -> bool {
    // The lock is held while waiting for a job, not while doing it.
    let Ok(Job { work, slot }) = queue.lock().unwrap_or_else(PoisonError::into_inner).recv() else { return false };
    let done = catch_unwind(AssertUnwindSafe(|| work.done()));
    let done = done.unwrap_or_else(|panic| Err(format!("panic: {}", message(panic.as_ref()))));
    *slot.lock() = State::Done(done);
    slot.done.notify_one();
    true
}

impl Work {
    fn done(self) -> Result<(Box<dyn Follow>, Option<TokenMask>), String> {
        let mut rule = match self {
            Work::Begin(constraint) => constraint.begin(),
            Work::Next(mut rule, id) => {
                rule.accept(id)?;
                rule
            }
        };
        let mask = rule.allowed()?;
        Ok((rule, mask))
    }
}

/// One turn's masks, one after the other.
#[derive(Debug)]
pub(super) struct Masking {
    jobs: Sender<Job>,
    slot: Arc<Slot>,
}

/// What came of waiting for a mask.
#[derive(Debug)]
pub(super) enum Waited {
    /// The mask; none where any token may come.
    Mask(Option<TokenMask>),
    /// It is not there yet.
    Late,
    Failed(String),
}

impl Masking {
    fn send(&self, work: Work) {
        if self.jobs.send(Job { work, slot: Arc::clone(&self.slot) }).is_err() {
            *self.slot.lock() = State::Done(Err("the threads for grammars have ended".into()));
        }
    }

    /// The mask for the next token, if it comes in time.
    pub(super) fn wait(&self, until: Instant) -> Waited {
        let working = |state: &mut State| matches!(state, State::Working);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.slot.done.wait_timeout_while(self.slot.lock(), left, working);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Used(None)) {
            State::Working => {
                *state = State::Working;
                Waited::Late
            }
            State::Done(Ok((rule, mask))) => {
                *state = State::Used(Some(rule));
                Waited::Mask(mask)
            }
            State::Done(Err(reason)) => Waited::Failed(reason),
            used @ State::Used(_) => {
                *state = used;
                Waited::Failed("its mask was used already".into())
            }
        }
    }

    /// Has the mask after `id` found.
    pub(super) fn advance(&self, id: u32) {
        let used = std::mem::replace(&mut *self.slot.lock(), State::Working);
        match used {
            State::Used(Some(rule)) => self.send(Work::Next(rule, id)),
            other => *self.slot.lock() = other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Allows one token after the other: 0, 1, 2 … up to a token at which something goes wrong.
    #[derive(Debug, Clone)]
    struct Counting {
        next: u32,
        panics_at: u32,
        takes: Duration,
    }

    impl Constraint for Counting {
        fn begin(&self) -> Box<dyn Follow> {
            Box::new(self.clone())
        }
    }

    impl Follow for Counting {
        fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
            thread::sleep(self.takes);
            assert!(self.next != self.panics_at, "no further");
            let mut mask = TokenMask::all(32);
            (0..32).filter(|&id| id != self.next).for_each(|id| mask.forbid(id));
            Ok(Some(mask))
        }

        fn accept(&mut self, id: u32) -> Result<(), String> {
            self.next = id + 1;
            Ok(())
        }
    }

    fn long() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn masks_follow_the_tokens_and_a_panic_is_an_error() {
        let rule: Arc<dyn Constraint> = Arc::new(Counting { next: 0, panics_at: 2, takes: Duration::ZERO });
        let mut masks = Masks::default();
        let masking = masks.begin(&rule).unwrap();
        assert!(matches!(masking.wait(long()), Waited::Mask(Some(_))));
        assert!(matches!(masking.wait(long()), Waited::Failed(_)), "a mask is used once");
        masking.advance(0);
        assert!(matches!(masking.wait(long()), Waited::Mask(Some(_))));
        masking.advance(1);
        assert!(matches!(masking.wait(long()), Waited::Failed(reason) if reason.contains("no further")));
        let other = masks.begin(&rule).unwrap();
        assert!(matches!(other.wait(long()), Waited::Mask(Some(_))), "the thread lives on");
    }

    #[test]
    fn nobody_waits_for_long() {
        let rule: Arc<dyn Constraint> = Arc::new(Counting { next: 0, panics_at: 9, takes: Duration::from_millis(50) });
        let masking = Masks::default().begin(&rule).unwrap();
        assert!(matches!(masking.wait(Instant::now()), Waited::Late));
        assert!(matches!(masking.wait(long()), Waited::Mask(Some(_))), "and it comes all the same");
    }
}
