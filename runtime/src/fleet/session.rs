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
    /// If `true`, the session has had a turn. Its later turns are not refused, but wait for a permit.
    admitted: bool,
}

impl RemoteSession {
    /// Opens an empty sequence.
    pub(super) fn open(fleet: Arc<FleetShared>, options: SessionOptions) -> Self {
        Self {
            fleet,
            options,
            tokens: Vec::new(),
            known: 0,
            cached: None,
            name: new_name(),
            engine: None,
            admitted: false,
        }
    }

    /// Returns a sequence with the first `length` tokens. It goes on at the same engine, whose prefix cache may hold
    /// them, under a name of its own. Its first turn may be refused, as that of any other new session.
    pub(super) fn fork(&self, length: usize, options: SessionOptions) -> Self {
        let tokens = self.tokens[..length.min(self.tokens.len())].to_vec();
        let known = self.known.min(tokens.len());
        let fleet = Arc::clone(&self.fleet);
        let engine = self.engine.clone();
        Self { fleet, options, tokens, known, cached: self.cached, name: new_name(), engine, admitted: false }
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
}

fn new_name() -> String {
    format!("wm-{}", Uuid::now_v7().simple())
}

impl Generator for RemoteSession {
    type Generation<'a> = RemoteTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    async fn generate(&mut self, spec: Generate) -> Result<RemoteTurn<'_>, EngineError> {
        spec.check(&self.tokens, self.known, &self.fleet.spec)?;
        let limit = self.fleet.requests;
        // A new session is refused instead of queued, because the engines have queues of their own. A later turn waits,
        // because an episode that returns from a search must not fail.
        let permit = if self.admitted {
            None
        } else {
            let permit = Arc::clone(&self.fleet.permits).try_acquire_owned();
            Some(permit.map_err(|_| EngineError::QueueFull { limit })?)
        };
        self.admitted = true;
        // The turn waits and sends its request when it is asked for the first token, which is within the time limit of
        // the episode.
        Ok(RemoteTurn::new(self, spec, permit))
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        self.cached.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::OnceLock;

    use tokio::sync::Semaphore;
    use waymark_engine::{BackendSpec, Counters};
    use waymark_models::tokenizer::Tokenizer;

    use super::super::adapters::AdapterDirectory;
    use super::super::counters::FleetCounters;
    use super::super::fingerprints::BaseFingerprints;
    use super::*;
    use crate::config::FleetTimeouts;

    const VOCAB: usize = 259;

    /// Returns a fleet without engines.
    fn fleet() -> FleetShared {
        let spec = BackendSpec { name: "tiny".to_owned(), vocab: VOCAB, blocks: 4, context: 64, generation: 0 };
        FleetShared {
            engines: Vec::new(),
            model: None,
            tokenizer: Arc::new(Tokenizer::bytes()),
            spec,
            timeouts: FleetTimeouts::default(),
            requests: 1,
            permits: Arc::new(Semaphore::new(1)),
            adapters: AdapterDirectory::default(),
            adapter_root: None,
            reference: OnceLock::new(),
            fingerprints: BaseFingerprints::default(),
            counters: Counters::default(),
            remote: FleetCounters::default(),
        }
    }

    #[tokio::test]
    async fn a_turn_that_the_engine_of_this_process_would_refuse_is_refused() {
        let mut session = RemoteSession::open(Arc::new(fleet()), SessionOptions::default());
        session.append(&[1], Origin::Prompt, false);
        let outside = Generate { force: vec![2, VOCAB as u32], ..Generate::default() };
        let endless = Generate { allow: Some(vec![7]), eos: vec![7], min_tokens: 1, ..Generate::default() };
        for (spec, words) in [(outside, "token 259 is outside"), (endless, "only tokens that end the turn")] {
            let error = session.generate(spec).await.unwrap_err();
            assert!(matches!(&error, EngineError::Request(reason) if reason.contains(words)), "{error}");
        }
        let sound = Generate { force: vec![2, VOCAB as u32 - 1], ..Generate::default() };
        assert!(session.generate(sound).await.is_ok());
    }
}
