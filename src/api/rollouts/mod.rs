//! `/v1/rollouts`: trajectories of a policy as token IDs with masks, log-probabilities and rewards, for trainers that
//! run elsewhere.
//!
//! `request`, `trajectory`: wire types · `plan`: validation · `play`: running episodes and scoring them · `stream`,
//! `whole`: the two kinds of responses.

mod plan;
mod play;
pub mod request;
mod stream;
pub mod trajectory;
mod whole;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::auth::Caller;
use super::body::JsonBody;
use super::error::{ApiError, Refusals};
use super::state::AppState;
use plan::RolloutPlan;
use request::RolloutRequest;
use trajectory::{RolloutBatch, RolloutEvent};

/// Plays questions with a policy and returns the trajectories.
///
/// Each question is answered `n` times in the loop that serves the policy. A trajectory has the IDs of its prompt and of
/// everything after it, a mask of the tokens that the policy wrote itself, and their log-probabilities. Unlike other
/// routes, this one is not guided and has no time limit of the policy, as in this project's own trainer.
///
/// With `stream: true` each trajectory is sent when it ends, as `event: trajectory`, and `event: finished` is the last.
/// The episodes of a client that closes its connection are canceled. `generation` names the build and the weights: a
/// trainer that loads a new adapter under another name (`POST /v1/policies`) can tell which one a batch was sampled
/// with.
#[utoipa::path(post, path = "/v1/rollouts", operation_id = "createRollouts", tag = "trainers", request_body = RolloutRequest, responses(
    (status = 200, description = "the trajectories", content(
        (RolloutBatch = "application/json"),
        (RolloutEvent = "text/event-stream"),
    )),
    Refusals,
))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<RolloutRequest>,
) -> Result<Response, ApiError> {
    let policy = state.policy_or_first(request.model.as_deref())?.policy.clone();
    let named = request.rag.as_ref().and_then(|rag| rag.rest.index.as_deref());
    let state = state.of_request(&caller, "rag.index", named, &policy)?;
    let plan = RolloutPlan::new(&state, &policy, request)?;
    // Each trajectory is a request of its own.
    caller.accounts.count_requests(plan.count() - 1)?;
    let streams = plan.streams;
    let episodes = play::start(&state, &caller, plan).await?;
    if streams {
        return Ok(stream::respond(&state, episodes));
    }
    Ok(axum::Json(whole::collect(&state, episodes).await?).into_response())
}
