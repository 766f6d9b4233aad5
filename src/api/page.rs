//! Page size of list routes.

use super::error::ApiError;

/// Default number of entries per page.
pub(super) const PAGE: usize = 20;

/// Maximum number of entries per page.
const MAX_PAGE: usize = 100;

/// Parses the `limit` parameter: the number of entries per page.
pub(super) fn limit(given: &str) -> Result<usize, ApiError> {
    let limit = given.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid("limit", format!("`limit` must be from 1 to {MAX_PAGE}, not `{given}`")))
}
