//! Generation on engines elsewhere: a vLLM server, several of them, a router in front of them, or another Waymark.
//!
//! A fleet is a source of an episode's tokens ([`SessionSource`]). Requests and replies hold token IDs, so that no text
//! is encoded again. Between two turns no request is in flight; the engines' prefix caches keep what they can.
//!
//! | module | contents |
//! |---|---|
//! | `source` | the choice between the engine of this process and a fleet |
//! | `session`, `turn`, `attempt` | a sequence, a generation, and one request of it |
//! | `judge`, `constrained`, `scoring` | the end of a turn; constraints that an engine does not know; scores of forced tokens |
//! | `engine`, `identity`, `fingerprints`, `fault` | trust in an engine, and what is known about it; failures |
//! | `adapters`, `engine_adapters` | adapters of policies, and those that an engine has loaded |
//! | `endpoint`, `connector`, `request`, `reply`, `event_buffer` | HTTP and JSON |
//! | `counters` | metrics |

mod adapters;
mod attempt;
mod connector;
mod constrained;
mod counters;
mod endpoint;
mod engine;
mod engine_adapters;
mod event_buffer;
mod fault;
mod fingerprints;
mod identity;
mod judge;
mod reply;
mod request;
mod scoring;
mod session;
mod source;
mod turn;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use waymark_agent::{FingerprintFailure, LogprobFingerprint, SessionSource};
use waymark_engine::{BackendSpec, Counters, EngineError, Health, Lease, LoadedAdapter, SessionOptions};
use waymark_models::BLOCK;
use waymark_models::tokenizer::Tokenizer;

use self::adapters::{AdapterDirectory, RemoteAdapter};
pub use self::counters::FleetCounters;
use self::endpoint::Endpoint;
use self::engine::{EngineFacts, RemoteEngine, Trust};
use self::fault::{Fault, FaultKind};
use self::fingerprints::BaseFingerprints;
pub(crate) use self::identity::PROBE;
use self::identity::{EngineIdentity, compare, identify};
pub use self::session::RemoteSession;
pub use self::source::{SourceSession, SourceTurn, TokenSource};
pub use self::turn::RemoteTurn;
use crate::config::{EngineAddress, FleetConfig, FleetTimeouts};
use crate::environment::key_in;
use crate::trusted_roots::TrustedRoots;

/// Maximum factor of the pause between two checks of an engine that is down.
const MOST_PAUSES: u32 = 32;

/// Engines elsewhere that serve the same model. Clones share them.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<FleetShared>);

/// State shared by the clones and their sessions.
pub(crate) struct FleetShared {
    engines: Vec<Arc<RemoteEngine>>,
    /// Name of the model at the engines, if the user gave one.
    model: Option<String>,
    tokenizer: Arc<Tokenizer>,
    spec: BackendSpec,
    timeouts: FleetTimeouts,
    requests: usize,
    permits: Arc<Semaphore>,
    adapters: AdapterDirectory,
    adapter_root: Option<PathBuf>,
    /// Log-probabilities of the probe at the first engine.
    reference: OnceLock<Vec<f32>>,
    fingerprints: BaseFingerprints,
    counters: Counters,
    remote: FleetCounters,
}

