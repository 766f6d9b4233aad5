//! Event streams of running episodes, driven by their readers.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use waymark_agent::{AgentError, EpisodeEnd, Event, Policy, Trajectory};

use super::auth::Accounts;
use super::episodes::{RecordedEpisode, ServedEpisode};
use super::error::{ApiError, Code};
use super::metrics::ServerMetrics;
use super::traces::{Recorder, RequestAdmission};

/// Capacity of the event queue between an episode and its reader. A full queue pauses the episode.
const QUEUED: usize = 64;

/// Events of several episodes, each with the index of its episode. Ends after an error.
pub(crate) type Events = BoxStream<'static, (usize, Result<Event, ApiError>)>;

/// Runs episodes concurrently and records the traces of those that have a recorder. No task is spawned: the episodes
/// run while the stream is polled, and are canceled when it is dropped. The caller sets `admission` once all of them are
/// admitted.
pub(crate) fn follow(
    episodes: Vec<RecordedEpisode>,
    policy: &Arc<Policy>,
    metrics: &ServerMetrics,
    accounts: &Accounts,
    admission: &RequestAdmission,
) -> Events {
    let each = episodes.into_iter().enumerate().map(|(index, RecordedEpisode { episode, recorder })| {
        let admission = Arc::clone(admission);
        let prompt = episode.prompt_tokens();
        let record = EpisodeRecord::new(metrics.clone(), policy.clone(), accounts.clone(), prompt, admission);
        events(episode, record, recorder).map(move |event| (index, event)).boxed()
    });
    stream::select_all(each).boxed()
}

