//! Extractor for the parameters in a path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::{ApiError, Code};
use super::state::AppState;

/// Parameters in the path of a request. A path that is not UTF-8 names nothing, and gets 404.
#[derive(Debug)]
pub(crate) struct PathParam<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for PathParam<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Path(params) = Path::<T>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::new(Code::NotFound, error.body_text()))?;
        Ok(PathParam(params))
    }
}