impl fmt::Debug for FleetShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetShared").field("engines", &self.engines).field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Connects to the engines of `config` and checks that they serve the model whose tokenizer is `tokenizer`.
    /// `context` limits the length of a sequence further.
    ///
    /// # Errors
    /// If an engine serves another model, or if none can be reached.
    pub async fn connect(
        config: &FleetConfig,
        tokenizer: Arc<Tokenizer>,
        context: Option<usize>,
    ) -> anyhow::Result<Fleet> {
        ensure!(!config.engines.is_empty(), "no engine is named: set --engine");
        let key = key_in(&config.key_env)?;
        let roots = TrustedRoots::of_flag("--engine-ca", config.ca.as_deref())?;
        let endpoint = |address: &EngineAddress| {
            let endpoint = Endpoint::new(address.clone(), key.clone(), &roots, config.timeouts.connect);
            endpoint.map(RemoteEngine::new).map(Arc::new)
        };
        let engines: Vec<Arc<RemoteEngine>> = config.engines.iter().map(endpoint).collect::<Result<_, _>>()?;
        let mut first: Option<EngineIdentity> = None;
        let mut limit = context.unwrap_or(usize::MAX);
        let mut down = Vec::new();
        for engine in &engines {
            let start = engine.begin_check();
            let identified = identify(&engine.endpoint, config.model.as_deref(), &tokenizer).await;
            match identified.map_err(|fault| fault.refused_as(FaultKind::Unfit)) {
                Ok(identity) => {
                    let reference = &first.get_or_insert_with(|| identity.clone()).scores;
                    if let Err(difference) = compare(reference, &identity.scores) {
                        bail!("{}: {difference}", engine.endpoint.url());
                    }
                    // Every engine must be able to take over every session.
                    limit = limit.min(identity.context);
                    engine.trust_again(identity.facts, start);
                }
                // Waiting does not help with it, while an engine that cannot be reached may still be starting.
                Err(fault) if fault.kind == FaultKind::Unfit => {
                    return Err(fault).context("an engine cannot be used");
                }
                Err(fault) => {
                    tracing::warn!(error = %fault, "an engine cannot be reached");
                    down.push((Arc::clone(engine), fault));
                }
            }
        }
        let Some(first) = first else {
            let reasons: Vec<String> = down.iter().map(|(_, fault)| fault.to_string()).collect();
            bail!("no engine can be reached: {}", reasons.join("; "));
        };
        let spec = spec(&first, tokenizer.vocab(), limit);
        tracing::info!(
            model = spec.name,
            engines = engines.len(),
            context = spec.context,
            "tokens are sampled elsewhere"
        );
        let shared = Arc::new(FleetShared {
            model: config.model.clone(),
            tokenizer,
            spec,
            timeouts: config.timeouts,
            requests: config.requests,
            permits: Arc::new(Semaphore::new(config.requests.min(Semaphore::MAX_PERMITS))),
            adapters: AdapterDirectory::default(),
            adapter_root: config.adapters.clone(),
            reference: OnceLock::from(first.scores),
            fingerprints: BaseFingerprints::default(),
            counters: Counters::default(),
            remote: FleetCounters::default(),
            engines,
        });
        for (engine, fault) in down {
            // Noted as unreachable whatever failed, because this kind takes the engine out of use at once and starts
            // its watch.
            shared.note(&engine, &Fault { kind: FaultKind::Unreachable, ..fault });
        }
        Ok(Fleet(shared))
    }

    /// Returns the properties of the model. Blocks belong to the engines, so their number only covers one sequence.
    pub fn spec(&self) -> &BackendSpec {
        &self.0.spec
    }

    /// Returns the counters that a fleet has in common with an engine.
    pub fn counters(&self) -> &Counters {
        let running = self.0.engines.iter().map(|engine| engine.load()).sum();
        self.0.counters.sessions_running.set(running);
        &self.0.counters
    }

    /// Returns the counters of requests to the engines.
    pub fn remote_counters(&self) -> &FleetCounters {
        let usable = self.0.engines.iter().filter(|engine| engine.is_usable()).count();
        self.0.remote.engines_usable.set(usable);
        self.0.remote.engines.set(self.0.engines.len());
        &self.0.remote
    }

    /// Returns the health: ready while at least one engine takes requests.
    pub fn health(&self) -> Health {
        match self.0.choose(None, None) {
            Ok(_) => Health::Ready,
            Err(fault) => Health::Dead { reason: fault.message },
        }
    }
}

impl SessionSource for Fleet {
    type Sequence = RemoteSession;

    fn open(&self, options: SessionOptions) -> RemoteSession {
        RemoteSession::open(Arc::clone(&self.0), options)
    }

    fn fork(&self, sequence: &RemoteSession, length: usize, options: SessionOptions) -> RemoteSession {
        sequence.fork(length, options)
    }

    fn shorten(&self, mut sequence: RemoteSession, length: usize, _options: SessionOptions) -> RemoteSession {
        sequence.truncate(length);
        sequence
    }

    fn limit(&self) -> usize {
        self.0.spec.limit()
    }

    async fn lease_adapter(&self, dir: PathBuf) -> Result<Lease, EngineError> {
        self.0.lease_adapter(dir).await
    }

    async fn check_fingerprint(
        &self,
        policy: &str,
        adapter: Option<LoadedAdapter>,
        fingerprint: Arc<LogprobFingerprint>,
    ) -> Result<(), FingerprintFailure> {
        self.0.add_fingerprint(policy, adapter, &fingerprint).await
    }
}

/// Returns the properties of a model with this identity.
fn spec(identity: &EngineIdentity, vocab: usize, context: usize) -> BackendSpec {
    let mut hasher = blake3::Hasher::new();
    hasher.update(identity.facts.model.as_bytes());
    // An engine reports no hash of its weights; the scores of the probe stand in for it.
    for score in &identity.scores {
        hasher.update(&score.to_le_bytes());
    }
    let mut generation = [0; 8];
    hasher.finalize_xof().fill(&mut generation);
    let name = identity.facts.model.clone();
    BackendSpec { name, vocab, blocks: context.div_ceil(BLOCK), context, generation: u64::from_le_bytes(generation) }
}

