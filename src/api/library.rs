//! The documents of the index that is served, and the one way to change them.
//!
//! One commit runs at a time. What comes meanwhile waits, and all of it that is about different documents goes into the next
//! one: a snapshot costs about the same for one document as for hundreds. Changes of the same document keep their order.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tracing::Span;
use waymark_index::{BuildProgress, Changes, CommitOptions, CommitReport, IndexError, LiveIndex, Phase};

use super::auth::{Caller, KeyId};
use super::documents::CommitResponse;
use super::drain::{self, Drain};
use super::error::{ApiError, Code};
use super::metrics::IndexMetrics;

/// Changes that may wait for the commit that runs; more are refused.
const WAITING: usize = 64;

/// Characters that are told of why a change failed. It is kept, and may name ids of any length.
const TOLD: usize = 512;

/// The documents of the index that is served.
#[derive(Debug)]
pub struct Library {
    /// The index itself.
    pub live: Arc<LiveIndex>,
    /// How changes are made; nothing where they are refused.
    options: Option<CommitOptions>,
    /// Held by the commit that runs.
    turn: Arc<tokio::sync::Mutex<()>>,
    queue: Queue,
    places: Places,
}

/// How far a change is.
#[derive(Debug, Clone)]
pub(crate) enum Course {
    /// It waits for the commit that runs.
    Queued,
    /// The commit that makes it runs.
    Running,
    /// It is over.
    Over(Result<CommitResponse, ApiError>),
}

/// What somebody holds who wants to know of a change. It is made also when nobody holds one any more.
#[derive(Debug, Clone)]
pub(crate) struct Ticket(watch::Receiver<Course>);

/// A change that is not made yet.
#[derive(Debug)]
struct Waiting {
    changes: Changes,
    begun: Instant,
    /// The request that it came with.
    span: Span,
    course: watch::Sender<Course>,
    place: Place,
}

/// Whose the changes are that wait or are made, one entry for each; clones share them.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<Vec<Option<KeyId>>>>);

/// Counts a change among those of its owner until it is dropped.
#[derive(Debug)]
struct Place {
    places: Places,
    owner: Option<KeyId>,
}

/// Changes in the order they came; clones share them.
#[derive(Debug, Clone, Default)]
struct Queue(Arc<Mutex<Vec<Waiting>>>);

/// What it takes to make changes.
struct Committer {
    live: Arc<LiveIndex>,
    options: CommitOptions,
    metrics: IndexMetrics,
}

impl Library {
    /// An index that can be changed.
    pub fn new(live: Arc<LiveIndex>, options: CommitOptions) -> Library {
        Library {
            live,
            options: Some(options),
            turn: Arc::default(),
            queue: Queue::default(),
            places: Places::default(),
        }
    }

    /// An index that is only read.
    pub fn read_only(live: Arc<LiveIndex>) -> Library {
        Library { options: None, ..Library::new(live, CommitOptions::default()) }
    }

    /// Takes in `changes` of `caller`'s, to be made after what came before and is about the same documents. They are
    /// counted in `metrics`, and `drain` waits for them.
    ///
    /// # Errors
    /// 400 for changes that contradict themselves, 403 where nothing may be changed, 429 when the caller has as many that
    /// are not made as it may, 503 when too many wait already. [`Ticket::over`] says what else may go wrong.
    pub(crate) fn enter(
        &self,
        changes: Changes,
        caller: &Caller,
        metrics: &IndexMetrics,
        drain: &Drain,
    ) -> Result<Ticket, ApiError> {
        let Some(options) = self.options.clone() else {
            let message = "this server only reads its index: start it without `--read-only-index`";
            return Err(ApiError::new(Code::ReadOnlyIndex, message));
        };
        changes.check().map_err(|error| refusal(&error))?;
        let place = self.places.take(caller)?;
        let (course, ticket) = watch::channel(Course::Queued);
        let ticket = Ticket(ticket);
        ticket.hold(drain);
        let (begun, span) = (Instant::now(), Span::current());
        self.queue.lock().push(Waiting { changes, begun, span, course, place });
        let committer = Committer { live: Arc::clone(&self.live), options, metrics: metrics.clone() };
        let (turn, queue) = (Arc::clone(&self.turn), self.queue.clone());
        // One turn for each change that came in: whoever's turn it is makes what is oldest, and others with it, so that no
        // change is left when all had theirs. It hangs on no request: a client that goes away takes nothing along.
        tokio::spawn(async move {
            let turn = turn.lock_owned().await;
            let work = move || {
                let _held = turn;
                committer.make_next(queue.next());
            };
            // A bug in there has told the log, and its changes are over without a word: see `Ticket`.
            let _ = tokio::task::spawn_blocking(work).await;
        });
        Ok(ticket)
    }
}

