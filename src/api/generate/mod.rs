//! `/inference/v1/generate`: token IDs in and out, in vLLM's format. A loop in another process runs over this engine
//! with it.
//!
//! `request`, `response`: wire types · `plan`: validation · `turn`: the generation · `parked_sessions`: sequences that
//! wait for their next turn · `stream`, `whole`: the two kinds of responses.

mod parked_sessions;
mod plan;
pub mod request;
pub mod response;
mod stream;
mod turn;
mod whole;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::JsonBody;
use super::error::{ApiError, Refusals};
use super::state::AppState;
pub(crate) use parked_sessions::ParkedSessions;
use plan::GeneratePlan;
use request::GenerateRequest;
use response::{GenerateResponse, GenerateStreamItem};

/// Samples tokens after a token sequence.
///
/// Requests and responses are those of vLLM's route with the same name, as far as the schema lists them. The server adds
/// nothing to the sequence and searches nothing. A request with the header `X-Session-ID` leaves its sequence parked for
/// a minute: the next request with the same header whose sequence continues it computes only what is new.
#[utoipa::path(post, path = "/inference/v1/generate", operation_id = "generateTokens", tag = "inference",
    params(("X-Session-ID" = Option<String>, Header, description = "name of a session, up to 128 visible ASCII characters; other API keys cannot reach it")),
    request_body = GenerateRequest, responses(
    (status = 200, description = "the tokens", content(
        (GenerateResponse = "application/json"),
        (GenerateStreamItem = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<GenerateRequest>,
) -> Result<Response, ApiError> {
    let plan = GeneratePlan::new(&state, &caller, &headers, request)?;
    let (shown, pieces) = turn::begin(&state, &caller, plan).await?;
    if shown.streams {
        return Ok(stream::respond(&state, shown, pieces));
    }
    Ok(axum::Json(whole::collect(shown, pieces).await?).into_response())
}
