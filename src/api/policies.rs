//! `/v1/policies`: lists, loads, replaces and unloads policies while requests run.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::blocking::run_to_end;
use super::body::{JsonBody, WireRequest};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::path_param::PathParam;
use super::policy_registry::{LoadedPolicy, PolicyStore, ServedPolicy};
use super::records::not_stored;
use super::state::AppState;

/// Policy to load.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// Directory of the policy below the server's `--policy-root`. It holds `policy.toml` and possibly an adapter.
    pub directory: String,
}

impl WireRequest for LoadRequest {}

/// Served policy.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyResponse {
    /// Always `policy`.
    pub object: &'static str,
    /// Name to use in `model`.
    pub name: String,
    /// Name of the policy's protocol.
    pub protocol: String,
    /// If `true`, generation is guided unless a request says otherwise.
    pub guided: bool,
    /// ID of the loaded adapter, never reused. Null if the policy has no adapter.
    #[schema(required)]
    pub generation: Option<u64>,
    /// Directory below the server's `--policy-root`, if the policy was loaded from there at run time.
    #[schema(required)]
    pub directory: Option<String>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
}

/// List of all policies.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyList {
    /// Always `list`.
    pub object: &'static str,
    /// Policies in the order they were configured and loaded.
    pub data: Vec<PolicyResponse>,
}

/// Result of a change.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyChange {
    /// `policies.load` or `policies.unload`.
    pub object: &'static str,
    /// Loaded or unloaded policy.
    pub policy: PolicyResponse,
    /// If `true`, the policy replaced another one with the same name.
    pub replaced: bool,
}

impl From<&ServedPolicy> for PolicyResponse {
    fn from(served: &ServedPolicy) -> PolicyResponse {
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

/// Lists the served policies.
#[utoipa::path(get, path = "/v1/policies", operation_id = "listPolicies", tag = "policies",
    responses((status = 200, description = "the policies", body = PolicyList)))]
pub(crate) async fn list(State(state): State<AppState>) -> axum::Json<PolicyList> {
    let data = state.policies.all().iter().map(|served| served.as_ref().into()).collect();
    axum::Json(PolicyList { object: "list", data })
}

/// Loads a policy, and replaces the one with the same name if there is one.
///
/// Running requests continue with the old policy to their end, then its adapter is unloaded; new requests get the new
/// one. Cached computations of one adapter are never used with another.
#[utoipa::path(post, path = "/v1/policies", operation_id = "loadPolicy", tag = "policies", request_body = LoadRequest, responses(
    (status = 200, description = "the policy is served", body = PolicyChange),
    (status = 403, description = "the server runs without `--policy-root`", body = ErrorBody),
    Refusals,
))]
pub(crate) async fn load(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<LoadRequest>,
) -> Result<Response, ApiError> {
    let running = state.drain.enter();
    // A policy that is served is recorded as well, even if the client leaves.
    let loaded = run_to_end(async move {
        let _running = running;
        let engine = &state.runtime.engine;
        let base = &state.base;
        store(&state)?.load(&request.directory, &state.records, &state.policies, engine, base).await
    });
    let LoadedPolicy { served, replaced, recorded } = loaded.await?;
    let change = PolicyChange { object: "policies.load", policy: served.as_ref().into(), replaced };
    let response = axum::Json(change).into_response();
    Ok(match recorded {
        Ok(()) => response,
        Err(lost) => not_stored(response, lost),
    })
}

/// Unloads a policy. Running requests continue with it to their end. Slashes in its name may be written as `/` or
/// `%2F`.
#[utoipa::path(delete, path = "/v1/policies/{*name}", operation_id = "unloadPolicy", tag = "policies",
    params(("name" = String, Path, description = "name of the policy")),
    responses(
        (status = 200, description = "the policy is no longer served", body = PolicyChange),
        (status = 403, description = "the server runs without `--policy-root`", body = ErrorBody),
        (status = 404, description = "no such policy", body = ErrorBody),
        (status = 503, description = "the server's state cannot be written", body = ErrorBody),
    ))]
pub(crate) async fn unload(
    State(state): State<AppState>,
    PathParam(name): PathParam<String>,
) -> Result<axum::Json<PolicyChange>, ApiError> {
    let running = state.drain.enter();
    let unloaded = run_to_end(async move {
        let _running = running;
        store(&state)?.unload(&name, &state.records, &state.policies).await
    });
    let served = unloaded.await?;
    Ok(axum::Json(PolicyChange { object: "policies.unload", policy: served.as_ref().into(), replaced: false }))
}

fn store(state: &AppState) -> Result<&PolicyStore, ApiError> {
    let message = "the policies of this server are fixed: start it with `--policy-root`";
    state.store.as_deref().ok_or_else(|| ApiError::new(Code::FixedPolicies, message))
}
