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
use waymark_training::seeding;

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
#[derive(Debug)]
pub(crate) struct EpisodeRequest {
    /// The conversation, which ends with the question.
    pub(super) conversation: Conversation,
    /// Options of its episodes.
    pub(super) options: EpisodeOptions,
}

impl EpisodeRequest {
    /// Returns the size of the texts to encode, in bytes.
    fn prompt_bytes(&self) -> usize {
        if self.options.prompt.is_some() { 0 } else { self.conversation.bytes() }
    }
}

/// Derivation of the seeds of episodes from the seed of their request.
#[derive(Debug, Clone, Copy)]
pub(super) enum EpisodeSeed {
    /// Consecutive seeds for the episodes of each question, beginning with the seed of the request.
    PerQuestion,
    /// Seeds that differ between all episodes of a request.
    PerBatch,
}

impl EpisodeSeed {
    /// Returns the seed of an episode of a request with the seed `seed`. `index` is its number among those of its
    /// question, and `place` its number among all episodes.
    fn of(self, seed: u64, index: usize, place: usize) -> u64 {
        match self {
            // The first answer has the request's own seed, so it equals the answer to a request with `n: 1`.
            Self::PerQuestion => seed.wrapping_add(index as u64),
            // Seeds are far apart, because each turn of an episode adds to its seed.
            Self::PerBatch => seeding::seed(seed, "rollout", place as u64),
        }
    }
}

/// Episode, and the recorder of its trace.
pub(crate) struct RecordedEpisode {
    /// The episode.
    pub(super) episode: ServedEpisode,
    /// Recorder of its trace. `None` if no trace is kept.
    pub(super) recorder: Option<Recorder>,
}

/// Starts `n` episodes of one question for `caller`, each with its own seed and ID. The first has the seed and the ID
/// of the options; the IDs of the others end in `-1`, `-2` and so on. If one of them is refused, none runs. The
/// request's deadline is set to the episodes' time limit plus the time to send their output. Traces are kept unless the
/// options say otherwise.
pub(super) async fn start(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    request: EpisodeRequest,
    n: usize,
) -> Result<Events, ApiError> {
    start_all(state, caller, policy, vec![request], n).await
}

/// Starts `n` episodes of each question, in the order of the questions. IDs count all episodes; seeds count the
/// episodes of one question.
pub(super) async fn start_all(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    requests: Vec<EpisodeRequest>,
    n: usize,
) -> Result<Events, ApiError> {
    let count = requests.len() * n;
    // The episodes of a request share its room for evidence.
    let evidence = state.config.traces.evidence / count.max(1);
    let seed = EpisodeSeed::PerQuestion;
    let (episodes, admission) = build_recorded(state, caller, policy, requests, n, evidence, seed).await?;
    // The request may last as long as its slowest episode.
    if let Some(time) = episodes.iter().map(|recorded| recorded.episode.time()).max() {
        caller.lifetime.end_by(Instant::now() + time + state.config.connection.send);
    }
    let events = follow(episodes, policy, &state.metrics, &caller.accounts, &admission);
    let events = admitted(events, count).await?;
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
    requests: Vec<EpisodeRequest>,
    n: usize,
    evidence: usize,
    seed: EpisodeSeed,
) -> Result<Vec<ServedEpisode>, ApiError> {
    let (episodes, _) = build_recorded(state, caller, policy, requests, n, evidence, seed).await?;
    Ok(episodes.into_iter().map(|recorded| recorded.episode).collect())
}

