//! From a checked request to running episodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::auth::Caller;
use super::beside::beside;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use super::traces::{self, Asked, Recorder};
use crate::agent::{Conversation, Episode, EpisodeOptions, Policy};

/// How long a request waits for its schema to be compiled.
const COMPILE: Duration = Duration::from_secs(5);

/// A conversation, and how it is answered.
pub(super) type Question = (Conversation, EpisodeOptions);

/// An episode, and who writes down what becomes of it.
type Recorded = (Episode, Option<Recorder>);

/// Starts `n` episodes of one question for `caller`, each with a seed and an id of its own; the first has those of
/// its options, the ids of the others end in `-1`, `-2` and so on. When one of them is refused, none runs. The request ends
/// when their time is over and what was sent until then could have been taken. Their traces are kept, unless its
/// options say otherwise.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    question: Question,
    n: usize,
) -> Result<Events, ApiError> {
    start_all(state, caller, policy, vec![question], n).await
}

/// Starts `n` episodes of each question, those of one question after those of the one before.
pub(super) async fn start_all(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<Question>,
    n: usize,
) -> Result<Events, ApiError> {
    let schema = questions.iter().any(|(_, options)| options.json.is_some());
    let (owned, caller_owned, policy_owned) = (state.clone(), caller.clone(), policy.clone());
    let build = move || -> Result<Vec<Recorded>, ApiError> {
        let each = questions.into_iter().map(|question| choices(&owned, &caller_owned, &policy_owned, question, n));
        Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    };
    let episodes = if schema { compile(state, build).await? } else { beside(build).await? };
    if let Some(time) = episodes.iter().map(|(episode, _)| episode.time()).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    admitted(follow(episodes, policy, &state.metrics)).await
}

/// The episodes of one question: its prompt is encoded once, and its schema compiled once.
fn choices(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    (conversation, options): Question,
    n: usize,
) -> Result<Vec<Recorded>, ApiError> {
    let record = traces::wanted(state, options.store)?;
    let options = EpisodeOptions { salt: caller.salt, request: caller.request, ..options };
    let first = Episode::new(&state.runtime, policy, conversation.clone(), options.clone())?;
    let mut episodes: Vec<(EpisodeOptions, Episode)> = Vec::with_capacity(n);
    for index in 1..n {
        let options = numbered(&options, index);
        let episode = first.again(options.id.clone(), options.seed);
        episodes.push((options, episode));
    }
    episodes.insert(0, (options, first));
    let recorded = |(options, mut episode)| {
        let recorder = record.then(|| {
            let asked = Asked::new(state, caller.key.clone(), policy, conversation.clone(), options);
            Recorder::new(state, asked, &mut episode)
        });
        (episode, recorder)
    };
    Ok(episodes.into_iter().map(recorded).collect())
}

/// Builds episodes whose schema is compiled: few at a time, and not for long.
async fn compile<T: Send + 'static>(
    state: &AppState,
    build: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let until = Instant::now() + COMPILE;
    let full = || ApiError::new(Code::QueueFull, "too many schemas are being compiled; try again later");
    let place = timeout_at(until, Arc::clone(&state.compiling).acquire_owned()).await;
    // Held by the thread, which goes on when nobody waits for it any more.
    let place = place.ok().and_then(Result::ok).ok_or_else(full)?;
    let build = move || {
        let _held = place;
        build()
    };
    let late = |_| ApiError::invalid("response_format", "`response_format`: the schema takes too long to compile");
    timeout_at(until, beside(build)).await.map_err(late)?
}

/// The options of one of several episodes.
fn numbered(options: &EpisodeOptions, index: usize) -> EpisodeOptions {
    let id = options.id.as_ref().map(|id| format!("{id}-{index}"));
    EpisodeOptions { id, seed: options.seed.wrapping_add(index as u64), ..options.clone() }
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
