//! Scores of given tokens, by the log-probabilities of a prompt.

use std::sync::Arc;

use hyper::Method;
use waymark_engine::{StopSet, TokenStep};
use waymark_models::sampler::SamplingParams;

use super::FleetShared;
use super::engine::{EngineFacts, RemoteEngine};
use super::fault::{Fault, FaultKind};
use super::reply::TokenReply;
use super::request::{Dialect, TokenRequest};
use crate::config::EngineKind;

/// Sequence whose end is scored.
#[derive(Debug)]
pub(super) struct ScoreRequest<'a> {
    pub(super) model: &'a str,
    pub(super) ids: &'a [u32],
    /// Number of tokens at the end to score.
    pub(super) scored: usize,
    /// Number of most probable tokens to report at each position.
    pub(super) top: usize,
    pub(super) salt: u64,
}

impl ScoreRequest<'_> {
    /// Returns the body for an engine.
    pub(super) fn body(&self, kind: EngineKind, dialect: Dialect) -> serde_json::Result<Vec<u8>> {
        let request = TokenRequest {
            model: self.model,
            ids: self.ids,
            sampling: &SamplingParams::greedy(),
            seed: 0,
            // An engine samples at least one token; it is not used.
            max_tokens: 1,
            min_tokens: 0,
            stops: &StopSet::default(),
            begins: false,
            eos: &[],
            allow: None,
            score: Some(self.top),
            salt: self.salt,
        };
        request.body(kind, dialect)
    }
}

impl FleetShared {
    /// Scores the end of a sequence on an engine.
    pub(super) async fn score(
        &self,
        engine: &Arc<RemoteEngine>,
        facts: &EngineFacts,
        score: &ScoreRequest<'_>,
    ) -> Result<Vec<TokenStep>, Fault> {
        let _in_flight = engine.enter();
        let endpoint = &engine.endpoint;
        let body = score.body(endpoint.address.kind, facts.dialect);
        let body = body.map_err(|error| endpoint.fault(FaultKind::Refused, error.to_string()))?;
        self.remote.requests_total.add(1);
        self.remote.sent_bytes_total.add(body.len());
        let sent = endpoint.exchange(Method::POST, facts.dialect.path(), body, self.timeouts.first_token);
        let (reply, bytes): (TokenReply, usize) = sent.await?;
        self.remote.received_bytes_total.add(bytes);
        let from = score.ids.len() - score.scored.min(score.ids.len());
        reply.scores(&score.ids[from..], score.top).map_err(|error| endpoint.fault(FaultKind::Broken, error))
    }
}
