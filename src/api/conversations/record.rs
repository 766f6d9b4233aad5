//! Stored form of a conversation, and its items.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::error::ApiError;
use crate::api::responses::parsed_item::ParsedItem;

/// Maximum number of items in one request, as in OpenAI's interface.
pub(super) const MAX_ADDED: usize = 20;

/// Conversation without its items.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ConversationRecord {
    pub(super) created_at: u64,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Conversation)]
pub struct ConversationObject {
    /// ID of the conversation.
    pub id: String,
    /// Always `conversation`.
    pub object: &'static str,
    /// Creation time, in seconds since 1970.
    pub created_at: u64,
    /// Pairs given by the client.
    pub metadata: BTreeMap<String, String>,
}

impl ConversationObject {
    pub(super) fn new(id: String, record: ConversationRecord) -> Self {
        let ConversationRecord { created_at, metadata } = record;
        Self { id, object: "conversation", created_at, metadata }
    }
}

/// Returns the ID of an item, or a new one.
pub(in crate::api) fn item_id(item: &Value) -> String {
    let new = || format!("msg_{}", Uuid::now_v7().simple());
    item["id"].as_str().map_or_else(new, str::to_owned)
}

/// Checks the items of a request and completes them. Each gets an ID of its own, so none replaces another one.
///
/// # Errors
/// Names the item, and the field in it, that cannot be used.
pub(super) fn checked_items(items: Vec<Value>) -> Result<Vec<(String, Value)>, ApiError> {
    if items.len() > MAX_ADDED {
        let message = format!("`items` holds {} items: at most {MAX_ADDED} are added at once", items.len());
        return Err(ApiError::invalid("items", message));
    }
    let mut checked = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let added = ParsedItem::read(item, &format!("items[{at}]"))?.listed();
        checked.push((item_id(&added), added));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn items_are_completed_or_refused_by_name() {
        let items = vec![
            json!({"role": "user", "content": "hello"}),
            json!({"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}),
            json!({"type": "reasoning", "id": "mine", "summary": []}),
        ];
        let checked = checked_items(items).unwrap();
        let parts: Vec<&Value> = checked.iter().map(|(_, item)| &item["content"][0]).collect();
        assert_eq!(parts[0], &json!({"type": "input_text", "text": "hello"}));
        assert_eq!(parts[1], &json!({"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}));
        assert!(checked.iter().all(|(id, item)| item["id"] == id.as_str() && id != "mine"));
        let refused = checked_items(vec![json!({"role": "user"})]).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("items[0].content"));
        assert_eq!(checked_items(vec![json!({}); 21]).unwrap_err().param.as_deref(), Some("items"));
    }
}
