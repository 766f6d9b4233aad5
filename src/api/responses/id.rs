//! Extractor for the response ID in a path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Response ID in the path of a request. An ID that is not UTF-8 cannot belong to any response.
#[derive(Debug)]
pub(crate) struct ResponseId(pub(super) String);

impl FromRequestParts<AppState> for ResponseId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::new(Code::ResponseNotFound, error.body_text()))?;
        Ok(Self(id))
    }
}
