//! Fingerprints of policies: checked when a policy is loaded, when an adapter is loaded into an engine, and with the
//! identity of an engine.

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
    /// Weak, because the policy owns it.
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
    /// Compares the weights of a policy with its fingerprint at every engine that takes requests. The others, and those
    /// that do not answer, are compared before their next request.
    pub(super) async fn add_fingerprint(
        self: &Arc<Self>,
        policy: &str,
        adapter: Option<LoadedAdapter>,
        fingerprint: &Arc<LogprobFingerprint>,
    ) -> Result<(), FingerprintFailure> {
        let added = PolicyFingerprint { policy: policy.to_owned(), fingerprint: Arc::downgrade(fingerprint) };
        let published = adapter.and_then(|adapter| self.adapters.get(adapter));
        let mut uncompared = Vec::new();
        for engine in &self.engines {
            let Some(facts) = engine.facts().filter(|_| engine.is_usable()) else {
                uncompared.push(engine);
                continue;
            };
            let model = published.as_ref().map_or(&facts.model, |adapter| &adapter.name);
            // `OtherAdapter` also for the base model: an engine that is `Unfit` may only have another key.
            match engine.check_fingerprint(model, &added, FaultKind::OtherAdapter).await {
                Ok(()) => {}
                Err(Fault { kind: FaultKind::OtherAdapter, message, url }) => {
                    tracing::error!(engine = url, policy, reason = message, "other weights than those of the policy");
                    return Err(FingerprintFailure(message));
                }
                Err(fault) => {
                    tracing::warn!(error = %fault, policy, "the weights are compared before the next request");
                    self.note(engine, &fault);
                    uncompared.push(engine);
                }
            }
        }
        match adapter {
            None => self.fingerprints.add(added),
            Some(adapter) => self.adapters.set_fingerprint(adapter, added),
        }
        for engine in uncompared {
            if let Some(adapter) = &published {
                engine.adapters.forget(&adapter.name);
            }
            engine.distrust();
        }
        Ok(())
    }

    /// Compares the base model of an engine with the fingerprints of all policies that have no adapter.
    pub(super) async fn check_base_fingerprints(&self, engine: &RemoteEngine, model: &str) -> Result<(), Fault> {
        for fingerprint in self.fingerprints.all() {
            engine.check_fingerprint(model, &fingerprint, FaultKind::Unfit).await?;
        }
        Ok(())
    }
}

impl RemoteEngine {
    /// Compares the weights called `model` with the fingerprint of a policy, and fails with `mismatch` if they differ or
    /// the engine refuses to score them. The fingerprint of a policy that is no longer served is skipped.
    pub(super) async fn check_fingerprint(
        &self,
        model: &str,
        wanted: &PolicyFingerprint,
        mismatch: FaultKind,
    ) -> Result<(), Fault> {
        let Some(fingerprint) = wanted.fingerprint.upgrade() else { return Ok(()) };
        let differs = |reason: &dyn std::fmt::Display| {
            let message = format!("its weights are not those of the policy {}: {reason}", wanted.policy);
            self.endpoint.fault(mismatch, message)
        };
        let scored = identity::score(&self.endpoint, model, &fingerprint.ids).await;
        let (_, reply) = scored.map_err(|fault| match fault.kind {
            FaultKind::Refused => differs(&fault.message),
            _ => fault,
        })?;
        let steps = reply.scores(&fingerprint.ids[1..], 0).map_err(|reason| differs(&reason))?;
        let found: Vec<f32> = steps.iter().map(|step| step.logprob).collect();
        fingerprint.compare(&found).map_err(|difference| differs(&difference))
    }
}
