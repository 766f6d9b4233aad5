//! Flags for traces over OpenTelemetry.

/// Flags for traces over OpenTelemetry.
#[derive(Debug, Clone, clap::Args)]
pub struct TelemetryArgs {
    /// Address of an OpenTelemetry collector that accepts traces over OTLP/HTTP, such as `http://127.0.0.1:4318`.
    /// Without it no traces are exported.
    #[arg(long, env = "WAYMARK_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}
