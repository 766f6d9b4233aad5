//! Lists, a page at a time.

use super::error::ApiError;

/// Entries of a page when the request does not say.
pub(super) const PAGE: usize = 20;

/// Most entries of a page.
const LARGEST_PAGE: usize = 100;

/// The `limit` of a request: how many entries a page is to have.
pub(super) fn limit(given: &str) -> Result<usize, ApiError> {
    let limit = given.parse().ok().filter(|limit| (1..=LARGEST_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid("limit", format!("`limit` must be from 1 to {LARGEST_PAGE}")))
}
