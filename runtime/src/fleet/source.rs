//! The source of the server's tokens: the engine of this process, or engines elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use waymark_agent::{FingerprintFailure, Generator, LogprobFingerprint, Resumption, SessionSource, Steps};
use waymark_engine::{
    BackendSpec, Counters, Engine, EngineError, EngineSnapshot, Generate, Health, Lease, LoadedAdapter, Origin,
    Session, SessionOptions, Token, TokenStep, Turn, TurnFinish,
};

use super::{Fleet, FleetCounters, RemoteSession, RemoteTurn};

/// A source of tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// The engine of this process.
    Engine(Engine),
    /// Engines elsewhere.
    Fleet(Fleet),
}

/// A token sequence of either source.
#[derive(Debug)]
pub enum SourceSession {
    /// In the engine of this process.
    Engine(Session),
    /// On engines elsewhere.
    Fleet(RemoteSession),
}

/// A generation of either source.
#[derive(Debug)]
pub enum SourceTurn<'a> {
    /// In the engine of this process.
    Engine(Turn<'a>),
    /// On engines elsewhere.
    Fleet(Box<RemoteTurn<'a>>),
}

impl From<Engine> for TokenSource {
    fn from(engine: Engine) -> Self {
        TokenSource::Engine(engine)
    }
}

impl From<Fleet> for TokenSource {
    fn from(fleet: Fleet) -> Self {
        TokenSource::Fleet(fleet)
    }
}

impl TokenSource {
    /// Returns the properties of the model.
    pub fn spec(&self) -> &BackendSpec {
        match self {
            TokenSource::Engine(engine) => engine.spec(),
            TokenSource::Fleet(fleet) => fleet.spec(),
        }
    }

    /// Returns the counters. Those of forward passes and blocks stay 0 for engines elsewhere.
    pub fn counters(&self) -> &Counters {
        match self {
            TokenSource::Engine(engine) => engine.counters(),
            TokenSource::Fleet(fleet) => fleet.counters(),
        }
    }

    /// Returns the counters of requests to engines elsewhere. `None` if there are none.
    pub fn remote_counters(&self) -> Option<&FleetCounters> {
        match self {
            TokenSource::Engine(_) => None,
            TokenSource::Fleet(fleet) => Some(fleet.remote_counters()),
        }
    }

    /// Returns the health.
    pub fn health(&self) -> Health {
        match self {
            TokenSource::Engine(engine) => engine.health(),
            TokenSource::Fleet(fleet) => fleet.health(),
        }
    }

    /// Returns the maximum length of a sequence, in tokens.
    pub fn limit(&self) -> usize {
        self.spec().limit()
    }

    /// Creates an empty session.
    pub fn session(&self, options: SessionOptions) -> SourceSession {
        self.open(options)
    }

    /// Returns the state of the engine. `None` for engines elsewhere, whose sessions are not known here.
    ///
    /// # Errors
    /// [`EngineError::Dead`] after the engine has stopped.
    pub async fn snapshot(&self) -> Result<Option<EngineSnapshot>, EngineError> {
        match self {
            TokenSource::Engine(engine) => engine.snapshot().await.map(Some),
            TokenSource::Fleet(_) => Ok(None),
        }
    }

    /// Stops the engine of this process; see [`Engine::end`].
    pub async fn end(&self, step_limit: Duration) {
        if let TokenSource::Engine(engine) = self {
            engine.end(step_limit).await;
        }
    }
}

impl SourceSession {
    /// Returns the length in tokens.
    pub fn len(&self) -> usize {
        self.tokens().len()
    }

    /// Returns `true` if no token was appended yet.
    pub fn is_empty(&self) -> bool {
        self.tokens().is_empty()
    }
}

impl SessionSource for TokenSource {
    type Sequence = SourceSession;

    fn open(&self, options: SessionOptions) -> SourceSession {
        match self {
            TokenSource::Engine(engine) => SourceSession::Engine(engine.open(options)),
            TokenSource::Fleet(fleet) => SourceSession::Fleet(fleet.open(options)),
        }
    }

    fn fork(&self, sequence: &SourceSession, length: usize, options: SessionOptions) -> SourceSession {
        match (self, sequence) {
            (TokenSource::Engine(engine), SourceSession::Engine(session)) => {
                SourceSession::Engine(engine.fork(session, length, options))
            }
            (TokenSource::Fleet(fleet), SourceSession::Fleet(session)) => {
                SourceSession::Fleet(fleet.fork(session, length, options))
            }
            // The other source computes all tokens again.
            _ => {
                let mut fork = self.open(options);
                let tokens = sequence.tokens();
                fork.append_all(&tokens[..length.min(tokens.len())]);
                fork
            }
        }
    }

    fn shorten(&self, sequence: SourceSession, length: usize, options: SessionOptions) -> SourceSession {
        match (self, sequence) {
            (TokenSource::Fleet(fleet), SourceSession::Fleet(session)) => {
                SourceSession::Fleet(fleet.shorten(session, length, options))
            }
            (TokenSource::Engine(engine), SourceSession::Engine(session)) => {
                SourceSession::Engine(engine.shorten(session, length, options))
            }
            (_, sequence) => self.fork(&sequence, length, options),
        }
    }

    fn limit(&self) -> usize {
        self.spec().limit()
    }

    async fn lease_adapter(&self, dir: PathBuf) -> Result<Lease, EngineError> {
        match self {
            TokenSource::Engine(engine) => engine.lease_adapter(dir).await,
            TokenSource::Fleet(fleet) => fleet.lease_adapter(dir).await,
        }
    }

    async fn check_fingerprint(
        &self,
        policy: &str,
        adapter: Option<LoadedAdapter>,
        fingerprint: Arc<LogprobFingerprint>,
    ) -> Result<(), FingerprintFailure> {
        match self {
            TokenSource::Engine(engine) => engine.check_fingerprint(policy, adapter, fingerprint).await,
            TokenSource::Fleet(fleet) => fleet.check_fingerprint(policy, adapter, fingerprint).await,
        }
    }
}

impl Generator for SourceSession {
    type Generation<'a> = SourceTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        match self {
            SourceSession::Engine(session) => session.append(ids, origin, forced),
            SourceSession::Fleet(session) => session.append(ids, origin, forced),
        }
    }

    async fn generate(&mut self, spec: Generate) -> Result<SourceTurn<'_>, EngineError> {
        Ok(match self {
            SourceSession::Engine(session) => SourceTurn::Engine(session.generate(spec).await?),
            SourceSession::Fleet(session) => SourceTurn::Fleet(Box::new(session.generate(spec).await?)),
        })
    }

    fn tokens(&self) -> &[Token] {
        match self {
            SourceSession::Engine(session) => session.tokens(),
            SourceSession::Fleet(session) => session.tokens(),
        }
    }

    fn cached_prompt_tokens(&self) -> usize {
        match self {
            SourceSession::Engine(session) => session.cached_prompt_tokens(),
            SourceSession::Fleet(session) => session.cached_prompt_tokens(),
        }
    }
}

impl Steps for SourceTurn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        match self {
            SourceTurn::Engine(turn) => turn.next().await,
            SourceTurn::Fleet(turn) => turn.next().await,
        }
    }

    fn finish(&self) -> Option<TurnFinish> {
        match self {
            SourceTurn::Engine(turn) => turn.finish(),
            SourceTurn::Fleet(turn) => turn.finish(),
        }
    }

    fn resumption(&mut self) -> Option<Resumption> {
        match self {
            SourceTurn::Engine(_) => None,
            SourceTurn::Fleet(turn) => turn.resumption(),
        }
    }
}
