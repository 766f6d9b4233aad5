//! A token sequence whose tokens are sampled elsewhere. The sequence is kept here: an engine gets all of it with each
//! turn, and nothing is in flight between two turns.

use std::sync::Arc;

use uuid::Uuid;
use waymark_agent::Generator;
use waymark_engine::{EngineError, Generate, Origin, SessionOptions, Token};

use super::FleetShared;
use super::engine::RemoteEngine;
use super::turn::RemoteTurn;

/// A token sequence. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct RemoteSession {
    pub(super) fleet: Arc<FleetShared>,
    pub(super) options: SessionOptions,
    pub(super) tokens: Vec<Token>,
    /// Number of leading tokens that an engine has computed for this session.
    pub(super) known: usize,
    /// Number of tokens of the first prompt that came from a prefix cache. `None` before an engine has reported it.
    pub(super) cached: Option<usize>,
    /// Name by which a router keeps the session's requests on one engine. Replaced after a failure.
    pub(super) name: String,
    /// Engine of the last request.
    pub(super) engine: Option<Arc<RemoteEngine>>,
}

impl RemoteSession {
    /// Opens an empty sequence.
    pub(super) fn open(fleet: Arc<FleetShared>, options: SessionOptions) -> Self {
        Self { fleet, options, tokens: Vec::new(), known: 0, cached: None, name: new_name(), engine: None }
    }

    /// Returns a sequence with the first `length` tokens. It goes on at the same engine, whose prefix cache may hold
    /// them, under a name of its own.
    pub(super) fn fork(&self, length: usize, options: SessionOptions) -> Self {
        let tokens = self.tokens[..length.min(self.tokens.len())].to_vec();
        let known = self.known.min(tokens.len());
        let fleet = Arc::clone(&self.fleet);
        let engine = self.engine.clone();
        Self { fleet, options, tokens, known, cached: self.cached, name: new_name(), engine }
    }

    /// Keeps the first `length` tokens. The session stays at its engine under its name.
    pub(super) fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.known = self.known.min(self.tokens.len());
    }

    /// Moves the session to `engine` under a new name: a router keeps a name at its worker even if the worker is dead.
    pub(super) fn renew(&mut self, engine: Arc<RemoteEngine>) {
        self.name = new_name();
        self.engine = Some(engine);
    }

    fn check(&self, generate: &Generate) -> Result<(), EngineError> {
        let refuse = |reason: String| Err(EngineError::Request(reason));
        let spec = &self.fleet.spec;
        if self.tokens.is_empty() {
            return refuse("the prompt has no tokens".to_owned());
        }
        // Tokens that an engine has computed were checked in earlier turns.
        let mut given = self.tokens[self.known.min(self.tokens.len())..].iter().map(|token| token.id);
        if let Some(id) = given.find(|&id| id as usize >= spec.vocab) {
            return refuse(format!("token {id} is outside the vocabulary of {} tokens", spec.vocab));
        }
        if generate.max_tokens == 0 {
            return refuse("max_tokens must be at least 1".to_owned());
        }
        if generate.allow.as_ref().is_some_and(|allow| !allow.iter().any(|&id| (id as usize) < spec.vocab)) {
            return refuse("the allow-list contains no token of the vocabulary".to_owned());
        }
        if generate.allow.is_some() && generate.constraint.is_some() {
            return refuse("an allow-list and a constraint exclude each other: give only one".to_owned());
        }
        if let Err(error) = generate.sampling.check() {
            return refuse(error.to_string());
        }
        let tokens = self.tokens.len();
        let limit = spec.limit();
        if tokens >= limit { Err(EngineError::TooLong { tokens, limit }) } else { Ok(()) }
    }
}

fn new_name() -> String {
    format!("wm-{}", Uuid::now_v7().simple())
}

impl Generator for RemoteSession {
    type Generation<'a> = RemoteTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    async fn generate(&mut self, spec: Generate) -> Result<RemoteTurn<'_>, EngineError> {
        self.check(&spec)?;
        let limit = self.fleet.requests;
        // Refused instead of queued, because the engines have queues of their own.
        let permit = Arc::clone(&self.fleet.permits).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::QueueFull { limit })?;
        // The request itself is sent with the first token that is asked for, within the time limit of the episode.
        Ok(RemoteTurn::new(self, spec, permit))
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        self.cached.unwrap_or(0)
    }
}
