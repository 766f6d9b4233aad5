//! W3C trace context: a request may belong to a trace that began elsewhere.

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes the span of a request part of the trace that its `traceparent` header names. A header that cannot be read is
/// as none, as the recommendation has it.
pub(super) fn join(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        let context = TraceContextPropagator::new().extract(&Headers(headers));
        // Fails where no traces are collected: then there is nothing to be part of.
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
