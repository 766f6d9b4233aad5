//! `/v1/models`: the policies that are served, each as a model.

use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::state::{AppState, Served};

/// A policy as the OpenAI interface shows a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct Model {
    /// The name to use in `model`.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Always `waymark`.
    pub owned_by: &'static str,
    /// The base model. Not in OpenAI's interface.
    pub parent: String,
    /// How it thinks, searches and answers. Not in OpenAI's interface.
    pub protocol: String,
}

/// All policies.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The policies, in the order they were configured.
    pub data: Vec<Model>,
}

fn describe(state: &AppState, served: &Served) -> Model {
    Model {
        id: served.policy.name.clone(),
        object: "model",
        created: served.created,
        owned_by: "waymark",
        parent: state.runtime.engine.spec().name.clone(),
        protocol: served.policy.protocol.name().to_owned(),
    }
}

/// The policies that are served.
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", tag = "models", responses((status = 200, description = "the policies", body = ModelList)))]
pub(crate) async fn list(State(state): State<AppState>) -> axum::Json<ModelList> {
    let data = state.policies.iter().map(|served| describe(&state, served)).collect();
    axum::Json(ModelList { object: "list", data })
}

/// One policy. Its name may hold slashes, written as `/` or `%2F`.
#[utoipa::path(get, path = "/v1/models/{*id}", operation_id = "retrieveModel", tag = "models",
    params(("id" = String, Path, description = "the policy's name")),
    responses((status = 200, description = "the policy", body = Model), (status = 404, description = "no such policy", body = ErrorBody)))]
pub(crate) async fn get(State(state): State<AppState>, Path(id): Path<String>) -> Result<axum::Json<Model>, ApiError> {
    state.policies.get(&id).map(|served| axum::Json(describe(&state, served)))
}
