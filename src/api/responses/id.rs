//! The id in the path of a request.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// The id in the path of a request. One that is no UTF-8 is nobody's.
#[derive(Debug)]
pub(crate) struct Id(pub(super) String);

impl FromRequestParts<AppState> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::new(Code::ResponseNotFound, error.body_text()))?;
        Ok(Self(id))
    }
}
