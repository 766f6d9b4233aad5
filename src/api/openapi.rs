//! `/openapi.yaml`: this interface, described from its own code.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;

use super::error::{ApiError, Code, ErrorBody};

/// What stands above the paths.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Waymark",
        description = "An inference server for trained agentic RAG policies: OpenAI's chat interface over a streamed \
                       think, search and answer loop.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "inference", description = "Questions in, answers out"),
        (name = "retrieval", description = "Evidence without a model"),
        (name = "trainers", description = "The retrievers of the reference systems, for their trainers"),
        (name = "documents", description = "What the index holds, and changing it"),
        (name = "traces", description = "What was written down about episodes, and running them again"),
        (name = "models", description = "What is served"),
        (name = "policies", description = "Loading and unloading what is served"),
        (name = "operation", description = "Health, metrics, and this document"),
    ),
)]
pub(crate) struct Head;

/// The whole document.
pub fn document() -> utoipa::openapi::OpenApi {
    let (_, _, mut document) = super::routes().split();
    // axum writes a tail that may hold slashes as `{*id}`, OpenAPI has only `{id}`.
    document.paths.paths = std::mem::take(&mut document.paths.paths)
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    document
}

/// The whole document as YAML: what `openapi.yaml` in the repository holds.
///
/// # Errors
/// When the document cannot be written, which only a broken schema could cause.
pub fn document_yaml() -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    Ok(document().to_yaml()?)
}

/// This document as YAML.
#[utoipa::path(get, path = "/openapi.yaml", operation_id = "openapiYaml", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/yaml", body = serde_json::Value),
    (status = 500, description = "the document could not be written", body = ErrorBody),
))]
pub(crate) async fn yaml() -> Result<Response, ApiError> {
    let text = document_yaml().map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/yaml")], text).into_response())
}

/// This document as JSON.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapiJson", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/json", body = serde_json::Value),
))]
pub(crate) async fn json() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}
