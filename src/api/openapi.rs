//! `/openapi.yaml`: this interface, described from its own code.

use std::fmt::Display;
use std::sync::LazyLock;

use axum::body::Bytes;
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

/// A text that is made of this program alone, once; or why it could not be.
type Text = LazyLock<Result<Bytes, String>>;

static YAML: Text = LazyLock::new(|| text(document_yaml()));

static JSON: Text = LazyLock::new(|| text(document().to_json()));

fn text(written: Result<String, impl Display>) -> Result<Bytes, String> {
    written.map(Bytes::from).map_err(|error| error.to_string())
}

/// This document as YAML.
#[utoipa::path(get, path = "/openapi.yaml", operation_id = "openapiYaml", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/yaml", body = serde_json::Value),
    (status = 500, description = "the document could not be written", body = ErrorBody),
))]
pub(crate) async fn yaml() -> Result<Response, ApiError> {
    answer(&YAML, "application/yaml")
}

/// This document as JSON.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapiJson", tag = "operation", responses(
    (status = 200, description = "the document", content_type = "application/json", body = serde_json::Value),
    (status = 500, description = "the document could not be written", body = ErrorBody),
))]
pub(crate) async fn json() -> Result<Response, ApiError> {
    answer(&JSON, "application/json")
}

fn answer(text: &Text, kind: &'static str) -> Result<Response, ApiError> {
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
