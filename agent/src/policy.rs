//! Policies: how a model thinks, searches and answers, and within which limits.

use std::path::PathBuf;
use std::sync::Arc;

use waymark_engine::{Lease, LoadedAdapter};
use waymark_index::Mode;
use waymark_models::layout::ModelLayout;

use super::AgentError;
use super::budget::Budget;
use super::logprob_fingerprint::LogprobFingerprint;
use super::loop_variant::LoopVariant;
use super::protocol::Protocol;
use super::protocol_registry::{self, protocol};
use super::retrieval::Retrieval;
use super::sampling::Sampling;

/// A policy, which a request selects by its `model`.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Name of the policy.
    pub name: String,
    /// Protocol in which it thinks, searches and answers.
    pub protocol: Arc<dyn Protocol>,
    /// Name of its base model; see [`Policy::MODEL`]. `None` accepts any.
    pub base: Option<String>,
    /// [ID](waymark_models::weights::Weights::id) of the base model's weights. Takes precedence over the name. `None`
    /// if unknown.
    pub base_id: Option<String>,
    /// Directory from which the policy was read. `None` for built-in policies.
    pub dir: Option<PathBuf>,
    /// Directory of its adapter, if it has one.
    pub adapter_dir: Option<PathBuf>,
    /// Hash of its file and its adapter's files, as loaded. `None` for built-in policies.
    pub content_hash: Option<blake3::Hash>,
    /// Its adapter in the engine. The adapter stays loaded as long as a clone of the policy exists. `None` before
    /// loading, and without an adapter.
    pub lease: Option<Lease>,
    /// Name of the index that it searches. `None` searches the server's default index.
    pub index: Option<String>,
    /// Limits of its episodes.
    pub budget: Budget,
    /// Retrieval settings.
    pub retrieval: Retrieval,
    /// Sampling parameters for requests that set none.
    pub sampling: Sampling,
    /// Enables guided generation for requests that do not set it.
    pub guided: bool,
    /// Loop in which its episodes run.
    pub variant: LoopVariant,
    /// Log-probabilities that identify its weights on a remote engine. `None` skips the comparison.
    pub fingerprint: Option<Arc<LogprobFingerprint>>,
    /// Description of its training, for information only.
    pub training: Option<toml::Table>,
}

impl Policy {
    /// Names of the built-in policies.
    pub const BUILTIN: &[&str] = protocol_registry::NAMES;

    /// Directory beside `policy.toml` with the model of a policy whose weights were all trained. Such a policy names it
    /// as its base. The weights may also lie beside `policy.toml` itself.
    pub const MODEL: &str = "model";

    /// Creates a policy that runs a protocol on the bare base model. `None` if no protocol has this name.
    pub fn builtin(name: &str) -> Option<Policy> {
        let protocol = protocol(name)?;
        Some(Policy {
            name: name.to_owned(),
            base: None,
            base_id: None,
            dir: None,
            adapter_dir: None,
            content_hash: None,
            lease: None,
            index: None,
            budget: protocol.budget(),
            retrieval: protocol.retrieval(),
            sampling: default_sampling(&*protocol),
            guided: false,
            variant: LoopVariant::default(),
            fingerprint: None,
            training: None,
            protocol,
        })
    }

    /// Returns the directory of the policy's own model, if it has one: [`MODEL`](Self::MODEL), or the policy's own
    /// directory if weights lie in it.
    pub fn model_dir(&self) -> Option<PathBuf> {
        let own = self.dir.as_ref()?;
        let dir = own.join(Self::MODEL);
        let named = self.base.as_deref() == Some(Self::MODEL) && dir.is_dir();
        if named { Some(dir) } else { ModelLayout::of(own).holds_model().then(|| own.clone()) }
    }

    /// Returns the loaded adapter, if any.
    pub fn adapter(&self) -> Option<LoadedAdapter> {
        self.lease.as_ref().map(Lease::adapter)
    }

    /// Returns `true` if its episodes can search.
    pub fn searches(&self) -> bool {
        self.budget.turns > 0
    }

    /// Checks values that a file combines with defaults.
    pub(super) fn check(&self) -> Result<(), AgentError> {
        let search = &self.retrieval.search;
        check_mode(search.mode(), &*self.protocol)?;
        let refuse = |field, reason| Err(AgentError::Option { field, reason });
        if self.name.is_empty() {
            return refuse("name", "must not be empty");
        }
        search.check().map_err(|invalid| AgentError::of_search("retrieval", &invalid))?;
        if let Some(fingerprint) = &self.fingerprint {
            fingerprint.check()?;
        }
        if self.budget.sampled_tokens == 0 || self.budget.turn_tokens == 0 {
            return refuse("budget", "turn_tokens and sampled_tokens must be at least 1");
        }
        if !self.budget.seconds.is_finite() || self.budget.seconds <= 0.0 {
            return refuse("budget.seconds", "must be above 0");
        }
        self.sampling.params(0, 0).check().map_err(AgentError::Text)
    }
}

/// Refuses a mode whose triples would be searched and never shown.
pub(super) fn check_mode(mode: Mode, protocol: &dyn Protocol) -> Result<(), AgentError> {
    let shown = protocol.shows();
    if shown.contains(&mode) {
        Ok(())
    } else {
        Err(AgentError::TriplesNotShown { protocol: protocol.name(), mode, shown })
    }
}

/// Returns greedy sampling for protocols that search, as in RouteRAG's evaluation (which samples GraphRAG-R1's base
/// model at 1.0), and the model's own distribution for chats.
pub(super) fn default_sampling(protocol: &dyn Protocol) -> Sampling {
    if protocol.budget().turns > 0 { Sampling::greedy() } else { Sampling::default() }
}
