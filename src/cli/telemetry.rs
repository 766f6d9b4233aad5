//! Export of request spans to an OpenTelemetry collector, in batches in the background.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, ensure};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::{Layer, Registry};
use waymark_runtime::trusted_roots::TrustedRoots;
use waymark_runtime::{InvalidConfiguration, logging};

use super::collector_client::CollectorClient;
use crate::config::{ServeArgs, TelemetryArgs};

/// Path of traces in OTLP over HTTP.
const PATH: &str = "/v1/traces";

/// Timeout for delivering one batch. Only the exporting thread waits for it.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Exporter of request spans. `None` exports nothing.
#[derive(Debug)]
pub(super) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Creates an exporter to the collector that the flags name.
    pub(super) fn to(flags: &TelemetryArgs) -> anyhow::Result<Self> {
        let Some(address) = &flags.otlp_endpoint else { return Ok(Self(None)) };
        ensure!(
            address.starts_with("http://") || address.starts_with("https://"),
            "--otlp-endpoint {address}: expected the http:// or https:// address of a collector, such as \
             http://127.0.0.1:4318"
        );
        let roots = TrustedRoots::of_flag("--otlp-ca", flags.otlp_ca.as_deref())?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient::new(roots, EXPORT_TIMEOUT))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}{PATH}", address.trim_end_matches('/').trim_end_matches(PATH)))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .with_context(|| format!("--otlp-endpoint {address}"))?;
        let resource = Resource::builder_empty()
            .with_service_name("waymark")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())))
    }

    /// Layer that receives the server's own spans, independent of the log filter.
    pub(super) fn layer(&self) -> Option<Box<dyn Layer<Registry> + Send + Sync>> {
        let tracer = self.0.as_ref()?.tracer("waymark");
        let ours = filter_fn(|about| {
            let detail = if about.is_span() { Level::DEBUG } else { Level::INFO };
            about.target().starts_with("waymark") && *about.level() <= detail
        });
        Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours).boxed())
    }

    /// Exports the remaining spans.
    pub(super) fn finish(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "cannot deliver the last traces");
        }
    }
}

/// Runs a command that serves, with the log as [`logging::start`] writes it and with traces exported to the collector
/// that `serve` names. The remaining traces are exported when the command ends, even if it failed.
pub(super) async fn traced(
    filter: Option<&str>,
    quiet: &str,
    serve: &ServeArgs,
    command: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let log = logging::log(filter, quiet, serve.log_format).map_err(InvalidConfiguration::new)?;
    let traces = Traces::to(&serve.telemetry).map_err(InvalidConfiguration::new)?;
    let mut layers = vec![log];
    layers.extend(traces.layer());
    logging::install(layers)?;
    let ended = command.await;
    tokio::task::spawn_blocking(move || traces.finish()).await?;
    ended
}
