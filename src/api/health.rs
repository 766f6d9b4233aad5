//! `/health`, `/ready` and `/metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::drain::Phase;
use super::error::{ApiError, Code, ErrorBody};
use super::metrics;
use super::state::AppState;
use crate::engine::Health;

/// A good state in one word.
#[derive(Debug, Serialize, ToSchema)]
pub struct Status {
    /// `ok` or `ready`.
    pub status: &'static str,
}

/// Whether the process answers.
///
/// Says nothing about the model: see `/ready`.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "operation", responses((status = 200, description = "it does", body = Status)))]
pub(crate) async fn health() -> axum::Json<Status> {
    axum::Json(Status { status: "ok" })
}

/// Whether new work is taken.
///
/// Red while the server shuts down and after the engine has died.
#[utoipa::path(get, path = "/ready", tag = "operation", responses(
    (status = 200, description = "it is", body = Status),
    (status = 503, description = "draining, or the engine is dead", body = ErrorBody),
))]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<axum::Json<Status>, ApiError> {
    if state.drain.phase() != Phase::Serving {
        return Err(ApiError::new(Code::Draining, "the server is shutting down"));
    }
    match state.runtime.engine.health() {
        Health::Ready => Ok(axum::Json(Status { status: "ready" })),
        Health::Dead { reason } => Err(ApiError::new(Code::EngineUnavailable, format!("the engine is dead: {reason}"))),
    }
}

/// Counters, gauges and histograms, in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses(
    (status = 200, description = "the metrics", content_type = "application/openmetrics-text", body = String),
    (status = 500, description = "the metrics could not be written", body = ErrorBody),
))]
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    let text = state.metrics.render().map_err(|_| ApiError::new(Code::Internal, "the metrics could not be written"))?;
    Ok(([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response())
}
