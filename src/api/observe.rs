//! What happens around every request: an id, a line in the log, the counters, and its place in a drain.

use std::time::Instant;

use axum::body::HttpBody;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, Span, field::Empty};
use uuid::Uuid;

use super::drain::Phase;
use super::error::{ApiError, Code};
use super::guard::guard;
use super::metrics::{Metrics, RequestLabels, RouteLabels};
use super::state::AppState;
use super::traceparent;
use crate::engine::RequestId;

/// On every response, errors included.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives a request its id, and logs and counts its answer once the body has been sent or given up.
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
    state.metrics.in_flight.inc();
    let mut record =
        Record { metrics: state.metrics, route, status: 0, error: None, begun: Instant::now(), span: span.clone() };
    let mut response = next.run(request).instrument(span.clone()).await;
    record.status = response.status().as_u16();
    record.error = response.extensions().get::<Code>().copied();
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    hold_until_sent(response, span, record)
}

/// Admits work while the server is not draining, counts it until its answer is sent, and ends it when the drain's
/// deadline has passed. Runs before the body is read.
pub(crate) async fn admit(State(state): State<AppState>, request: Request, next: Next) -> Response {
    // Counted first, so that a drain which begins in between waits for it.
    let running = state.drain.enter();
    if state.drain.phase() != Phase::Serving {
        return ApiError::new(Code::Draining, "the server is shutting down").into_response();
    }
    let response = tokio::select! {
        biased;
        response = next.run(request) => response,
        () = state.drain.reached(Phase::Expired) => {
            ApiError::new(Code::Draining, "the server shut down before this request was finished").into_response()
        }
    };
    hold_until_sent(response, Span::none(), running)
}

/// Keeps `kept` alive for as long as a streamed body is, and works on it inside `span`; a body that is complete already
/// needs neither.
pub(crate) fn hold_until_sent<T: Send + 'static>(response: Response, span: Span, kept: T) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| guard(body, span, kept))
}

/// What is known about a request; written down when dropped, which a client that goes away cannot prevent.
struct Record {
    metrics: Metrics,
    route: String,
    /// 0 until there is an answer.
    status: u16,
    error: Option<Code>,
    begun: Instant,
    span: tracing::Span,
}

impl Drop for Record {
    fn drop(&mut self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        // 499 is what nginx calls a client that closed its request.
        let status = if self.status == 0 { 499 } else { self.status };
        self.metrics.in_flight.dec();
        self.metrics.requests.get_or_create(&RequestLabels { route: self.route.clone(), status }).inc();
        let labels = RouteLabels { route: std::mem::take(&mut self.route) };
        self.metrics.request_seconds.get_or_create(&labels).observe(seconds);
        self.span.record("status", i64::from(status));
        self.span.in_scope(|| {
            tracing::info!(status, seconds, error = self.error.map(Code::name), "answered");
        });
    }
}
