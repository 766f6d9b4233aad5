//! W3C trace context: joins requests to traces that began elsewhere.

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes the span of a request part of the trace that its `traceparent` header names. An invalid header is ignored, as
/// the W3C recommendation demands.
pub(super) fn join(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        let context = TraceContextPropagator::new().extract(&Headers(headers));
        // Fails if no traces are collected, in which case there is nothing to join.
        let _ = span.set_parent(context);
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
