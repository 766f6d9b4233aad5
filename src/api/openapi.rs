//! `/openapi.yaml`: the OpenAPI description of this interface, generated from its code.

use std::fmt::Display;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;

use super::error::{ApiError, Code, ErrorBody};

/// Title, description and tags of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Waymark",
        description = "An inference server for trained agentic RAG policies: OpenAI's chat interface over a streamed \
                       think, search and answer loop.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "inference", description = "Generation of answers"),
        (name = "retrieval", description = "Evidence without a model"),
        (name = "trainers", description = "Trajectories and retrieval for trainers that run elsewhere"),
        (name = "documents", description = "Reading and changing the documents of the index"),
        (name = "index", description = "Looking around in the index: its size, its graph, its passages"),
        (name = "traces", description = "Traces of episodes, and replaying them"),
        (name = "models", description = "The served models"),
        (name = "policies", description = "Loading and unloading policies"),
        (name = "operation", description = "Health, metrics, and this document"),
    ),
)]
pub(crate) struct ApiDoc;

/// Returns the OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    let (_, _, mut document) = super::routes().split();
    // axum writes a path parameter that may hold slashes as `{*id}`; OpenAPI only has `{id}`.
    document.paths.paths = std::mem::take(&mut document.paths.paths)
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    document
}

/// Returns the OpenAPI document as YAML: the content of `openapi.yaml` in the repository.
///
/// # Errors
/// If the document cannot be serialized, which only a bug could cause.
pub fn document_yaml() -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    Ok(document().to_yaml()?)
}

/// Serialized document, built once, or the error that prevented it.
type CachedText = LazyLock<Result<Bytes, String>>;

// The document does not change at run time, so it is serialized once.
static YAML: CachedText = LazyLock::new(|| text(document_yaml()));

static JSON: CachedText = LazyLock::new(|| text(document().to_json()));

fn text(written: Result<String, impl Display>) -> Result<Bytes, String> {
    written.map(Bytes::from).map_err(|error| error.to_string())
}

/// Returns this document as YAML.
#[utoipa::path(get, path = "/openapi.yaml", operation_id = "openapiYaml", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/yaml", body = serde_json::Value),
    (status = 500, description = "the document could not be written", body = ErrorBody),
))]
pub(crate) async fn yaml() -> Result<Response, ApiError> {
    answer(&YAML, "application/yaml")
}

/// Returns this document as JSON.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapiJson", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/json", body = serde_json::Value),
    (status = 500, description = "the document could not be written", body = ErrorBody),
))]
pub(crate) async fn json() -> Result<Response, ApiError> {
    answer(&JSON, "application/json")
}

fn answer(text: &CachedText, kind: &'static str) -> Result<Response, ApiError> {
    match &**text {
        Ok(text) => Ok(([(header::CONTENT_TYPE, kind)], text.clone()).into_response()),
        Err(error) => Err(ApiError::new(Code::Internal, error.clone())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn each_text_is_made_once() {
        for [first, second] in [[yaml().await, yaml().await], [json().await, json().await]] {
            let first = to_bytes(first.unwrap().into_body(), usize::MAX).await.unwrap();
            let second = to_bytes(second.unwrap().into_body(), usize::MAX).await.unwrap();
            assert_eq!(first.as_ptr(), second.as_ptr());
        }
    }
}