/// Streams the events of one episode and the error it may end with. A panic in the episode becomes such an error.
fn events(
    episode: ServedEpisode,
    mut record: EpisodeRecord,
    recorder: Option<Recorder>,
) -> impl Stream<Item = Result<Event, ApiError>> + Send {
    async_stream::stream! {
        // Declared before `run` so that it is dropped after the episode and can still record a canceled one.
        let mut recorder = recorder;
        let (sender, mut receiver) = mpsc::channel(QUEUED);
        let mut run = pin!(AssertUnwindSafe(episode.run(sender)).catch_unwind());
        let outcome = loop {
            tokio::select! {
                // Queued events come before the outcome, so they are sent in order.
                biased;
                Some(event) = receiver.recv() => {
                    if record.note(&event) {
                        yield Ok(event);
                    }
                }
                outcome = &mut run => break outcome,
            }
        };
        // The trace is stored before the last event is sent, so a client that has read that event finds the trace.
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

/// Runs one episode to its end, without a reader of its events, and returns its trajectory. A panic in the episode
/// becomes an error.
pub(crate) async fn complete(
    episode: ServedEpisode,
    policy: &Arc<Policy>,
    metrics: &ServerMetrics,
    accounts: &Accounts,
) -> Result<Trajectory, ApiError> {
    // The episodes of a batch are admitted together, before they run.
    let admission = Arc::new(AtomicBool::new(true));
    let prompt = episode.prompt_tokens();
    let mut record = EpisodeRecord::new(metrics.clone(), policy.clone(), accounts.clone(), prompt, admission);
    let (sender, mut receiver) = mpsc::channel(QUEUED);
    let run = AssertUnwindSafe(episode.run(sender)).catch_unwind();
    // Events must be received even if unused: a full channel would stop the episode.
    let notes = async {
        while let Some(event) = receiver.recv().await {
            record.note(&event);
        }
    };
    let (outcome, ()) = futures::future::join(run, notes).await;
    let outcome = outcome.unwrap_or(Err(AgentError::Panicked)).map_err(ApiError::from);
    if let Err(error) = &outcome {
        record.end(error.code.name());
        tracing::warn!(code = error.code.name(), error = error.message, "episode failed");
    }
    outcome
}

/// Metrics of one episode, recorded when dropped, however the episode ended.
struct EpisodeRecord {
    metrics: ServerMetrics,
    policy: Arc<Policy>,
    /// Limits that the tokens of the episode count towards.
    accounts: Accounts,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Admission of the episode's request.
    admission: RequestAdmission,
    tokens: EventTokens,
    /// If `true`, tokens of the episode have been computed.
    computed: bool,
    started: Instant,
    spoke: bool,
    outcome: &'static str,
}

impl EpisodeRecord {
    fn new(
        metrics: ServerMetrics,
        policy: Arc<Policy>,
        accounts: Accounts,
        prompt: usize,
        admission: RequestAdmission,
    ) -> Self {
        // The prompt counts at once, so the next requests of the key wait for it.
        accounts.count_tokens(prompt);
        Self {
            metrics,
            policy,
            accounts,
            prompt,
            admission,
            tokens: EventTokens::default(),
            computed: false,
            started: Instant::now(),
            spoke: false,
            // An episode that is dropped before it sets an outcome was canceled.
            outcome: "cancelled",
        }
    }

    fn end(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }

    /// Updates the metrics for an event. Returns `false` for an event to skip because the episode's error tells more.
    fn note(&mut self, event: &Event) -> bool {
        let tokens = self.tokens.added_by(event);
        self.accounts.count_tokens(tokens);
        self.computed |= tokens > 0 || matches!(event, Event::Finished { .. });
        match event {
            Event::Think { .. } | Event::Query { .. } | Event::Answer { .. } | Event::Text { .. } if !self.spoke => {
                self.spoke = true;
                self.metrics.first_text(&self.policy.name, self.started.elapsed());
            }
            Event::SearchFinished { milliseconds, cached, error, .. } => {
                let time = Duration::from_secs_f64(milliseconds.max(0.0) / 1e3);
                self.metrics.searched(time, *cached, error.is_some());
            }
            Event::Finished { reason, .. } => {
                self.end(match reason {
                    EpisodeEnd::Stop => "stop",
                    EpisodeEnd::Length => "length",
                    EpisodeEnd::Turns => "turns",
                    EpisodeEnd::Time => "time",
                    EpisodeEnd::Refused => "refused",
                    EpisodeEnd::Called => "called",
                });
            }
            Event::Failed { .. } => return false,
            _ => {}
        }
        true
    }
}

impl Drop for EpisodeRecord {
    fn drop(&mut self) {
        let is_refused = self.outcome == Code::QueueFull.name() || !self.admission.load(Relaxed);
        // A refused request uses nothing up, or its retries would.
        if is_refused && !self.computed {
            self.accounts.uncount_tokens(self.prompt);
        }
        self.metrics.episode_ended(&self.policy.name, self.outcome, self.started.elapsed());
    }
}

/// Counter of an episode's tokens after its prompt, from its events. The policy's text is counted as it is sent, about
/// one token per event, because an episode that is canceled has no end. The end adds the tokens that no event has
/// shown, such as those of tags and calls.
#[derive(Debug, Default)]
pub(super) struct EventTokens {
    /// Number of the policy's tokens counted so far.
    written: usize,
}

impl EventTokens {
    /// Returns the number of tokens to count for the next event.
    pub(super) fn added_by(&mut self, event: &Event) -> usize {
        let added = match event {
            Event::Observation { tokens, .. } => return *tokens,
            Event::Think { .. } | Event::Query { .. } | Event::Answer { .. } | Event::Text { .. } => 1,
            Event::Finished { usage, .. } => usage.completion_tokens.saturating_sub(self.written),
            _ => 0,
        };
        self.written += added;
        added
    }
}

/// Polls the streams of `episodes` episodes until each would have to wait. An episode that is refused fails within its
/// first few events, so its client gets an error status instead of a broken stream.
pub(crate) async fn admitted(mut events: Events, episodes: usize) -> Result<Events, ApiError> {
    let mut early = Vec::new();
    let mut asked = 0;
    while early.len() < QUEUED * episodes && asked < episodes {
        match futures::poll!(events.next()) {
            Poll::Ready(Some((index, event))) => early.push((index, Ok(event?))),
            Poll::Ready(None) => break,
            // A pending stream may only have yielded to let others run, so this is repeated once per episode.
            Poll::Pending => {
                asked += 1;
                yield_now().await;
            }
        }
    }
    Ok(stream::iter(early).chain(events).boxed())
}

#[cfg(test)]
mod tests {
    use waymark_agent::Usage;

    use super::*;

    #[test]
    fn the_end_counts_the_tokens_that_no_event_has_shown() {
        let think = Event::Think { turn: 1, text: "a".to_owned(), tokens: Vec::new() };
        let observation = Event::Observation { turn: 1, text: "b".to_owned(), tokens: 7, truncated: false };
        let call = Event::ToolCall { turn: 2, name: "look".to_owned(), arguments: "{}".to_owned() };
        let finished = |completion_tokens| Event::Finished {
            reason: EpisodeEnd::Called,
            answer: None,
            usage: Usage { completion_tokens, environment_tokens: 7, ..Usage::default() },
            turns: 2,
            searches: 1,
            citations: Vec::new(),
        };
        let counts = |events: &[Event]| -> Vec<usize> {
            let mut tokens = EventTokens::default();
            events.iter().map(|event| tokens.added_by(event)).collect()
        };
        let shown = [think.clone(), think, observation, call];
        assert_eq!(counts(&[&shown[..], &[finished(30)]].concat()), [1, 1, 7, 0, 28]);
        assert_eq!(counts(&[&shown[..], &[finished(1)]].concat()), [1, 1, 7, 0, 0]);
    }
}
