//! From a checked request to running episodes.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::auth::Caller;
use super::beside::beside;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use super::traces::{self, Admission, Asked, Recorder};
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

/// Starts `n` episodes of each question, those of one question after those of the one before: the ids count all of them,
/// the seeds those of their own question.
pub(super) async fn start_all(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<Question>,
    n: usize,
) -> Result<Events, ApiError> {
    // Refused before anything takes long, or waits for a place among few.
    let records = questions.iter().map(|(_, options)| traces::wanted(state, options.store));
    let records = records.collect::<Result<Vec<bool>, _>>()?;
    let calls = questions.iter().any(|(_, options)| !options.calls.is_empty());
    let schema = calls || questions.iter().any(|(_, options)| options.json.is_some());
    let (owned, caller_owned, policy_owned) = (state.clone(), caller.clone(), policy.clone());
    let admission = Admission::default();
    let shared = admission.clone();
    let build = move || -> Result<Vec<Recorded>, ApiError> {
        let mut episodes = Vec::with_capacity(questions.len() * n);
        for (question, record) in questions.into_iter().zip(records) {
            let places = episodes.len()..episodes.len() + n;
            let admission = record.then_some(&shared);
            episodes.extend(choices(&owned, &caller_owned, &policy_owned, question, places, admission)?);
        }
        Ok(episodes)
    };
    let episodes = match schema {
        true if calls => compile(state, build).await.map_err(|error| error.renamed("response_format", "tools"))?,
        true => compile(state, build).await?,
        false => beside(build).await?,
    };
    if let Some(time) = episodes.iter().map(|(episode, _)| episode.time()).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    let count = episodes.len();
    let events = admitted(follow(episodes, policy, &state.metrics), count).await?;
    admission.store(true, Relaxed);
    Ok(events)
}

/// The episodes of one question at these places among all: its prompt is encoded once, and its schema compiled once. With
/// an `admission` their traces are kept.
fn choices(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    (conversation, options): Question,
    places: Range<usize>,
    admission: Option<&Admission>,
) -> Result<Vec<Recorded>, ApiError> {
    let options = EpisodeOptions { salt: caller.salt, request: caller.request, ..options };
    let mut all = places.enumerate().map(|(index, place)| numbered(&options, index, place));
    let Some(own) = all.next() else { return Ok(Vec::new()) };
    let first = Episode::new(&state.runtime, policy, conversation.clone(), own.clone())?;
    let others: Vec<_> = all.map(|own| (first.again(own.id.clone(), own.seed), own)).collect();
    let recorded = |(mut episode, options): (Episode, EpisodeOptions)| {
        let recorder = admission.map(|admission| {
            let asked = Asked::new(state, caller.key.clone(), policy, conversation.clone(), options);
            Recorder::new(state, asked, &mut episode, admission)
        });
        (episode, recorder)
    };
    Ok(iter::once((first, own)).chain(others).map(recorded).collect())
}

/// Builds episodes whose schema is compiled: few at a time, and not for long.
pub(super) async fn compile<T: Send + 'static>(
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

/// The options of one of several episodes: its seed by the index among those of its question, its id by the place among all.
fn numbered(options: &EpisodeOptions, index: usize, place: usize) -> EpisodeOptions {
    let id = options.id.as_ref().map(|id| if place == 0 { id.clone() } else { format!("{id}-{place}") });
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

/// A short hash of the build, the weights and the policy's files: wherever all three are the same, it is.
pub(super) fn fingerprint(state: &AppState, policy: &Policy) -> String {
    let spec = state.runtime.engine.spec();
    let files = policy.contents.map_or_else(String::new, |hash| hash.to_string());
    let parts = format!("{} {} {:016x} {files}", env!("CARGO_PKG_VERSION"), spec.name, spec.generation);
    format!("fp_{}", &blake3::hash(parts.as_bytes()).to_hex()[..12])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_models::grammar::Json;
    use waymark_models::tokenizer::Tokenizer;

    use super::*;
    use crate::agent::Runtime;
    use crate::config::{HttpConfig, TraceConfig};
    use crate::engine::mock::Lines;
    use crate::engine::{Engine, EngineConfig, MockBackend};

    /// A server that keeps no traces.
    fn forgetful() -> AppState {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let backend = MockBackend::script(&tokenizer, &Lines::new(["hi"])).unwrap();
        let engine = Engine::start(Box::new(backend), EngineConfig::default(), tokenizer.table()).unwrap();
        let traces = TraceConfig { count: 0, ..TraceConfig::default() };
        let runtime = Runtime::new(engine, tokenizer, None, Vec::new(), None);
        AppState::new(runtime, vec![Policy::builtin("plain").unwrap()], HttpConfig { traces, ..HttpConfig::default() })
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_refused_before_a_schema_waits_for_its_turn() {
        let state = forgetful();
        let policy = state.policies.get("plain").unwrap().policy.clone();
        // Nobody gets a place any more.
        state.compiling.close();
        for (store, code) in [(Some(true), Code::UnsupportedParameter), (None, Code::QueueFull)] {
            let options = EpisodeOptions { json: Some(Json::Object), store, ..EpisodeOptions::default() };
            let question = (Conversation::new("?"), options);
            let refused = start(&state, &Caller::default(), &policy, question, 1).await.err().unwrap();
            assert_eq!(refused.code.name(), code.name());
        }
    }
}
