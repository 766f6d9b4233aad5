//! Who is told what requests take.

/// Who is told what requests take, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct TelemetryArgs {
    /// Address of an OpenTelemetry collector that takes traces over OTLP/HTTP, such as `http://127.0.0.1:4318`; without
    /// it none are made.
    #[arg(long, env = "WAYMARK_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}
