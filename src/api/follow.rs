//! Episodes as streams of events, driven by whoever reads them.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::error::ApiError;
use super::metrics::{EpisodeLabels, Metrics, PolicyLabels};
use super::traces::Recorder;
use crate::agent::{AgentError, Episode, Event, Policy, Reason};

/// Events that may lie between an episode and its reader; a full queue makes the episode wait.
const QUEUED: usize = 64;

/// Events of several episodes, each with the number of its episode. Ends after an error.
pub(crate) type Events = BoxStream<'static, (usize, Result<Event, ApiError>)>;

/// Runs episodes side by side, and keeps the traces of those that have a recorder. Nothing is spawned: they move when
/// the stream is polled and end when it is dropped.
pub(crate) fn follow(episodes: Vec<(Episode, Option<Recorder>)>, policy: &Arc<Policy>, metrics: &Metrics) -> Events {
    let each = episodes.into_iter().enumerate().map(|(index, (episode, recorder))| {
        let record = Record::new(metrics.clone(), policy.clone());
        events(episode, record, recorder).map(move |event| (index, event)).boxed()
    });
    stream::select_all(each).boxed()
}

/// One episode's events: those it sends, and the error it may end with. A panic in it is such an error.
fn events(
    episode: Episode,
    mut record: Record,
    recorder: Option<Recorder>,
) -> impl Stream<Item = Result<Event, ApiError>> + Send {
    async_stream::stream! {
        // Dropped after the episode, whose remains it keeps.
        let mut recorder = recorder;
        let (sender, mut receiver) = mpsc::channel(QUEUED);
        let mut run = pin!(AssertUnwindSafe(episode.run(sender)).catch_unwind());
        let outcome = loop {
            tokio::select! {
                biased;
                Some(event) = receiver.recv() => {
                    if record.note(&event) {
                        yield Ok(event);
                    }
                }
                outcome = &mut run => break outcome,
            }
        };
        // Kept before the last event is told: whoever has read that finds the trace.
        let outcome = outcome.unwrap_or(Err(AgentError::Panicked)).map_err(ApiError::from);
        let failure = match recorder.take() {
            Some(recorder) => recorder.end(outcome),
            None => outcome.err(),
        };
        while let Ok(event) = receiver.try_recv() {
            if record.note(&event) {
                yield Ok(event);
            }
        }
        if let Some(error) = failure {
            record.end(error.code.name());
            tracing::warn!(code = error.code.name(), error = error.message, "episode failed");
            yield Err(error);
        }
    }
}

/// Counts an episode when it is over, however it got there.
struct Record {
    metrics: Metrics,
    policy: Arc<Policy>,
    begun: Instant,
    spoke: bool,
    outcome: &'static str,
}

impl Record {
    fn new(metrics: Metrics, policy: Arc<Policy>) -> Self {
        Self { metrics, policy, begun: Instant::now(), spoke: false, outcome: "cancelled" }
    }

    fn labels(&self) -> PolicyLabels {
        PolicyLabels { policy: self.policy.name.clone() }
    }

    fn end(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }

    /// Counts what there is to count; false for an event that the episode's own error says better.
    fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::Think { .. } | Event::Query { .. } | Event::Answer { .. } | Event::Text { .. } if !self.spoke => {
                self.spoke = true;
                let seconds = self.begun.elapsed().as_secs_f64();
                self.metrics.first_text_seconds.get_or_create(&self.labels()).observe(seconds);
            }
            Event::SearchFinished { milliseconds, cached, error, .. } => {
                let time = Duration::from_secs_f64(milliseconds.max(0.0) / 1e3);
                self.metrics.searched(time, *cached, error.is_some());
            }
            Event::Finished { reason, .. } => {
                self.end(match reason {
                    Reason::Stop => "stop",
                    Reason::Length => "length",
                    Reason::Turns => "turns",
                    Reason::Time => "time",
                    Reason::Refused => "refused",
                });
            }
            Event::Failed { .. } => return false,
            _ => {}
        }
        true
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let labels = EpisodeLabels { policy: self.policy.name.clone(), outcome: self.outcome };
        self.metrics.episodes.get_or_create(&labels).inc();
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.episode_seconds.get_or_create(&self.labels()).observe(seconds);
    }
}

/// What a stream of so many `episodes` has to say before it would have to wait: an episode that is refused says so at once,
/// after the few events of its beginning, and its client gets a status instead of a stream that breaks.
pub(crate) async fn admitted(mut events: Events, episodes: usize) -> Result<Events, ApiError> {
    let (mut early, mut asked) = (Vec::new(), 0);
    while early.len() < QUEUED * episodes && asked < episodes {
        match futures::poll!(events.next()) {
            Poll::Ready(Some((index, event))) => early.push((index, Ok(event?))),
            Poll::Ready(None) => break,
            // That may be to make room for others, before all episodes were asked.
            Poll::Pending => {
                asked += 1;
                yield_now().await;
            }
        }
    }
    Ok(stream::iter(early).chain(events).boxed())
}
