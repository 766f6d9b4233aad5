//! Traces for a collector, over OTLP: what the requests' spans say, in batches, beside everything else.

use std::time::Duration;

use anyhow::{Context, ensure};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::{Layer, Registry};

/// Where OTLP over HTTP takes traces, below the address of a collector.
const PATH: &str = "/v1/traces";

/// What one batch may take to be delivered. Nobody waits for it but the thread that sends.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the spans of requests go: a collector, or nowhere.
#[derive(Debug)]
pub(super) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Sends to the collector at this address, such as `http://127.0.0.1:4318`.
    pub(super) fn to(collector: Option<&str>) -> anyhow::Result<Self> {
        let Some(address) = collector else { return Ok(Self(None)) };
        ensure!(
            address.starts_with("http://"),
            "--otlp-endpoint {address}: give the http:// address of a collector, such as http://127.0.0.1:4318"
        );
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}{PATH}", address.trim_end_matches('/').trim_end_matches(PATH)))
            .with_timeout(PATIENCE)
            .build()
            .with_context(|| format!("--otlp-endpoint {address}"))?;
        let resource = Resource::builder_empty()
            .with_service_name("waymark")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())))
    }

    /// What listens to spans: the server's own, whatever the log leaves out.
    pub(super) fn listener(&self) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
        let tracer = self.0.as_ref()?.tracer("waymark");
        let ours = filter_fn(|about| {
            let detail = if about.is_span() { Level::DEBUG } else { Level::INFO };
            about.target().starts_with("waymark") && *about.level() <= detail
        });
        Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours).boxed())
    }

    /// Sends what is left.
    pub(super) fn finish(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last traces were not delivered");
        }
    }
}
