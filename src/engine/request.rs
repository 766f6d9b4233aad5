//! What a caller may ask of a session.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;
use waymark_models::AdapterSlot;
use waymark_models::sampler::SamplingParams;

use super::constraint::Constraint;
use super::stop::StopSet;

/// A loaded adapter: which one a backend applies, and which one the cache means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// Its place in the backend; used again after an unload.
    pub slot: AdapterSlot,
    /// Its identity; never used again, so that cached KV of an adapter that was replaced cannot be found.
    pub generation: u64,
}

/// Names the request that a session works for. The engine only shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub Uuid);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{}", self.0.simple())
    }
}

/// What a session is for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionOptions {
    /// The adapter its tokens are computed with.
    pub adapter: Option<Adapter>,
    /// Sessions share cached KV only with sessions of the same salt: derive it from the tenant, never from the client.
    pub salt: u64,
    /// The request it works for, for whoever looks at the engine's state.
    pub request: Option<RequestId>,
}

/// One turn: how to sample and when to end.
#[derive(Debug, Clone)]
pub struct Generate {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// At most this many tokens are sampled; must not be 0.
    pub max_tokens: usize,
    /// Byte strings that end the turn with the token that completes one. That token is kept whole.
    pub stops: Arc<StopSet>,
    /// Tokens that end the turn.
    pub eos: Vec<u32>,
    /// When given, only these ids may be sampled. Log-probabilities stay those of the full distribution.
    pub allow: Option<Vec<u32>>,
    /// When given, only what it allows may be sampled; not together with `allow`. Log-probabilities stay those of the
    /// full distribution.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// The first tokens of the turn, taken as they are instead of being chosen. They are computed, told and counted like
    /// sampled ones, each with its log-probability: this is how a recorded sequence is scored again.
    pub force: Vec<u32>,
    /// Samples on after an end-of-sequence token.
    pub ignore_eos: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: 256,
            stops: Arc::default(),
            eos: Vec::new(),
            allow: None,
            constraint: None,
            force: Vec::new(),
            ignore_eos: false,
        }
    }
}
