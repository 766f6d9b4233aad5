//! Flags for traces over OpenTelemetry.

use std::path::PathBuf;

/// Flags for traces over OpenTelemetry.
#[derive(Debug, Clone, clap::Args)]
pub struct TelemetryArgs {
    /// Address of an OpenTelemetry collector that accepts traces over OTLP/HTTP, such as `http://127.0.0.1:4318` or
    /// `https://collector:4318`. Without it no traces are exported.
    #[arg(long, env = "WAYMARK_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// File of CA certificates (PEM) to trust instead of the public ones when the collector uses HTTPS.
    #[arg(long, env = "WAYMARK_OTLP_CA", value_name = "FILE")]
    pub otlp_ca: Option<PathBuf>,
}