impl FleetShared {
    /// Returns the engine for the next request of a session with `adapter`: `preferred` if it takes requests, or else the
    /// one with the fewest requests in flight, if possible of those whose identity is not being checked and that are not
    /// loading the adapter.
    fn choose(
        &self,
        preferred: Option<&Arc<RemoteEngine>>,
        adapter: Option<&RemoteAdapter>,
    ) -> Result<Arc<RemoteEngine>, Fault> {
        // The engine of the last turn may still have the session's prefix in its cache.
        if let Some(engine) = preferred.filter(|engine| engine.is_usable()) {
            return Ok(Arc::clone(engine));
        }
        let usable = self.engines.iter().filter(|engine| engine.is_usable());
        usable.min_by_key(|engine| engine.rank(adapter)).cloned().ok_or_else(|| {
            let reasons = self.engines.iter().filter_map(|engine| match engine.trust() {
                Trust::Down { reason } => Some(reason),
                Trust::Trusted | Trust::Suspect => None,
            });
            let reasons: Vec<String> = reasons.collect();
            Fault::new("no engine takes requests", FaultKind::Unreachable, reasons.join("; "))
        })
    }

    /// Returns another engine that takes requests of a session with `adapter`, if there is one.
    fn other_than(&self, failed: &Arc<RemoteEngine>, adapter: Option<&RemoteAdapter>) -> Option<Arc<RemoteEngine>> {
        let others = self.engines.iter().filter(|engine| !Arc::ptr_eq(engine, failed) && engine.is_usable());
        others.min_by_key(|engine| engine.rank(adapter)).cloned()
    }

    /// Returns the facts about an engine, after checking its identity if something has failed there, or if it may have
    /// been restarted.
    async fn checked(&self, engine: &RemoteEngine) -> Result<EngineFacts, Fault> {
        if let Some(facts) = self.trusted(engine) {
            return Ok(facts);
        }
        let _checking = engine.checking.lock().await;
        // Another request may have checked it meanwhile.
        if let Some(facts) = self.trusted(engine) {
            return Ok(facts);
        }
        if let Trust::Down { reason } = engine.trust() {
            return Err(engine.endpoint.fault(FaultKind::Unreachable, reason));
        }
        if engine.may_have_restarted(self.timeouts.closed) {
            // Adapters are loaded and compared again. The engine reports those that are still loaded.
            engine.adapters.clear();
        }
        self.check(engine).await
    }

    /// Returns the facts about an engine that needs no check now.
    fn trusted(&self, engine: &RemoteEngine) -> Option<EngineFacts> {
        let trusted = engine.trust() == Trust::Trusted && !engine.may_have_restarted(self.timeouts.closed);
        engine.facts().filter(|_| trusted)
    }

    /// Checks the identity of an engine. The caller holds the lock `checking` of the engine.
    async fn check(&self, engine: &RemoteEngine) -> Result<EngineFacts, Fault> {
        let start = engine.begin_check();
        let refused = |fault: Fault| fault.refused_as(FaultKind::Unfit);
        let identity = identify(&engine.endpoint, self.model.as_deref(), &self.tokenizer).await.map_err(refused)?;
        let unfit = |message: String| engine.endpoint.fault(FaultKind::Unfit, message);
        let reference = self.reference.get_or_init(|| identity.scores.clone());
        compare(reference, &identity.scores).map_err(unfit)?;
        // Sessions were admitted under the limit found at the start.
        if identity.context < self.spec.context {
            return Err(unfit(format!(
                "its context of {} tokens is shorter than the {} tokens at the start",
                identity.context, self.spec.context
            )));
        }
        self.check_base_fingerprints(engine, &identity.facts.model).await.map_err(refused)?;
        engine.trust_again(identity.facts.clone(), start);
        Ok(identity.facts)
    }

    /// Records a failure of an engine. One that gets no more requests is checked in the background until it is healthy.
    fn note(self: &Arc<Self>, engine: &Arc<RemoteEngine>, fault: &Fault) {
        if !engine.failed(fault.kind, &fault.message) {
            return;
        }
        tracing::error!(error = %fault, "an engine gets no more requests until it is healthy again");
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Weak, so that the watch of a dead engine does not keep the fleet alive.
            runtime.spawn(watch(Arc::downgrade(self), Arc::clone(engine), self.timeouts.recheck));
        }
    }
}

/// Checks an engine that is down until it is healthy, or the fleet is gone.
async fn watch(fleet: Weak<FleetShared>, engine: Arc<RemoteEngine>, pause: Duration) {
    let mut factor = 1;
    loop {
        sleep(pause * factor).await;
        let Some(fleet) = fleet.upgrade() else { return };
        let _checking = engine.checking.lock().await;
        // A restarted engine has no adapters, and one that was only unreachable reports that it has them already.
        engine.adapters.clear();
        match fleet.check(&engine).await {
            Ok(_) => {
                tracing::info!(engine = engine.endpoint.url(), "an engine takes requests again");
                return;
            }
            Err(fault) => {
                tracing::warn!(error = %fault, "an engine is not healthy yet");
                engine.failed(fault.kind, &fault.message);
            }
        }
        factor = (factor * 2).min(MOST_PAUSES);
    }
}
