//! Starts the episodes of a validated request.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;
use waymark_agent::{Conversation, Episode, EpisodeOptions, Policy, Runtime};
use waymark_runtime::fleet::TokenSource;

use super::auth::Caller;
use super::blocking::run_blocking;
use super::error::{ApiError, Code};
use super::follow::{Events, admitted, follow};
use super::state::AppState;
use super::traces::{self, Recorder, RequestAdmission, TraceRequest};

/// Timeout for compiling the schema of a request, and for waiting for a slot before that.
const COMPILE: Duration = Duration::from_secs(5);

/// Episode over the server's source of tokens.
pub(crate) type ServedEpisode = Episode<TokenSource>;

/// Runtime over the server's source of tokens.
pub(super) type ServedRuntime = Runtime<TokenSource>;

/// Conversation to answer, and the options of its episodes.
pub(super) type EpisodeQuestion = (Conversation, EpisodeOptions);

/// Computes the seed of an episode from the seed of its question, its number among the episodes of the question, and
/// its number among all episodes.
pub(super) type EpisodeSeed = fn(u64, usize, usize) -> u64;

/// Episode, and the recorder of its trace if one is kept.
type Recorded = (ServedEpisode, Option<Recorder>);

/// Starts `n` episodes of one question for `caller`, each with its own seed and ID. The first has the seed and the ID
/// of the options; the IDs of the others end in `-1`, `-2` and so on. If one of them is refused, none runs. The
/// request's deadline is set to the episodes' time limit plus the time to send their output. Traces are kept unless the
/// options say otherwise.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    question: EpisodeQuestion,
    n: usize,
) -> Result<Events, ApiError> {
    start_all(state, caller, policy, vec![question], n).await
}

/// Starts `n` episodes of each question, in the order of the questions. IDs count all episodes; seeds count the
/// episodes of one question.
pub(super) async fn start_all(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<EpisodeQuestion>,
    n: usize,
) -> Result<Events, ApiError> {
    let count = questions.len() * n;
    // The episodes of a request share its room for evidence.
    let evidence = state.config.traces.evidence / count.max(1);
    // The first answer has the request's own seed, so it equals the answer to a request with `n: 1`.
    let seed: EpisodeSeed = |seed, index, _| seed.wrapping_add(index as u64);
    let (episodes, admission) = build_recorded(state, caller, policy, questions, n, evidence, seed).await?;
    // The request may last as long as its slowest episode.
    if let Some(time) = episodes.iter().map(|(episode, _)| episode.time()).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    let events = admitted(follow(episodes, policy, &state.metrics, &caller.accounts), count).await?;
    // From here on, dropped episodes count as canceled and leave a trace.
    admission.store(true, Relaxed);
    Ok(events)
}

/// Builds `n` episodes of each question, in the order of the questions, without starting them. Each may keep `evidence`
/// bytes of what it finds. No traces are kept, so the questions' options must not ask for one.
pub(super) async fn build(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<EpisodeQuestion>,
    n: usize,
    evidence: usize,
    seed: EpisodeSeed,
) -> Result<Vec<ServedEpisode>, ApiError> {
    let (episodes, _) = build_recorded(state, caller, policy, questions, n, evidence, seed).await?;
    Ok(episodes.into_iter().map(|(episode, _)| episode).collect())
}

