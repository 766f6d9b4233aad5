//! `/v1/conversations/{id}/items`.

use axum::extract::{RawQuery, State};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::record::{ConversationObject, checked_items};
use super::{READ_AT_ONCE, absent, find, key};
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest};
use crate::api::error::{ApiError, Code, ErrorBody, Refusals};
use crate::api::pagination::{CursorQuery, ItemList, PageRules, is_include};
use crate::api::path_param::PathParam;
use crate::api::state::AppState;
use crate::store::{RecordKey, RecordKind, RecordRange};

/// Maximum size of a page, in bytes. A page has at least one item, however large.
const PAGE_BYTES: usize = 8 << 20;

/// Items to add to a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateConversationItems)]
pub struct ItemsRequest {
    /// Up to 20 messages, and items of responses. Each gets a new ID.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<Value>,
}

impl WireRequest for ItemsRequest {}

/// Lists the items of a conversation, last one first unless `order=asc`.
#[utoipa::path(get, path = "/v1/conversations/{id}/items", operation_id = "listConversationItems", tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the conversation"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 100, description = "maximum number of items; defaults to 20"),
        ("order" = Option<String>, Query, description = "`asc`, or `desc` (the default): last item first"),
        ("after" = Option<String>, Query, description = "ID of the item after which the page begins"),
    ),
    responses(
        (status = 200, description = "the items", body = ItemList),
        (status = 400, description = "a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such conversation", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<ItemList>, ApiError> {
    let page = CursorQuery::parse(query.as_deref().unwrap_or_default(), PageRules::COMMON, own_parameter)?;
    // An unknown conversation gets 404 instead of an empty list.
    let (id, _) = find(&state, &caller, id).await?;
    let after = match &page.after {
        None => None,
        Some(after) => {
            let unknown = || ApiError::invalid("after", format!("there is no item `{after}`"));
            let record = state.records.find(&item_key(&caller, &id, after)).await?;
            Some(record.ok_or_else(unknown)?.position)
        }
    };
    let mut range = RecordRange {
        kind: RecordKind::ConversationItem,
        owner: caller.owner,
        parent: id,
        order: page.order,
        after,
        limit: READ_AT_ONCE.min(page.limit + 1),
    };
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut limit = page.limit;
    // One more than the limit is read, to find out whether there are more.
    while items.len() <= limit {
        let read = state.records.list::<Value>(&range).await?;
        let is_last = read.len() < range.limit;
        range.after = read.last().map(|item| item.position);
        for item in read {
            bytes += item.value.to_string().len();
            items.push(item.value);
            // The last item read then stands for "there are more".
            if bytes > PAGE_BYTES && items.len() > 1 {
                limit = limit.min(items.len() - 1);
            }
        }
        if is_last {
            break;
        }
    }
    Ok(axum::Json(ItemList::new(items, limit)))
}

/// Adds items to a conversation, after those it has.
#[utoipa::path(post, path = "/v1/conversations/{id}/items", operation_id = "createConversationItems", tag = "inference",
    params(("id" = String, Path, description = "ID of the conversation")),
    request_body = ItemsRequest,
    responses((status = 200, description = "the added items", body = ItemList), Refusals))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
    JsonBody(request): JsonBody<ItemsRequest>,
) -> Result<axum::Json<ItemList>, ApiError> {
    check_query(query.as_deref().unwrap_or_default())?;
    let items = checked_items(request.items)?;
    let data: Vec<Value> = items.iter().map(|(_, item)| item.clone()).collect();
    if !state.records.append(&key(&caller, &id), items).await? {
        return Err(absent(&id));
    }
    let count = data.len();
    Ok(axum::Json(ItemList::new(data, count)))
}

/// Returns an item of a conversation.
#[utoipa::path(get, path = "/v1/conversations/{id}/items/{item}", operation_id = "getConversationItem", tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the conversation"),
        ("item" = String, Path, description = "ID of the item"),
    ),
    responses(
        (status = 200, description = "the item", body = Object),
        (status = 400, description = "a parameter is not supported", body = ErrorBody),
        (status = 404, description = "no such item", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam((id, item)): PathParam<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<Value>, ApiError> {
    check_query(query.as_deref().unwrap_or_default())?;
    let found = state.records.get::<Value>(&item_key(&caller, &id, &item)).await?;
    found.map(axum::Json).ok_or_else(|| absent_item(&id, &item))
}

/// Deletes an item of a conversation. Returns the conversation.
#[utoipa::path(delete, path = "/v1/conversations/{id}/items/{item}", operation_id = "deleteConversationItem",
    tag = "inference",
    params(
        ("id" = String, Path, description = "ID of the conversation"),
        ("item" = String, Path, description = "ID of the item"),
    ),
    responses(
        (status = 200, description = "the conversation", body = ConversationObject),
        (status = 404, description = "no such item", body = ErrorBody),
        (status = 503, description = "the server's state cannot be written", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam((id, item)): PathParam<(String, String)>,
) -> Result<axum::Json<ConversationObject>, ApiError> {
    let (id, record) = find(&state, &caller, id).await?;
    if !state.records.remove(&item_key(&caller, &id, &item)).await? {
        return Err(absent_item(&id, &item));
    }
    Ok(axum::Json(ConversationObject::new(id, record)))
}

/// Refuses the parameters of a query.
fn check_query(query: &str) -> Result<(), ApiError> {
    match form_urlencoded::parse(query.as_bytes()).next() {
        None => Ok(()),
        Some((name, value)) => own_parameter(&name, &value).and_then(|_| Err(ApiError::unknown(&name))),
    }
}

/// Refuses `include`, which OpenAI's interface has. Returns `false` for all other parameters.
fn own_parameter(name: &str, _: &str) -> Result<bool, ApiError> {
    if is_include(name) { Err(ApiError::unimplemented("include")) } else { Ok(false) }
}

fn item_key(caller: &Caller, conversation: &str, item: &str) -> RecordKey {
    RecordKey {
        kind: RecordKind::ConversationItem,
        owner: caller.owner,
        parent: conversation.to_owned(),
        id: item.to_owned(),
    }
}

fn absent_item(conversation: &str, item: &str) -> ApiError {
    let message = format!("the conversation `{conversation}` has no item `{item}`");
    ApiError::new(Code::ConversationNotFound, message).with_param("item")
}
