//! Requests to a session.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;
use waymark_models::AdapterSlot;
use waymark_models::sampler::{SamplingParams, TokenMask};

use super::constraint::Constraint;
use super::stop::StopSet;

/// A loaded adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoadedAdapter {
    /// Slot in the backend; reused after an unload.
    pub slot: AdapterSlot,
    /// Identity in cache keys; never reused, so that cached KV of a replaced adapter cannot be found.
    pub generation: u64,
}

/// ID of the request that a session serves. The engine only displays it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub Uuid);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{}", self.0.simple())
    }
}

/// Weight of a session's tokens when its tenant is compared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// A quarter of the normal share: for work that nobody waits for.
    Low,
    /// The normal share.
    #[default]
    Normal,
    /// Four times the normal share.
    High,
}

impl Priority {
    /// Returns the charge of one token.
    pub(super) fn charge(self) -> u64 {
        match self {
            Self::Low => 16,
            Self::Normal => 4,
            Self::High => 1,
        }
    }
}

/// Options of a session for its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionOptions {
    /// Adapter with which the session's tokens are computed. `None` uses the base weights.
    pub adapter: Option<LoadedAdapter>,
    /// Cache salt. Sessions share cached KV only with sessions of the same salt: derive it from the tenant, never from
    /// client input.
    pub salt: u64,
    /// Tenant of the session. Computed tokens and places in the batch are shared fairly among tenants: derive the
    /// tenant from the API key, or from the request where there are no keys.
    pub tenant: u64,
    /// Weight of the session's tokens.
    pub priority: Priority,
    /// ID of the request that the session serves, shown in snapshots.
    pub request: Option<RequestId>,
}

/// Parameters of one turn.
#[derive(Debug, Clone)]
pub struct Generate {
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Maximum number of sampled tokens; at least 1.
    pub max_tokens: usize,
    /// Number of tokens before which no token of `eos` is sampled, even if `allow` or `constraint` permits it. Without
    /// effect on forced tokens.
    pub min_tokens: usize,
    /// Stop strings and stop lines. The token that completes one ends the turn and is kept whole.
    pub stops: Arc<StopSet>,
    /// Tokens that end the turn.
    pub eos: Vec<u32>,
    /// Token ids that may be sampled. `None` allows all. Log-probabilities stay those of the full distribution.
    pub allow: Option<Vec<u32>>,
    /// Grammar that the turn must follow; excludes `allow`. Log-probabilities stay those of the full distribution.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// First tokens of the turn, taken as given instead of being sampled. They are computed, delivered and counted like
    /// sampled ones, each with its log-probability, so that a recorded sequence can be scored again.
    pub force: Vec<u32>,
    /// If `true`, sampling continues after an end-of-sequence token.
    pub ignore_eos: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: 256,
            min_tokens: 0,
            stops: Arc::default(),
            eos: Vec::new(),
            allow: None,
            constraint: None,
            force: Vec::new(),
            ignore_eos: false,
        }
    }
}

impl Generate {
    /// Returns the mask of a token before `min_tokens`: the tokens that `allow` or the constraint's mask permits, without
    /// those of `eos`. `vocab` is the size of the vocabulary.
    pub(super) fn early_mask(&self, mask: Option<TokenMask>, vocab: usize) -> TokenMask {
        // A turn has either a constraint or an allow-list.
        let listed = || self.allow.as_ref().map(|ids| TokenMask::of(ids, vocab));
        let mut mask = mask.or_else(listed).unwrap_or_else(|| TokenMask::all(vocab));
        self.eos.iter().for_each(|&id| mask.forbid(id));
        mask
    }
}