impl Ticket {
    /// How far the change is.
    pub(crate) fn course(&self) -> Course {
        // Asked first: what is left behind does not change any more.
        let left = self.0.has_changed().is_err();
        let course = self.0.borrow().clone();
        match course {
            Course::Queued | Course::Running if left => Course::Over(Err(bug())),
            course => course,
        }
    }

    /// What the change did, once it is made.
    ///
    /// # Errors
    /// 400 for a change that makes no sense in this index, 409 while another process writes, 500 when it failed.
    pub(crate) async fn over(mut self) -> Result<CommitResponse, ApiError> {
        let _ = self.0.wait_for(|course| matches!(course, Course::Over(_))).await;
        match self.course() {
            Course::Over(made) => made,
            Course::Queued | Course::Running => Err(bug()),
        }
    }

    /// Lets a drain wait for the change as for a request: its client may be gone, or may not have waited.
    fn hold(&self, drain: &Drain) {
        let (over, running, drain) = (self.clone().over(), drain.enter(), drain.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = over => {}
                () = drain.reached(drain::Phase::Expired) => {}
            }
            drop(running);
        });
    }
}

impl Places {
    /// A place for one more change of `caller`'s.
    ///
    /// # Errors
    /// 429 when the caller has as many as it may, 503 when all are taken.
    fn take(&self, caller: &Caller) -> Result<Place, ApiError> {
        let mut owners = self.lock();
        let own = owners.iter().filter(|owner| **owner == caller.key).count();
        caller.may_have_another(own, "changes of documents under way")?;
        // Beside those that wait there is one that is made.
        if owners.len() > WAITING {
            return Err(ApiError::new(Code::QueueFull, "too many commits are waiting"));
        }
        owners.push(caller.key.clone());
        Ok(Place { places: self.clone(), owner: caller.key.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<KeyId>>> {
        // Nothing in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut owners = self.places.lock();
        if let Some(own) = owners.iter().position(|owner| *owner == self.owner) {
            owners.swap_remove(own);
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // Nothing in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is made next: the oldest change, and all that are about nothing that an older one is about.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.lock();
        let mut apart = apart(&waiting).into_iter();
        let (next, later) = std::mem::take(&mut *waiting).into_iter().partition(|_| apart.next() == Some(true));
        *waiting = later;
        next
    }
}

/// For each change whether it is about other documents than all before it.
fn apart(waiting: &[Waiting]) -> Vec<bool> {
    let mut named = HashSet::new();
    let changes = waiting.iter().map(|waiting| &waiting.changes);
    let apart = changes.map(|changes| {
        let apart = changes.ids().all(|id| !named.contains(id));
        named.extend(changes.ids());
        apart
    });
    apart.collect()
}

impl Committer {
    /// Makes changes that are about different documents, if there are any.
    fn make_next(&self, group: Vec<Waiting>) {
        for waiting in &group {
            waiting.course.send_replace(Course::Running);
        }
        // What is said of the work itself is said in the name of the oldest.
        if let Some(span) = group.first().map(|oldest| oldest.span.clone()) {
            span.in_scope(|| self.make(group));
        }
    }

    /// Makes changes together; each alone where together they are refused, so that none fails for another's sake.
    fn make(&self, mut group: Vec<Waiting>) {
        let together = group.len();
        // What is made alone is not needed again.
        let taken = |waiting: &mut Waiting| match together {
            1 => std::mem::take(&mut waiting.changes),
            _ => waiting.changes.clone(),
        };
        let changes = group.iter_mut().map(taken).collect();
        match self.commit(changes) {
            Ok(made) => {
                for (waiting, made) in group.into_iter().zip(made) {
                    self.tell(waiting, made, together);
                }
            }
            Err(error) if together > 1 => {
                tracing::warn!(error = error.message, together, "not committed together: each is tried alone");
                for waiting in group {
                    waiting.span.clone().in_scope(|| self.make(vec![waiting]));
                }
            }
            Err(error) => {
                for waiting in group {
                    self.tell(waiting, Err(error.clone()), together);
                }
            }
        }
    }

    /// Publishes what all of `changes` come to, and says what each did.
    fn commit(&self, changes: Vec<Changes>) -> Result<Vec<Result<CommitReport, ApiError>>, ApiError> {
        let begun = Instant::now();
        let commit = || self.live.commit_together(changes, &self.options, &Told(begun));
        // The panic hook has printed where and why.
        let made = catch_unwind(AssertUnwindSafe(commit)).map_err(|_| bug())?.map_err(|error| refusal(&error))?;
        if made.iter().flatten().any(|report| report.published) {
            self.metrics.published(begun.elapsed());
        }
        Ok(made.into_iter().map(|made| made.map_err(|error| refusal(&error))).collect())
    }

    /// Tells what became of a change: the log, the metrics, and whoever waits.
    fn tell(&self, waiting: Waiting, made: Result<CommitReport, ApiError>, together: usize) {
        let Waiting { begun, span, course, place, .. } = waiting;
        span.in_scope(|| match &made {
            Ok(report) => {
                let CommitReport { added, replaced, removed, cut, .. } = *report;
                let (snapshot, seconds) = (report.manifest.snapshot, begun.elapsed().as_secs_f64());
                tracing::info!(snapshot, added, replaced, removed, cut, together, seconds, "committed");
            }
            Err(error) if error.code == Code::CommitFailed => {
                self.metrics.commit_failed();
                tracing::warn!(error = error.message, "not committed");
            }
            Err(_) => {}
        });
        let made = made.map(|report| CommitResponse::of(&report, begun));
        // Before anybody is told: whoever is may send the next change at once.
        drop(place);
        course.send_replace(Course::Over(made));
    }
}

/// Tells the log when each phase of a commit begins.
struct Told(Instant);

impl BuildProgress for Told {
    fn update(&self, phase: Phase, done: u64, total: Option<u64>) {
        if done == 0 {
            tracing::debug!(%phase, total, seconds = self.0.elapsed().as_secs_f64(), "committing");
        }
    }
}

fn refusal(error: &IndexError) -> ApiError {
    let message = shortened(error.to_string());
    match error {
        IndexError::BadChange { .. } | IndexError::Emptied { .. } | IndexError::NoTriples { .. } => {
            ApiError::invalid("documents", message)
        }
        IndexError::Locked { .. } => ApiError::new(Code::IndexLocked, message),
        _ => ApiError::new(Code::CommitFailed, format!("the commit failed: {message}")),
    }
}

/// A message without its middle, if it is long: what is wrong stands at its end as often as at its beginning.
fn shortened(message: String) -> String {
    let start = |found: Option<(usize, char)>| found.map(|(at, _)| at);
    let head = start(message.char_indices().nth(TOLD / 2));
    let tail = start(message.char_indices().nth_back(TOLD / 2 - 1));
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => format!("{} … {}", &message[..head], &message[tail..]),
        _ => message,
    }
}

fn bug() -> ApiError {
    ApiError::new(Code::CommitFailed, "the commit ran into a bug in the server")
}
