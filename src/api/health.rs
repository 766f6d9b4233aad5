//! `/health`, `/ready` and `/metrics`.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use waymark_engine::Health;

use super::drain::DrainPhase;
use super::error::{ApiError, Code, ErrorBody};
use super::metrics::MetricsFormat;
use super::state::AppState;

/// Healthy state in one word.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Status)]
pub struct HealthStatus {
    /// `ok` or `ready`.
    pub status: &'static str,
}

/// Checks that the process responds.
///
/// Says nothing about the engine; see `/ready`.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "operation", responses((status = 200, description = "the process responds", body = HealthStatus)))]
pub(crate) async fn health() -> axum::Json<HealthStatus> {
    axum::Json(HealthStatus { status: "ok" })
}

/// Checks that the server accepts new work.
///
/// Fails while the server shuts down, after the engine has died, and while a file of the index is damaged.
#[utoipa::path(get, path = "/ready", tag = "operation", responses(
    (status = 200, description = "the server accepts work", body = HealthStatus),
    (status = 503, description = "the server is draining, the engine has died, or the index is damaged", body = ErrorBody),
))]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<axum::Json<HealthStatus>, ApiError> {
    if state.drain.phase() != DrainPhase::Serving {
        return Err(ApiError::new(Code::Draining, "the server is shutting down"));
    }
    for view in state.views() {
        if let Some(damage) = view.library.as_ref().and_then(|library| library.live.damage()) {
            let name = view.index.as_deref().unwrap_or("index");
            return Err(ApiError::new(Code::IndexDamaged, format!("the index `{name}` is damaged: {damage}")));
        }
    }
    match state.runtime.engine.health() {
        Health::Ready => Ok(axum::Json(HealthStatus { status: "ready" })),
        Health::Dead { reason } => Err(ApiError::new(Code::EngineUnavailable, format!("the engine is dead: {reason}"))),
    }
}

/// Version of the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerVersion {
    /// Version of Waymark, such as `0.1.0`.
    pub version: &'static str,
}

/// Returns the version of the server. Clients of vLLM ask for it.
#[utoipa::path(get, path = "/version", tag = "operation", responses((status = 200, description = "the version", body = ServerVersion)))]
pub(crate) async fn version() -> axum::Json<ServerVersion> {
    axum::Json(ServerVersion { version: env!("CARGO_PKG_VERSION") })
}

/// Responds with an empty body while the process lives. Load balancers of SageMaker and clients of vLLM ask for it.
#[utoipa::path(get, path = "/ping", operation_id = "ping", tag = "operation", responses((status = 200, description = "the process responds")))]
pub(crate) async fn ping() {}

/// Returns counters, gauges and histograms.
///
/// The text format is OpenMetrics 1.0 if the client prefers that by name, and Prometheus's text format 0.0.4 otherwise.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses(
    (status = 200, description = "the metrics", content((String = "text/plain"), (String = "application/openmetrics-text"))),
    (status = 500, description = "the metrics could not be written", body = ErrorBody),
))]
pub(crate) async fn metrics(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    let format = MetricsFormat::negotiate(&headers);
    let text =
        state.metrics.render(format).map_err(|_| ApiError::new(Code::Internal, "the metrics could not be written"))?;
    Ok(([(header::CONTENT_TYPE, format.media_type()), (header::VARY, "accept")], text).into_response())
}
