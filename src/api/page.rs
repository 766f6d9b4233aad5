//! Pages of list routes.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::error::ApiError;
use crate::store::RecordOrder;

/// Default number of entries per page.
pub(super) const PAGE: usize = 20;

/// Maximum number of entries per page.
const MAX_PAGE: usize = 100;

/// Parses the `limit` parameter: the number of entries per page.
pub(super) fn limit(given: &str) -> Result<usize, ApiError> {
    let limit = given.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid("limit", format!("`limit` must be from 1 to {MAX_PAGE}, not `{given}`")))
}

/// Query of a list that continues after an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CursorQuery {
    pub(super) limit: usize,
    pub(super) order: RecordOrder,
    /// ID of the entry after which the page begins. `None` begins at the first one.
    pub(super) after: Option<String>,
}

impl CursorQuery {
    /// Parses the query. Youngest entries come first unless it says otherwise.
    pub(super) fn parse(query: &str) -> Result<CursorQuery, ApiError> {
        let mut page = CursorQuery { limit: PAGE, order: RecordOrder::Descending, after: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("limit", value) => page.limit = limit(value)?,
                ("after", value) => page.after = Some(value.to_owned()),
                ("order", "asc") => page.order = RecordOrder::Ascending,
                ("order", "desc") => page.order = RecordOrder::Descending,
                ("order", other) => {
                    return Err(ApiError::invalid("order", format!("`order` must be `asc` or `desc`, not `{other}`")));
                }
                (name, _) => return Err(ApiError::unknown(name)),
            }
        }
        Ok(page)
    }
}

/// Page of items of a conversation or a response.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemList {
    /// Always `list`.
    pub object: &'static str,
    /// The items.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Value>,
    /// ID of the first item. Null if there are none.
    #[schema(required)]
    pub first_id: Option<String>,
    /// ID of the last item. Null if there are none.
    #[schema(required)]
    pub last_id: Option<String>,
    /// If `true`, there are further items.
    pub has_more: bool,
}

impl ItemList {
    /// Creates a page of `data`, which holds one item beyond `limit` if there are more.
    pub(super) fn new(mut data: Vec<Value>, limit: usize) -> ItemList {
        let has_more = data.len() > limit;
        data.truncate(limit);
        let id = |item: &Value| item["id"].as_str().map(str::to_owned);
        let first_id = data.first().and_then(id);
        let last_id = data.last().and_then(id);
        ItemList { object: "list", data, first_id, last_id, has_more }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn queries_are_read_or_refused_by_name() {
        let all = CursorQuery::parse("limit=5&order=asc&after=a%20b").unwrap();
        assert_eq!(all, CursorQuery { limit: 5, order: RecordOrder::Ascending, after: Some("a b".into()) });
        for (query, param) in [("limit=0", "limit"), ("order=up", "order"), ("before=a", "before")] {
            assert_eq!(CursorQuery::parse(query).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
