//! `/v1/policies`: what is served, and loading, replacing and unloading it while requests run.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Json, Wire};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::shelf::{PolicyStore, Served};
use super::state::AppState;

/// Which policy to load.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// Its folder below the server's `--policy-root`, with `policy.toml` and maybe an adapter in it.
    pub directory: String,
}

impl Wire for LoadRequest {}

/// A policy that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyResponse {
    /// Always `policy`.
    pub object: &'static str,
    /// The name to use in `model`.
    pub name: String,
    /// How it thinks, searches and answers.
    pub protocol: String,
    /// Whether generation is guided where a request does not say.
    pub guided: bool,
    /// Names its adapter as loaded, and is never used again; none for a policy of the bare base model.
    #[schema(required)]
    pub generation: Option<u64>,
    /// Its folder below the server's `--policy-root`, if it was loaded from there while serving.
    #[schema(required)]
    pub directory: Option<String>,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

/// All policies.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyList {
    /// Always `list`.
    pub object: &'static str,
    /// The policies in the order they were configured and loaded.
    pub data: Vec<PolicyResponse>,
}

/// What a change did.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyChange {
    /// `policies.load` or `policies.unload`.
    pub object: &'static str,
    /// The policy.
    pub policy: PolicyResponse,
    /// Whether it took the place of another of its name.
    pub replaced: bool,
}

impl From<&Served> for PolicyResponse {
    fn from(served: &Served) -> PolicyResponse {
        let policy = &served.policy;
        PolicyResponse {
            object: "policy",
            name: policy.name.clone(),
            protocol: policy.protocol.name().to_owned(),
            guided: policy.guided,
            generation: policy.adapter().map(|adapter| adapter.generation),
            directory: served.directory.clone(),
            created: served.created,
        }
    }
}

/// The policies that are served.
#[utoipa::path(get, path = "/v1/policies", operation_id = "listPolicies", tag = "policies",
    responses((status = 200, description = "the policies", body = PolicyList)))]
pub(crate) async fn list(State(state): State<AppState>) -> axum::Json<PolicyList> {
    let data = state.policies.all().iter().map(|served| served.as_ref().into()).collect();
    axum::Json(PolicyList { object: "list", data })
}

/// Loads a policy and serves it, in the place of the one with its name if there is one.
///
/// Requests that run with the old one go on with it to their end, then its adapter is unloaded; those that come from now
/// on get the new one. What was computed with one adapter is never used with another.
#[utoipa::path(post, path = "/v1/policies", operation_id = "loadPolicy", tag = "policies", request_body = LoadRequest, responses(
    (status = 200, description = "it is served", body = PolicyChange),
    (status = 403, description = "the server runs without `--policy-root`", body = ErrorBody),
    Refusals,
))]
pub(crate) async fn load(
    State(state): State<AppState>,
    Json(request): Json<LoadRequest>,
) -> Result<axum::Json<PolicyChange>, ApiError> {
    let (engine, base) = (&state.runtime.engine, &state.base);
    let (served, replaced) = store(&state)?.load(&request.directory, &state.policies, engine, base).await?;
    Ok(axum::Json(PolicyChange { object: "policies.load", policy: served.as_ref().into(), replaced }))
}

/// Serves a policy no longer. Requests that run with it go on to their end. Its name may hold slashes, written as `/` or
/// `%2F`.
#[utoipa::path(delete, path = "/v1/policies/{*name}", operation_id = "unloadPolicy", tag = "policies",
    params(("name" = String, Path, description = "the policy's name")),
    responses(
        (status = 200, description = "it is not served any more", body = PolicyChange),
        (status = 403, description = "the server runs without `--policy-root`", body = ErrorBody),
        (status = 404, description = "no such policy", body = ErrorBody),
    ))]
pub(crate) async fn unload(
    State(state): State<AppState>,
    name: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<PolicyChange>, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::new(Code::ModelNotFound, error.body_text()))?;
    let served = store(&state)?.unload(&name, &state.policies).await?;
    Ok(axum::Json(PolicyChange { object: "policies.unload", policy: served.as_ref().into(), replaced: false }))
}

fn store(state: &AppState) -> Result<&PolicyStore, ApiError> {
    let message = "the policies of this server are fixed: start it with `--policy-root`";
    state.store.as_deref().ok_or_else(|| ApiError::new(Code::FixedPolicies, message))
}