/// Builds `n` episodes of each question, with the recorders of their traces, and the admission that these wait for.
async fn build_recorded(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    questions: Vec<EpisodeQuestion>,
    n: usize,
    evidence: usize,
    seed: EpisodeSeed,
) -> Result<(Vec<Recorded>, RequestAdmission), ApiError> {
    // Refused first, before the request takes time or waits for one of the few compile slots.
    let records = questions.iter().map(|(_, options)| traces::should_record(state, options.store));
    let records = records.collect::<Result<Vec<bool>, _>>()?;
    let calls = questions.iter().all(|(_, options)| options.form.is_none());
    let schema = questions.iter().any(|(conversation, options)| options.compiles(policy, conversation));
    let share = state.admit_text(questions.iter().map(prompt_bytes).max().unwrap_or(0)).await?;
    let owned = state.clone();
    let caller_owned = caller.clone();
    let policy_owned = policy.clone();
    let admission = RequestAdmission::default();
    let shared = admission.clone();
    let count = questions.len() * n;
    let build = move |runtime: &ServedRuntime| -> Result<Vec<Recorded>, ApiError> {
        // Held until the prompts are encoded, even if the request is dropped.
        let _held = share;
        let mut episodes = Vec::with_capacity(count);
        for ((conversation, options), record) in questions.into_iter().zip(records) {
            let question = (conversation, EpisodeOptions { evidence_bytes: Some(evidence), ..options });
            let places = episodes.len()..episodes.len() + n;
            let admission = record.then_some(&shared);
            let numbers = (places, seed);
            episodes.extend(choices(&owned, runtime, &caller_owned, &policy_owned, question, numbers, admission)?);
        }
        Ok(episodes)
    };
    // Compiling a schema may take seconds of CPU time, so it runs under a semaphore and a timeout.
    let episodes = match schema {
        true if calls => {
            compile(state, caller, build).await.map_err(|error| error.renamed("response_format", "tools"))?
        }
        true => compile(state, caller, build).await?,
        false => {
            let runtime = Arc::clone(&state.runtime);
            run_blocking(move || build(&runtime)).await?
        }
    };
    Ok((episodes, admission))
}

/// Returns the size of the texts to encode for a question, in bytes.
pub(super) fn prompt_bytes((conversation, options): &EpisodeQuestion) -> usize {
    if options.prompt.is_some() { 0 } else { conversation.bytes() }
}

/// Builds the episodes of one question. `places` are their numbers among all episodes, and `seed` seeds them. The
/// prompt is encoded once, and the `runtime` of [`compile`] compiles the schema once for all questions. With an
/// `admission`, their traces are kept.
fn choices(
    state: &AppState,
    runtime: &ServedRuntime,
    caller: &Caller,
    policy: &Arc<Policy>,
    (conversation, options): EpisodeQuestion,
    (places, seed): (Range<usize>, EpisodeSeed),
    admission: Option<&RequestAdmission>,
) -> Result<Vec<Recorded>, ApiError> {
    let priority = Some(caller.priority(options.priority));
    let tenant = caller.tenant();
    let options = EpisodeOptions { salt: caller.salt, tenant, priority, request: caller.request, ..options };
    let mut all = places.enumerate().map(|(index, place)| numbered(&options, index, place, seed));
    let Some(own) = all.next() else { return Ok(Vec::new()) };
    let first = ServedEpisode::new(runtime, policy, conversation.clone(), own.clone())?;
    let others: Vec<_> = all.map(|own| (first.again(own.id.clone(), own.seed), own)).collect();
    let recorded = |(mut episode, options): (ServedEpisode, EpisodeOptions)| {
        let recorder = admission.map(|admission| {
            let asked = TraceRequest::new(state, caller.owner, policy, conversation.clone(), options);
            Recorder::new(state, asked, &mut episode, admission)
        });
        (episode, recorder)
    };
    Ok(iter::once((first, own)).chain(others).map(recorded).collect())
}

/// Builds episodes of `caller` whose schema must be compiled: only a few at a time, and with a timeout. `build` gets a
/// runtime of the request's own, which compiles each schema once.
pub(super) async fn compile<T: Send + 'static>(
    state: &AppState,
    caller: &Caller,
    build: impl FnOnce(&ServedRuntime) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let full = || ApiError::new(Code::QueueFull, "too many schemas are being compiled; try again later");
    let slot = timeout(COMPILE, state.compiling.take(caller)).await.ok().flatten().ok_or_else(full)?;
    // Counted from here, so that a schema is not blamed for the time that others took.
    let until = Instant::now() + COMPILE;
    let runtime = Arc::clone(&state.runtime);
    // The compiling thread holds the slot, because it keeps working even if the request is dropped. It stops before the
    // next schema if the time is over.
    let build = move || {
        let _held = slot;
        build(&runtime.compiling_until(until.into_std()))
    };
    let late = |_| ApiError::invalid("response_format", "`response_format`: the schema takes too long to compile");
    timeout_at(until, run_blocking(build)).await.map_err(late)?
}

