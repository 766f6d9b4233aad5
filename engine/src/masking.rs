//! Token masks for constrained turns, computed on separate threads while the engine thread computes logits.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use waymark_models::sampler::TokenMask;

use super::constraint::{Constraint, ConstraintState};
use super::error::EngineError;
use super::request::Generate;
use super::worker::panic_message;

/// Number of threads that compute masks.
const THREADS: usize = 2;

/// Maximum time that all rows of a step together wait for their masks after the logits are ready. Only masks that missed
/// the submission are left to wait for; a mask takes tens of microseconds and was started before the forward pass, so this
/// limit is generous. A row whose mask is late even then misses the step.
const MASK_TIMEOUT: Duration = Duration::from_millis(2);

/// Maximum time that all rows of a step together wait for their masks before the step is submitted. A row whose mask is
/// ready is sampled by the backend; the logits of the others are copied back and sampled when their masks are ready. A
/// turn whose last mask took longer than this does not wait at all.
const SUBMIT_TIMEOUT: Duration = Duration::from_micros(500);

/// Pool of mask threads, started with the first constrained turn.
#[derive(Debug, Default)]
pub(super) struct Masks {
    jobs: Option<Sender<MaskJob>>,
}

#[derive(Debug)]
struct MaskJob {
    work: MaskWork,
    slot: Arc<MaskSlot>,
    sent: Instant,
}

#[derive(Debug)]
enum MaskWork {
    Begin(Arc<dyn Constraint>),
    Next(Box<dyn ConstraintState>, u32),
}

/// Hand-over of a turn's next mask between the mask threads and the engine thread.
#[derive(Debug, Default)]
struct MaskSlot {
    state: Mutex<MaskState>,
    done: Condvar,
}

#[derive(Debug, Default)]
enum MaskState {
    #[default]
    Working,
    Done(Result<ComputedMask, EngineError>),
    /// The engine thread has taken the mask; the rule waits for the token chosen with it.
    Used(Option<Box<dyn ConstraintState>>),
}

#[derive(Debug)]
struct ComputedMask {
    rule: Box<dyn ConstraintState>,
    mask: Option<TokenMask>,
    /// Time since the mask was asked for.
    took: Duration,
}

impl MaskSlot {
    fn lock(&self) -> MutexGuard<'_, MaskState> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Masks {
    /// Begins the masks of a turn. Returns `None` for a turn without a constraint.
    ///
    /// # Errors
    /// [`EngineError::Sample`] when the operating system refuses a thread.
    pub(super) fn begin_turn(&mut self, generate: &Generate) -> Result<Option<Masking>, EngineError> {
        let constraint = generate.constraint.as_ref();
        constraint.map(|constraint| self.begin(constraint)).transpose().map_err(EngineError::Sample)
    }

    /// Returns the time until which a step whose logits are ready waits for masks.
    pub(super) fn deadline() -> Instant {
        Instant::now() + MASK_TIMEOUT
    }

    /// Returns the time until which a step that is about to be submitted waits for masks.
    pub(super) fn submit_deadline() -> Instant {
        Instant::now() + SUBMIT_TIMEOUT
    }

    /// Begins a turn: a mask thread starts to compute its first mask.
    ///
    /// # Errors
    /// The message of the operating system when it refuses a thread.
    fn begin(&mut self, constraint: &Arc<dyn Constraint>) -> Result<Masking, String> {
        let jobs = match &self.jobs {
            Some(jobs) => jobs.clone(),
            // Most servers never see a constrained turn and need no such threads.
            None => self.jobs.insert(start()?).clone(),
        };
        let masking = Masking { jobs, slot: Arc::default(), slow: false };
        masking.send(MaskWork::Begin(Arc::clone(constraint)));
        Ok(masking)
    }
}

fn start() -> Result<Sender<MaskJob>, String> {
    let (jobs, queue) = channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..THREADS {
        let queue = Arc::clone(&queue);
        let spawned =
            thread::Builder::new().name("waymark-grammar".into()).spawn(move || while run_next_job(&queue) {});
        spawned.map_err(|error| format!("cannot start a grammar thread: {error}"))?;
    }
    Ok(jobs)
}

/// Executes the next job. Returns `false` when the channel is closed.
fn run_next_job(queue: &Mutex<Receiver<MaskJob>>) -> bool {
    // The lock is held while waiting for a job, not while doing it.
    let Ok(job) = queue.lock().unwrap_or_else(PoisonError::into_inner).recv() else { return false };
    let MaskJob { work, slot, sent } = job;
    let done = catch_unwind(AssertUnwindSafe(|| work.done(sent)));
    let panicked =
        |panic: Box<dyn Any + Send>| EngineError::Sample(format!("panic: {}", panic_message(panic.as_ref())));
    let done = done.map_err(panicked).and_then(|made| made.map_err(EngineError::Constraint));
    *slot.lock() = MaskState::Done(done);
    slot.done.notify_one();
    true
}

impl MaskWork {
    fn done(self, sent: Instant) -> Result<ComputedMask, String> {
        let mut rule = match self {
            MaskWork::Begin(constraint) => constraint.begin(),
            MaskWork::Next(mut rule, id) => {
                rule.accept(id)?;
                rule
            }
        };
        let mask = rule.allowed()?;
        Ok(ComputedMask { rule, mask, took: sent.elapsed() })
    }
}