/// Builds `n` episodes of each question, with the recorders of their traces, and the admission that these wait for.
async fn build_recorded(
    state: &AppState,
    caller: &Caller,
    policy: &Arc<Policy>,
    requests: Vec<EpisodeRequest>,
    n: usize,
    evidence: usize,
    seed: EpisodeSeed,
) -> Result<(Vec<RecordedEpisode>, RequestAdmission), ApiError> {
    // Refused first, before the request takes time or waits for one of the few compile slots.
    let records = requests.iter().map(|request| traces::should_record(state, request.options.store));
    let records = records.collect::<Result<Vec<bool>, _>>()?;
    let calls = requests.iter().all(|request| request.options.form.is_none());
    let schema = requests.iter().any(|request| request.options.compiles(policy, &request.conversation));
    let longest = requests.iter().map(EpisodeRequest::prompt_bytes).max().unwrap_or(0);
    let share = state.admit_text(caller, longest).await?;
    let builder = EpisodeBuilder { state: state.clone(), caller: caller.clone(), policy: policy.clone(), seed };
    let admission = RequestAdmission::default();
    let shared = admission.clone();
    let count = requests.len() * n;
    let build = move |runtime: &ServedRuntime| -> Result<Vec<RecordedEpisode>, ApiError> {
        // Held until the prompts are encoded, even if the request is dropped.
        let _held = share;
        let mut episodes = Vec::with_capacity(count);
        for (mut request, record) in requests.into_iter().zip(records) {
            request.options.evidence_bytes = Some(evidence);
            let places = episodes.len()..episodes.len() + n;
            let admission = record.then_some(&shared);
            episodes.extend(builder.build(runtime, request, places, admission)?);
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

/// Builder of the episodes of a request.
struct EpisodeBuilder {
    state: AppState,
    caller: Caller,
    policy: Arc<Policy>,
    seed: EpisodeSeed,
}

impl EpisodeBuilder {
    /// Builds the episodes of one question. `places` are their numbers among all episodes. The prompt is encoded once,
    /// and the `runtime` of [`compile`] compiles the schema once for all questions. With an `admission`, their traces
    /// are kept.
    fn build(
        &self,
        runtime: &ServedRuntime,
        request: EpisodeRequest,
        places: Range<usize>,
        admission: Option<&RequestAdmission>,
    ) -> Result<Vec<RecordedEpisode>, ApiError> {
        let Self { state, caller, policy, seed } = self;
        let EpisodeRequest { conversation, options } = request;
        let priority = Some(caller.priority(options.priority));
        let tenant = caller.tenant();
        let options = EpisodeOptions { salt: caller.salt, tenant, priority, request: caller.request, ..options };
        let mut all = places.enumerate().map(|(index, place)| numbered(&options, index, place, *seed));
        let Some(own) = all.next() else { return Ok(Vec::new()) };
        let first = ServedEpisode::new(runtime, policy, conversation.clone(), own.clone())?;
        let others: Vec<_> = all.map(|own| (first.again(own.id.clone(), own.seed), own)).collect();
        let recorded = |(mut episode, options): (ServedEpisode, EpisodeOptions)| {
            let recorder = admission.map(|admission| {
                let asked = TraceRequest::new(state, caller.owner, policy, conversation.clone(), options);
                Recorder::new(state, asked, &mut episode, admission)
            });
            RecordedEpisode { episode, recorder }
        };
        Ok(iter::once((first, own)).chain(others).map(recorded).collect())
    }
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
    // Counted from here, so a schema is not blamed for the time that others took.
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
    EpisodeOptions { id, seed: seed.of(options.seed, index, place), ..options.clone() }
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
        let of = |index, place, seed| {
            let own = numbered(&options, index, place, seed);
            (own.id.unwrap(), own.seed)
        };
        assert_eq!(of(0, 0, EpisodeSeed::PerQuestion), ("x".to_owned(), 7));
        assert_eq!(of(1, 3, EpisodeSeed::PerQuestion), ("x-3".to_owned(), 8));
        let seed = EpisodeSeed::PerBatch.of(7, 1, 3);
        assert_eq!(of(1, 3, EpisodeSeed::PerBatch), ("x-3".to_owned(), seed));
    }

    #[test]
    fn seeds_of_a_batch_are_far_apart() {
        let of = |index, place| EpisodeSeed::PerBatch.of(7, index, place);
        let mut seeds: Vec<u64> = (0..4096).map(|place| of(place % 8, place)).collect();
        seeds.sort_unstable();
        // More than the turns of an episode.
        assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > 1000));
        assert_eq!(of(0, 9), of(1, 9), "the place alone decides");
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_refused_before_a_schema_waits_for_its_turn() {
        let state = forgetful();
        let policy = state.policies.get("plain").unwrap().policy.clone();
        // No compile slot can be acquired any more.
        state.compiling.close();
        for (store, code) in [(Some(true), Code::UnsupportedParameter), (None, Code::QueueFull)] {
            let options = EpisodeOptions { form: Some(Json::Object.into()), store, ..EpisodeOptions::default() };
            let request = EpisodeRequest { conversation: Conversation::new("?"), options };
            let refused = start(&state, &Caller::default(), &policy, request, 1).await.err().unwrap();
            assert_eq!(refused.code.name(), code.name());
        }
    }
}
