//! Fingerprints of policies: checked when a policy is loaded, when an adapter is loaded into an engine, and with the identity
//! of an engine.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use waymark_agent::{FingerprintFailure, LogprobFingerprint};
use waymark_engine::LoadedAdapter;

use super::FleetShared;
use super::engine::RemoteEngine;
use super::fault::{Fault, FaultKind};
use super::identity;

/// Fingerprint of a policy.
#[derive(Debug, Clone)]
pub(super) struct PolicyFingerprint {
    policy: String,
    /// Held by the policy.
    fingerprint: Weak<LogprobFingerprint>,
}

impl PartialEq for PolicyFingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint.ptr_eq(&other.fingerprint)
    }
}

/// Fingerprints of the policies that have no adapter: those of the base model.
#[derive(Debug, Default)]
pub(super) struct BaseFingerprints(Mutex<Vec<PolicyFingerprint>>);

impl BaseFingerprints {
    fn add(&self, fingerprint: PolicyFingerprint) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.fingerprint.strong_count() > 0);
        all.push(fingerprint);
    }

    fn all(&self) -> Vec<PolicyFingerprint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FleetShared {
    /// Compares the weights of a policy with its fingerprint at every engine that takes requests. The others are compared
    /// before they take any.
    pub(super) async fn add_fingerprint(
        self: &Arc<Self>,
        policy: &str,
        adapter: Option<LoadedAdapter>,
        fingerprint: &Arc<LogprobFingerprint>,
    ) -> Result<(), FingerprintFailure> {
        let added = PolicyFingerprint { policy: policy.to_owned(), fingerprint: Arc::downgrade(fingerprint) };
        match adapter {
            None => self.fingerprints.add(added.clone()),
            Some(adapter) => self.adapters.set_fingerprint(adapter, added.clone()),
        }
        let adapter = adapter.and_then(|adapter| self.adapters.get(adapter));
        for engine in self.engines.iter().filter(|engine| engine.is_usable()) {
            let Some(facts) = engine.facts() else { continue };
            let model = adapter.as_ref().map_or(facts.model.as_str(), |adapter| adapter.name.as_str());
            match engine.check_fingerprint(model, &added).await {
                Ok(()) => {}
                Err(Fault { kind: FaultKind::Unfit | FaultKind::Refused, message, url }) => {
                    tracing::error!(engine = url, policy, reason = message, "other weights than those of the policy");
                    return Err(FingerprintFailure(message));
                }
                Err(fault) => self.note(engine, &fault),
            }
        }
        Ok(())
    }

    /// Compares the base model of an engine with the fingerprints of all policies that have no adapter.
    pub(super) async fn check_base_fingerprints(&self, engine: &RemoteEngine, model: &str) -> Result<(), Fault> {
        for fingerprint in self.fingerprints.all() {
            engine.check_fingerprint(model, &fingerprint).await?;
        }
        Ok(())
    }
}

impl RemoteEngine {
    /// Compares the weights called `model` with the fingerprint of a policy. One that is served no more is skipped.
    pub(super) async fn check_fingerprint(&self, model: &str, wanted: &PolicyFingerprint) -> Result<(), Fault> {
        let Some(fingerprint) = wanted.fingerprint.upgrade() else { return Ok(()) };
        let unfit = |reason: &dyn std::fmt::Display| {
            let message = format!("its weights are not those of the policy {}: {reason}", wanted.policy);
            self.endpoint.fault(FaultKind::Unfit, message)
        };
        let (_, reply) = identity::score(&self.endpoint, model, &fingerprint.ids).await?;
        let steps = reply.scores(&fingerprint.ids[1..], 0).map_err(|reason| unfit(&reason))?;
        let found: Vec<f32> = steps.iter().map(|step| step.logprob).collect();
        fingerprint.compare(&found).map_err(|mismatch| unfit(&mismatch))
    }
}