/// Returns the options of one of several episodes. `index` is its number among those of its question, and `place` its
/// number among all episodes, which determines its ID.
fn numbered(options: &EpisodeOptions, index: usize, place: usize, seed: EpisodeSeed) -> EpisodeOptions {
    let id = options.id.as_ref().map(|id| if place == 0 { id.clone() } else { format!("{id}-{place}") });
    EpisodeOptions { id, seed: seed(options.seed, index, place), ..options.clone() }
}

/// Creates an ID that sorts by time, such as `chatcmpl-0193…`.
pub(super) fn id(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::now_v7().simple())
}

/// Returns the given seed, or a random one.
pub(super) fn seed(given: Option<i64>) -> u64 {
    given.map_or_else(rand::random, i64::cast_unsigned)
}

/// Short hash of the build, the weights and the policy's files. Equal exactly if all three are equal.
pub(super) fn fingerprint(state: &AppState, policy: &Policy) -> String {
    let files = policy.content_hash.map_or_else(String::new, |hash| hash.to_string());
    fingerprint_of(state, &files)
}

/// Short hash of the build and the weights of the base model.
pub(super) fn base_fingerprint(state: &AppState) -> String {
    fingerprint_of(state, "")
}

fn fingerprint_of(state: &AppState, files: &str) -> String {
    let spec = state.runtime.engine.spec();
    let parts = format!("{} {} {:016x} {files}", env!("CARGO_PKG_VERSION"), spec.name, spec.generation);
    format!("fp_{}", &blake3::hash(parts.as_bytes()).to_hex()[..12])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_models::grammar::Json;
    use waymark_models::tokenizer::Tokenizer;

    use super::*;
    use crate::config::{HttpConfig, TraceConfig};
    use waymark_engine::mock::Lines;
    use waymark_engine::{Engine, EngineConfig, MockBackend};

    /// Creates a server that keeps no traces.
    fn forgetful() -> AppState {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let backend = MockBackend::script(&tokenizer, &Lines::new(["hi"])).unwrap();
        let engine = Engine::start(Box::new(backend), EngineConfig::default(), tokenizer.table()).unwrap();
        let traces = TraceConfig { count: 0, ..TraceConfig::default() };
        let runtime = Runtime::new(engine, tokenizer, None, Vec::new(), None);
        AppState::new(runtime, vec![Policy::builtin("plain").unwrap()], HttpConfig { traces, ..HttpConfig::default() })
    }

    #[test]
    fn episodes_are_numbered_and_seeded_by_their_places() {
        let options = EpisodeOptions { id: Some("x".to_owned()), seed: 7, ..EpisodeOptions::default() };
        let of = |index, place| {
            let own = numbered(&options, index, place, |seed, index, place| seed + (10 * index + 100 * place) as u64);
            (own.id.unwrap(), own.seed)
        };
        assert_eq!([of(0, 0), of(1, 3)], [("x".to_owned(), 7), ("x-3".to_owned(), 317)]);
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_refused_before_a_schema_waits_for_its_turn() {
        let state = forgetful();
        let policy = state.policies.get("plain").unwrap().policy.clone();
        // No compile slot can be acquired any more.
        state.compiling.close();
        for (store, code) in [(Some(true), Code::UnsupportedParameter), (None, Code::QueueFull)] {
            let options = EpisodeOptions { form: Some(Json::Object.into()), store, ..EpisodeOptions::default() };
            let question = (Conversation::new("?"), options);
            let refused = start(&state, &Caller::default(), &policy, question, 1).await.err().unwrap();
            assert_eq!(refused.code.name(), code.name());
        }
    }
}
