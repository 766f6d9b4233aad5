//! `/v1/conversations`: conversations that responses continue and add their items to.
//!
//! | file | content |
//! |---|---|
//! | `record` | conversations and items as they are stored |
//! | `items` | the routes of the items of a conversation |

pub mod items;
pub mod record;

use std::collections::BTreeMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use self::record::{ConversationObject, ConversationRecord, checked_items};
use super::auth::Caller;
use super::body::{JsonBody, WireRequest};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::metadata::check_metadata;
use super::path_param::PathParam;
use super::responses::chat_history::ChatHistory;
use super::responses::parsed_item::ParsedItem;
use super::state::{AppState, now};
use super::unknown_id;
use crate::store::{RecordKey, RecordKind, RecordOrder, RecordRange};

/// Maximum number of items that a response continues, of its conversation or of a chain of responses.
pub(super) const MAX_ITEMS: usize = 1000;

/// Maximum size of the texts of these items, in bytes.
pub(super) const MAX_TEXT: usize = 16 << 20;

/// Number of items that are read at once. Each may be as large as a request.
const READ_AT_ONCE: usize = 20;

/// New conversation. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateConversation)]
pub struct ConversationRequest {
    /// Up to 20 items to begin with.
    #[schema(value_type = Option<Vec<Object>>)]
    pub items: Option<Vec<Value>>,
    /// Up to 16 pairs that are returned with the conversation: names of at most 64 characters, values of at most 512.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl WireRequest for ConversationRequest {}

/// Change of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateConversation)]
pub struct ConversationUpdate {
    /// Pairs that replace the old ones. `null` removes all pairs.
    // Without a function of its own, serde would take a missing field for `null`.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required)]
    pub metadata: Option<BTreeMap<String, String>>,
}

impl WireRequest for ConversationUpdate {}

/// Deleted conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConversationDeleted {
    /// ID of the conversation.
    pub id: String,
    /// Always `conversation.deleted`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

/// Creates a conversation.
///
/// A response continues it with `conversation`, and adds its own input and output.
#[utoipa::path(post, path = "/v1/conversations", operation_id = "createConversation", tag = "inference",
    request_body = ConversationRequest,
    responses((status = 200, description = "the conversation", body = ConversationObject), Refusals))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<ConversationRequest>,
) -> Result<axum::Json<ConversationObject>, ApiError> {
    check_metadata(request.metadata.as_ref())?;
    let items = checked_items(request.items.unwrap_or_default())?;
    let id = format!("conv_{}", Uuid::now_v7().simple());
    let record = ConversationRecord { created_at: now(), metadata: request.metadata.unwrap_or_default() };
    // In one write, so no response continues a conversation without its first items.
    state.records.put_with(key(&caller, &id), record.clone(), items).await?;
    Ok(axum::Json(ConversationObject::new(id, record)))
}

/// Returns a conversation without its items.
#[utoipa::path(get, path = "/v1/conversations/{id}", operation_id = "getConversation", tag = "inference",
    params(("id" = String, Path, description = "ID of the conversation")),
    responses(
        (status = 200, description = "the conversation", body = ConversationObject),
        (status = 404, description = "no such conversation", body = ErrorBody),
        (status = 503, description = "the server's state cannot be read", body = ErrorBody),
    ))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<ConversationObject>, ApiError> {
    let (id, record) = find(&state, &caller, id).await?;
    Ok(axum::Json(ConversationObject::new(id, record)))
}

/// Replaces the metadata of a conversation.
#[utoipa::path(post, path = "/v1/conversations/{id}", operation_id = "updateConversation", tag = "inference",
    params(("id" = String, Path, description = "ID of the conversation")),
    request_body = ConversationUpdate,
    responses((status = 200, description = "the conversation", body = ConversationObject), Refusals))]
pub(crate) async fn update(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
    JsonBody(request): JsonBody<ConversationUpdate>,
) -> Result<axum::Json<ConversationObject>, ApiError> {
    check_metadata(request.metadata.as_ref())?;
    let (id, mut record) = find(&state, &caller, id).await?;
    record.metadata = request.metadata.unwrap_or_default();
    // The conversation may have been deleted since it was read.
    if !state.records.update(&key(&caller, &id), record.clone()).await? {
        return Err(absent(&id));
    }
    Ok(axum::Json(ConversationObject::new(id, record)))
}

/// Deletes a conversation and its items. Responses that continued it stay.
#[utoipa::path(delete, path = "/v1/conversations/{id}", operation_id = "deleteConversation", tag = "inference",
    params(("id" = String, Path, description = "ID of the conversation")),
    responses(
        (status = 200, description = "the conversation is deleted", body = ConversationDeleted),
        (status = 404, description = "no such conversation", body = ErrorBody),
        (status = 503, description = "the server's state cannot be written", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<ConversationDeleted>, ApiError> {
    if !state.records.remove(&key(&caller, &id)).await? {
        return Err(absent(&id));
    }
    Ok(axum::Json(ConversationDeleted { id, object: "conversation.deleted", deleted: true }))
}

/// Returns the messages of the caller's conversation `id`, for a response to continue.
pub(super) async fn messages(state: &AppState, caller: &Caller, id: &str) -> Result<ChatHistory, ApiError> {
    let param = "conversation";
    // A missing conversation must not read as one without items.
    find(state, caller, id.to_owned()).await.map_err(|error| error.with_param(param))?;
    let mut range = RecordRange {
        kind: RecordKind::ConversationItem,
        owner: caller.owner,
        parent: id.to_owned(),
        order: RecordOrder::Ascending,
        after: None,
        limit: READ_AT_ONCE,
    };
    let mut items: Vec<(String, ParsedItem)> = Vec::new();
    let mut count = 0;
    let mut bytes = 0;
    loop {
        let page = state.records.list::<Value>(&range).await?;
        let is_last = page.len() < READ_AT_ONCE;
        // Items that the model does not see count as well, because they are read and decoded like all others.
        count += page.len();
        range.after = page.last().map(|item| item.position);
        for item in page {
            let at = format!("conversation.{}", item.id);
            let item = ParsedItem::read(item.value, &at)?;
            bytes += item.seen_bytes();
            if item.is_seen() {
                items.push((at, item));
            }
        }
        // Checked after each page, so at most one page beyond the limits is read.
        if count > MAX_ITEMS || bytes > MAX_TEXT {
            let message = format!(
                "the conversation `{id}` has more than {MAX_ITEMS} items or {MAX_TEXT} bytes of text: begin another one"
            );
            return Err(ApiError::invalid(param, message));
        }
        if is_last {
            return Ok(ChatHistory::of_stored(items));
        }
    }
}

/// Returns the key of the caller's conversation `id`.
pub(super) fn key(caller: &Caller, id: &str) -> RecordKey {
    RecordKey::new(RecordKind::Conversation, caller.owner, id)
}

/// Returns the caller's conversation `id`.
async fn find(state: &AppState, caller: &Caller, id: String) -> Result<(String, ConversationRecord), ApiError> {
    let record = state.records.get(&key(caller, &id)).await?;
    Ok((id.clone(), record.ok_or_else(|| absent(&id))?))
}

fn absent(id: &str) -> ApiError {
    let limits = "`--state`, `--state-count`, `--state-bytes`, `--state-days`";
    let reason = unknown_id::message("conversation", id, "", limits);
    ApiError::new(Code::ConversationNotFound, reason).with_param("id")
}
