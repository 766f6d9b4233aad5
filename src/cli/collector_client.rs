//! HTTP client of the exporter of traces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;
use waymark_runtime::trusted_roots::TrustedRoots;

/// Maximum size of a collector's reply, in bytes. Replies name rejected spans at most.
const MAX_REPLY_BYTES: u64 = 64 << 10;

/// Client of a collector. It blocks the exporting thread, which does nothing else.
#[derive(Debug)]
pub(super) struct CollectorClient {
    agent: Agent,
    roots: TrustedRoots,
    /// If `true`, the last batch was not delivered.
    failing: AtomicBool,
}

impl CollectorClient {
    /// Creates a client that trusts `roots`. Requests fail after `timeout`.
    pub(super) fn new(roots: TrustedRoots, timeout: Duration) -> Self {
        CollectorClient { agent: roots.agent(timeout), roots, failing: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let response = self.agent.run(request.map(|body| body.to_vec()))?;
        let (parts, mut body) = response.into_parts();
        let body = body.with_config().limit(MAX_REPLY_BYTES).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }

    /// Returns the reason why a batch was not delivered.
    fn reason(&self, error: &ureq::Error) -> String {
        let tls = if let ureq::Error::Io(error) = error { self.roots.explain(error) } else { None };
        tls.unwrap_or_else(|| error.to_string())
    }

    /// Logs only the first failure after a success, because an unreachable collector would otherwise fill the log.
    fn note(&self, outcome: &Result<Response<Bytes>, String>, url: &str) {
        let reason = match outcome {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it returned {}", response.status())),
            Err(reason) => Some(reason.clone()),
        };
        let failed = self.failing.swap(reason.is_some(), Ordering::Relaxed);
        if let Some(reason) = reason.filter(|_| !failed) {
            tracing::warn!(collector = url, reason, "traces are not delivered");
        }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let url = request.uri().to_string();
        let outcome = self.send(request).map_err(|error| self.reason(&error));
        self.note(&outcome, &url);
        Ok(outcome?)
    }
}
