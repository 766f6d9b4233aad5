//! Requests to a session.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;
use waymark_models::AdapterSlot;
use waymark_models::sampler::{SamplingParams, TokenMask};

use super::backend::BackendSpec;
use super::constraint::Constraint;
use super::error::EngineError;
use super::stop::{Matcher, StopSet};
use super::token::{Token, TurnFinish};

/// A loaded adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoadedAdapter {
    /// Slot in the backend; reused after an unload.
    pub slot: AdapterSlot,
    /// Identity in cache keys; never reused, so cached KV of a replaced adapter cannot be found.
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
    /// sampled ones, each with its log-probability, so a recorded sequence can be scored again.
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
    /// Checks that the turn can follow `tokens` in a model with these properties. The first `known` tokens were checked
    /// before earlier turns.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] when no room is left to sample; [`EngineError::Request`] for invalid parameters.
    pub fn check(&self, tokens: &[Token], known: usize, spec: &BackendSpec) -> Result<(), EngineError> {
        let refuse = |reason: String| Err(EngineError::Request(reason));
        let vocab = spec.vocab;
        if tokens.is_empty() {
            return refuse("the prompt has no tokens".into());
        }
        let new = tokens[known.min(tokens.len())..].iter().map(|token| token.id);
        if let Some(id) = new.chain(self.force.iter().copied()).find(|&id| id as usize >= vocab) {
            return refuse(format!("token {id} is outside the vocabulary of {vocab} tokens"));
        }
        if self.max_tokens == 0 {
            return refuse("max_tokens must be at least 1".into());
        }
        if self.allow.as_ref().is_some_and(|allow| !allow.iter().any(|&id| (id as usize) < vocab)) {
            return refuse("the allow-list contains no token of the vocabulary".into());
        }
        let ends = |id: &u32| self.eos.contains(id) || *id as usize >= vocab;
        if self.min_tokens > self.force.len() && self.allow.as_ref().is_some_and(|ids| ids.iter().all(ends)) {
            return refuse(format!(
                "the allow-list contains only tokens that end the turn, but min_tokens is {}: set it to 0",
                self.min_tokens
            ));
        }
        if self.allow.is_some() && self.constraint.is_some() {
            return refuse("an allow-list and a constraint exclude each other: give only one".into());
        }
        if let Err(error) = self.sampling.check() {
            return refuse(error.to_string());
        }
        let limit = spec.limit();
        let tokens = tokens.len();
        if tokens >= limit { Err(EngineError::TooLong { tokens, limit }) } else { Ok(()) }
    }

    /// Returns the reason for the end of the turn after the token `token` with the text `bytes`, if the token ends it.
    /// `matcher` has taken the turn's earlier tokens. With this token, the turn has `sampled` tokens and its sequence
    /// `len`, of at most `limit`.
    pub fn finish_after(
        &self,
        matcher: &mut Matcher,
        token: u32,
        bytes: &[u8],
        sampled: usize,
        len: usize,
        limit: usize,
    ) -> Option<TurnFinish> {
        if !self.ignore_eos && self.eos.contains(&token) {
            return Some(TurnFinish::Eos);
        }
        if let Some(which) = matcher.push(&self.stops, bytes) {
            return Some(TurnFinish::Stop(which));
        }
        if sampled >= self.max_tokens {
            return Some(TurnFinish::Length);
        }
        (len >= limit).then_some(TurnFinish::Context)
    }

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
