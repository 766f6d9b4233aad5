//! Middleware around every request: request IDs, the log line, metrics, and admission during a drain.

use std::time::Instant;

use axum::body::HttpBody;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, Span, field::Empty};
use uuid::Uuid;
use waymark_engine::RequestId;

use super::drain::DrainPhase;
use super::error::{ApiError, Code};
use super::guard::guard;
use super::metrics::ServerMetrics;
use super::state::AppState;
use super::traceparent;

/// Size up to which a complete body counts as sent, in bytes: the buffers of its connection take it.
const BUFFERED: u64 = 64 << 10;

/// Header with the request's ID, on every response including errors.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Routes of probes.
const PROBES: [&str; 3] = ["/health", "/ready", "/ping"];

/// Assigns an ID to a request, and logs and counts its response once the body has been sent or dropped.
pub(crate) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let id = RequestId(Uuid::now_v7());
    request.extensions_mut().insert(id);
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!(
        "request",
        %id,
        method = %request.method(),
        path = request.uri().path(),
        status = Empty,
        key = Empty,
        otel.kind = "server",
    );
    traceparent::join(&span, request.headers());
    state.metrics.request_begun();
    let mut record = RequestRecord {
        metrics: state.metrics,
        probe: PROBES.contains(&route.as_str()),
        route,
        // Stays 0 without a response, which then counts as 499.
        status: 0,
        error: None,
        started: Instant::now(),
        span: span.clone(),
    };
    let mut response = next.run(request).instrument(span.clone()).await;
    record.status = response.status().as_u16();
    record.error = response.extensions().get::<Code>().copied();
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    hold_until_sent(response, span, record)
}

/// Admits work unless the server is draining, counts it until its response is sent, and ends it at the drain's
/// deadline. Runs before the body is read.
pub(crate) async fn admit(State(state): State<AppState>, request: Request, next: Next) -> Response {
    // Counted before the phase is checked, so a drain that begins in between waits for this request.
    let running = state.drain.enter();
    if state.drain.phase() != DrainPhase::Serving {
        return ApiError::new(Code::Draining, "the server is shutting down").into_response();
    }
    let response = tokio::select! {
        // A response that is ready wins over the deadline of the drain.
        biased;
        response = next.run(request) => response,
        () = state.drain.reached(DrainPhase::Expired) => {
            ApiError::new(Code::Draining, "the server shut down before this request was finished").into_response()
        }
    };
    hold_until_sent(response, Span::none(), running)
}

/// Keeps `kept` alive while a streamed or large body is being sent, and polls the body inside `span`. A small body that
/// is already complete needs neither.
pub(crate) fn hold_until_sent<T: Send + Unpin + 'static>(response: Response, span: Span, kept: T) -> Response {
    if response.body().size_hint().exact().is_some_and(|bytes| bytes <= BUFFERED) {
        return response;
    }
    response.map(|body| guard(body, span, kept))
}

/// Log and metrics entry of a request. It is written when dropped, so a client that disconnects is recorded too.
struct RequestRecord {
    metrics: ServerMetrics,
    route: String,
    /// If `true`, the request asked only whether the server is well.
    probe: bool,
    /// Status of the response; 0 until there is one.
    status: u16,
    error: Option<Code>,
    started: Instant,
    span: Span,
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        // nginx's status for a client that closed its request.
        let status = if self.status == 0 { 499 } else { self.status };
        self.metrics.request_ended(std::mem::take(&mut self.route), status, time);
        self.span.record("status", i64::from(status));
        self.span.in_scope(|| {
            let seconds = time.as_secs_f64();
            let error = self.error.map(Code::name);
            // Probes come every few seconds for as long as the server lives, and would bury everything else.
            if self.probe && self.error.is_none() {
                tracing::debug!(status, seconds, error, "answered");
            } else {
                tracing::info!(status, seconds, error, "answered");
            }
        });
    }
}
