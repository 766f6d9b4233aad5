//! From a checked request to running episodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use crate::agent::{AgentError, Conversation, Episode, EpisodeOptions, Policy};

/// How long a request waits for its schema to be compiled.
const COMPILE: Duration = Duration::from_secs(5);

/// Starts `n` episodes of one conversation for `caller`, each with a seed of its own; the first has the seed of
/// `options`. When one of them is refused, none runs. The request ends when their time is over and what was sent until
/// then could have been taken.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    conversation: Conversation,
    options: EpisodeOptions,
    n: usize,
) -> Result<Events, ApiError> {
    start_all(state, caller, policy, vec![(conversation, options)], n).await
}

/// Starts `n` episodes of each question, those of one question after those of the one before.
pub(super) async fn start_all(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<(Conversation, EpisodeOptions)>,
    n: usize,
) -> Result<Events, ApiError> {
    let (runtime, owned) = (state.runtime.clone(), policy.clone());
    let salt = caller.salt;
    let schema = questions.iter().any(|(_, options)| options.json.is_some());
    let work = move || -> Result<Vec<Episode>, AgentError> {
        let mut episodes = Vec::new();
        for (conversation, options) in questions {
            let options = EpisodeOptions { salt, ..options };
            episodes.extend(Episode::new(&runtime, &owned, conversation, options)?.choices(n));
        }
        Ok(episodes)
    };
    let episodes = if schema { compile(state, work).await? } else { aside(work).await? }?;
    if let Some(time) = episodes.iter().map(Episode::time).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    admitted(follow(episodes, policy, &state.metrics)).await
}

/// A prompt may be megabytes of text: it is read where that holds nobody up.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let bug = |_| ApiError::new(Code::Internal, "this request ran into a bug in the server");
    tokio::task::spawn_blocking(work).await.map_err(bug)
}

/// The same for work that compiles a schema: few at a time, and not for long.
async fn compile<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let until = Instant::now() + COMPILE;
    let full = || ApiError::new(Code::QueueFull, "too many schemas are being compiled; try again later");
    let place = timeout_at(until, Arc::clone(&state.compiling).acquire_owned()).await;
    // Held by the thread, which goes on when nobody waits for it any more.
    let place = place.ok().and_then(Result::ok).ok_or_else(full)?;
    let work = move || {
        let _held = place;
        work()
    };
    let late = |_| ApiError::invalid("response_format", "`response_format`: the schema takes too long to compile");
    timeout_at(until, aside(work)).await.map_err(late)?
}

/// A new id that sorts by time, such as `chatcmpl-0193…`.
pub(super) fn id(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::now_v7().simple())
}

/// The seed that was given, or a new one.
pub(super) fn seed(given: Option<i64>) -> u64 {
    given.map_or_else(rand::random, i64::cast_unsigned)
}

/// A short hash of the build, the weights and the adapter.
pub(super) fn fingerprint(state: &AppState, policy: &Policy) -> String {
    let spec = state.runtime.engine.spec();
    let adapter = policy.adapter().map_or(0, |adapter| adapter.generation);
    let parts = format!("{} {} {:016x} {adapter:016x}", env!("CARGO_PKG_VERSION"), spec.name, spec.generation);
    format!("fp_{}", &blake3::hash(parts.as_bytes()).to_hex()[..12])
}
