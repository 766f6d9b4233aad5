//! `GET /v1/responses/{id}/input_items`.

use axum::extract::{RawQuery, State};
use serde_json::Value;

use super::show::Show;
use super::store::FoundResponse;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::pagination::{CursorQuery, ItemList, PageRules, is_include};
use crate::api::path_param::PathParam;
use crate::api::state::AppState;
use crate::store::RecordOrder;

/// Lists the input of a stored response, without the messages of the responses that it continues.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", operation_id = "listInputItems", tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the response"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of items; defaults to 20"),
        ("order" = Option<String>, Query, description = "`asc`, or `desc` (the default): last item first"),
        ("after" = Option<String>, Query, description = "ID of the item after which the page begins"),
        ("include" = Option<Vec<String>>, Query, description = "optional parts, of which those that the input has are always listed"),
    ),
    responses(
        (status = 200, description = "the items", body = ItemList),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such response", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<ItemList>, ApiError> {
    let mut include = Vec::new();
    let page = CursorQuery::parse(query.as_deref().unwrap_or_default(), PageRules::COMMON, |name, value| {
        let is_include = is_include(name);
        if is_include {
            include.push(value.to_owned());
        }
        Ok(is_include)
    })?;
    // Items are listed as they were sent, so known parts need nothing more.
    Show::read(&include)?;
    let items = match state.responses.get(&id, &caller).await? {
        FoundResponse::Running(entry) => entry.input.clone(),
        FoundResponse::Stored(stored) => stored.input,
    };
    Ok(axum::Json(ItemList::new(select(items, &page)?, page.limit)))
}

/// Returns the items of a page, and one more if there is one.
fn select(mut items: Vec<Value>, page: &CursorQuery) -> Result<Vec<Value>, ApiError> {
    if page.order == RecordOrder::Descending {
        items.reverse();
    }
    let skip = match &page.after {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| item["id"] == after.as_str());
            at.ok_or_else(|| ApiError::invalid("after", format!("there is no item `{after}`")))? + 1
        }
    };
    Ok(items.into_iter().skip(skip).take(page.limit + 1).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_continue_after_an_item() {
        let page = |query: &str| CursorQuery::parse(query, PageRules::COMMON, |_, _| Ok(false)).unwrap();
        let ids = |query: &str| -> Vec<Value> {
            let items = ["a", "b", "c"].map(|id| json!({"id": id})).to_vec();
            select(items, &page(query)).unwrap().into_iter().map(|item| item["id"].clone()).collect()
        };
        assert_eq!(ids("order=asc&limit=1"), ["a", "b"]);
        assert_eq!(ids("order=asc&after=b"), ["c"]);
        assert_eq!(ids("after=b"), ["a"]);
        assert!(select(Vec::new(), &page("after=x")).is_err());
    }
}
