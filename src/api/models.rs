//! `/v1/models`: the served policies, each as a model, the embedder and the reranker.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::{LoadedBase, WeightsSummary};
use waymark_index::Rerank;

use super::auth::Caller;
use super::error::{ApiError, Code, ErrorBody};
use super::path_param::PathParam;
use super::state::AppState;

/// Policy, embedder or reranker, as a model of the OpenAI interface.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
pub struct ServedModel {
    /// Name to use in `model`.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Always `waymark`.
    pub owned_by: &'static str,
    /// Base model, or ID of the embedder's or reranker's weights. Not in OpenAI's interface.
    pub parent: String,
    /// Weights of the base model. Absent for the embedder, the reranker and the mock. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<ServedWeights>,
    /// Name of the policy's protocol; `embedding` for the embedder, `rerank` for the reranker. Not in OpenAI's interface.
    pub protocol: String,
    /// Name of the index that the policy itself names, for requests that name none. Absent if the policy names none, or
    /// one that the key may not use. Not in OpenAI's interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
}

/// Weights that answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServedWeights {
    /// Names of the files.
    pub files: Vec<String>,
    /// Number of parameters.
    pub parameters: u64,
    /// Hash of the files, as `base_id` in a `policy.toml` has it.
    pub id: String,
}

/// List of all models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// Policies in the order they were configured, then the embedder and the reranker.
    pub data: Vec<ServedModel>,
}

fn weights(base: &LoadedBase) -> Option<ServedWeights> {
    let WeightsSummary { files, parameters } = base.weights.clone()?;
    Some(ServedWeights { files, parameters, id: base.id.clone()? })
}

/// Returns the policies as `caller` sees them, then the embedder and the reranker.
fn models<'a>(state: &'a AppState, caller: &'a Caller) -> impl Iterator<Item = ServedModel> + 'a {
    let policies = state.policies.all().into_iter().map(move |served| ServedModel {
        id: served.policy.name.clone(),
        object: "model",
        created: served.created,
        owned_by: "waymark",
        parent: state.runtime.engine.spec().name.clone(),
        weights: weights(&state.base),
        protocol: served.policy.protocol.name().to_owned(),
        // Keys do not learn the names of indexes that they may not use.
        index: served.policy.index.clone().filter(|own| !state.refuses(caller, own)),
    });
    let embedder = state.embedder.as_deref().map(|served| ServedModel {
        id: served.name.clone(),
        object: "model",
        created: served.created,
        owned_by: "waymark",
        parent: served.embedder.id().to_owned(),
        weights: None,
        protocol: "embedding".to_owned(),
        index: None,
    });
    let reranker = state.reranker.as_deref().map(|served| ServedModel {
        id: served.name.clone(),
        object: "model",
        created: served.created,
        owned_by: "waymark",
        parent: served.reranker.id().to_owned(),
        weights: None,
        protocol: "rerank".to_owned(),
        index: None,
    });
    policies.chain(embedder).chain(reranker)
}

/// Lists the served policies, the embedder and the reranker.
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", tag = "models",
    responses((status = 200, description = "the models", body = ModelList)))]
pub(crate) async fn list(State(state): State<AppState>, caller: Caller) -> axum::Json<ModelList> {
    axum::Json(ModelList { object: "list", data: models(&state, &caller).collect() })
}

/// Returns one model. Slashes in its name may be written as `/` or `%2F`.
#[utoipa::path(get, path = "/v1/models/{*id}", operation_id = "retrieveModel", tag = "models",
    params(("id" = String, Path, description = "name of the model")),
    responses(
        (status = 200, description = "the model", body = ServedModel),
        (status = 404, description = "no such model", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<ServedModel>, ApiError> {
    let known = models(&state, &caller).find(|model| model.id == id);
    known.map(axum::Json).ok_or_else(|| {
        ApiError::new(Code::ModelNotFound, format!("the model `{id}` does not exist")).with_param("model")
    })
}