/// Sequence of masks of one turn.
#[derive(Debug)]
pub(super) struct Masking {
    jobs: Sender<MaskJob>,
    slot: Arc<MaskSlot>,
    /// If `true`, the last mask took longer than [`SUBMIT_TIMEOUT`], or the next one was not ready within it.
    slow: bool,
}

/// Result of waiting for a mask.
#[derive(Debug)]
pub(super) enum MaskWait {
    /// The mask; `None` allows every token.
    Mask(Option<TokenMask>),
    /// The mask is not ready yet.
    Late,
    Failed(EngineError),
}

impl Masking {
    fn send(&self, work: MaskWork) {
        if self.jobs.send(MaskJob { work, slot: Arc::clone(&self.slot), sent: Instant::now() }).is_err() {
            *self.slot.lock() = MaskState::Done(Err(EngineError::Sample("the grammar threads have ended".into())));
        }
    }

    /// Waits for the mask of the next token until `until`, before the step is submitted: not at all if masks of the turn
    /// are slow, since every other row of the step would wait as well.
    pub(super) fn wait_to_submit(&mut self, until: Instant) -> MaskWait {
        let wait = self.wait(if self.slow { Instant::now() } else { until });
        self.slow |= matches!(wait, MaskWait::Late);
        wait
    }

    /// Waits for the mask of the next token until `until`.
    pub(super) fn wait(&mut self, until: Instant) -> MaskWait {
        let working = |state: &mut MaskState| matches!(state, MaskState::Working);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.slot.done.wait_timeout_while(self.slot.lock(), left, working);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, MaskState::Used(None)) {
            // The mask thread will store its result here later.
            MaskState::Working => {
                *state = MaskState::Working;
                MaskWait::Late
            }
            MaskState::Done(Ok(ComputedMask { rule, mask, took })) => {
                *state = MaskState::Used(Some(rule));
                self.slow = took > SUBMIT_TIMEOUT;
                MaskWait::Mask(mask)
            }
            MaskState::Done(Err(error)) => MaskWait::Failed(error),
            used @ MaskState::Used(_) => {
                *state = used;
                MaskWait::Failed(EngineError::Sample("the mask of this step was already taken".into()))
            }
        }
    }

    /// Starts the computation of the mask that follows token `id`.
    pub(super) fn advance(&self, id: u32) {
        let used = std::mem::replace(&mut *self.slot.lock(), MaskState::Working);
        match used {
            MaskState::Used(Some(rule)) => self.send(MaskWork::Next(rule, id)),
            other => *self.slot.lock() = other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Allows the tokens 0, 1, 2, … one after the other, up to a token at which it panics.
    #[derive(Debug, Clone)]
    struct Counting {
        next: u32,
        panics_at: u32,
        /// Time that the mask of each token takes.
        takes: fn(u32) -> Duration,
    }

    impl Constraint for Counting {
        fn begin(&self) -> Box<dyn ConstraintState> {
            Box::new(self.clone())
        }
    }

    impl ConstraintState for Counting {
        fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
            thread::sleep((self.takes)(self.next));
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
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn masks_follow_the_tokens_and_a_panic_is_an_error() {
        let rule: Arc<dyn Constraint> = Arc::new(Counting { next: 0, panics_at: 2, takes: |_| Duration::ZERO });
        let mut masks = Masks::default();
        let mut masking = masks.begin(&rule).unwrap();
        assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))));
        assert!(matches!(masking.wait(long()), MaskWait::Failed(_)), "a mask is used once");
        masking.advance(0);
        assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))));
        masking.advance(1);
        assert!(
            matches!(masking.wait(long()), MaskWait::Failed(EngineError::Sample(reason)) if reason.contains("no further"))
        );
        let mut other = masks.begin(&rule).unwrap();
        assert!(matches!(other.wait(long()), MaskWait::Mask(Some(_))), "the thread lives on");
    }

    #[test]
    fn nobody_waits_for_long() {
        let takes = |_| Duration::from_secs(2);
        let rule: Arc<dyn Constraint> = Arc::new(Counting { next: 0, panics_at: 9, takes });
        let mut masking = Masks::default().begin(&rule).unwrap();
        assert!(matches!(masking.wait(Instant::now()), MaskWait::Late));
        assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))), "and it comes all the same");
    }

    #[test]
    fn steps_do_not_wait_for_a_turn_of_slow_masks_until_one_is_in_time() {
        let takes = |next| if next < 2 { Duration::from_secs(1) } else { Duration::ZERO };
        let rule: Arc<dyn Constraint> = Arc::new(Counting { next: 0, panics_at: u32::MAX, takes });
        let mut masking = Masks::default().begin(&rule).unwrap();
        assert!(matches!(masking.wait_to_submit(Instant::now() + SUBMIT_TIMEOUT), MaskWait::Late));
        assert!(matches!(masking.wait_to_submit(long()), MaskWait::Late), "no second wait for the same mask");
        assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))));
        masking.advance(0);
        assert!(matches!(masking.wait_to_submit(long()), MaskWait::Late), "the last mask was slow");
        assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))));
        // On a busy machine, any mask may be late.
        let waited = (1..1000).any(|id| {
            masking.advance(id);
            assert!(matches!(masking.wait(long()), MaskWait::Mask(Some(_))));
            !masking.slow
        });
        assert!(waited, "a mask in time lets the next one be waited for");
        masking.advance(1000);
        assert!(matches!(masking.wait_to_submit(long()), MaskWait::Mask(Some(_))));
    }
}
