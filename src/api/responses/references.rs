//! References in an input to items of stored responses.

use std::collections::HashMap;

use serde_json::Value;

use super::input::ItemReference;
use super::request::ResponsesInput;
use crate::api::auth::Caller;
use crate::api::body;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Maximum number of responses that the references of one request lead to.
const MAX_RESPONSES: usize = 256;

/// Number of hexadecimal digits that the IDs of a response and of its items share.
const SHARED_DIGITS: usize = 32;

/// Replaces references by the items that they name.
///
/// # Errors
/// 404 if there is no such item, 400 if the items are too many or too large.
pub(super) async fn resolve(state: &AppState, caller: &Caller, input: &mut ResponsesInput) -> Result<(), ApiError> {
    let ResponsesInput::Items(items) = input else { return Ok(()) };
    // Each response is read once, however many of its items are named.
    let mut outputs: HashMap<String, Vec<Value>> = HashMap::new();
    let mut bytes = 0;
    for (at, item) in items.iter_mut().enumerate() {
        if !is_reference(item) {
            continue;
        }
        let at = format!("input[{at}]");
        let ItemReference { id, .. } = body::read(item.take(), &at)?;
        let response = response_id(&id).ok_or_else(|| absent(&at, &id))?;
        if !outputs.contains_key(&response) {
            if outputs.len() >= MAX_RESPONSES {
                let message = format!("`{at}`: the references lead to more than {MAX_RESPONSES} responses");
                return Err(ApiError::invalid(&at, message));
            }
            let output = state.responses.output(&response, caller).await?.ok_or_else(|| absent(&at, &id))?;
            outputs.insert(response.clone(), output);
        }
        let output = outputs.get(&response).map(Vec::as_slice).unwrap_or_default();
        *item = output.iter().find(|item| item["id"] == id.as_str()).cloned().ok_or_else(|| absent(&at, &id))?;
        // The same item may be named many times, so the items count as if they had been sent.
        bytes += item.to_string().len();
        if bytes > state.config.body_limit {
            let limit = state.config.body_limit;
            let message = format!("`{at}`: the referenced items take more than {limit} bytes, the limit of a body");
            return Err(ApiError::invalid(&at, message));
        }
    }
    Ok(())
}

/// Returns `true` if an item refers to another one. A reference without a type has an ID and nothing of a message.
fn is_reference(item: &Value) -> bool {
    match item.get("type") {
        None | Some(Value::Null) => {
            item.get("id").is_some() && item.get("role").is_none() && item.get("content").is_none()
        }
        Some(kind) => kind == "item_reference",
    }
}

/// Returns the ID of the response that made the item `id`.
fn response_id(id: &str) -> Option<String> {
    let (_, digits) = id.split_once('_')?;
    let shared = digits.get(..SHARED_DIGITS)?;
    shared.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| format!("resp_{shared}"))
}

fn absent(at: &str, id: &str) -> ApiError {
    let param = format!("{at}.id");
    let message = format!(
        "`{param}`: there is no item `{id}`: only items in the output of a stored response can be referenced; send the \
         item itself"
    );
    ApiError::new(Code::ResponseNotFound, message).with_param(&param)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_names_its_response() {
        let digits = "0193aaaaaaaabbbbbbbbccccccccdddd";
        assert_eq!(response_id(&format!("fc_{digits}0a")), Some(format!("resp_{digits}")));
        for id in ["", "msg", "msg_", "msg_xyz", "rs_0193aaaaaaaabbbbbbbbccccccccddd", "rs_öööööööööööööööööööööööö"]
        {
            assert_eq!(response_id(id), None, "{id}");
        }
    }
}
