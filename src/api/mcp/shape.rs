//! What tools take and give, as JSON Schema: the schemas of the types themselves, each whole without the document.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use crate::api::error::{ApiError, Code};

/// Where the document has the schemas of other types.
const DOCUMENT: &str = "#/components/schemas/";

/// Where a schema that is whole by itself has them.
const OWN: &str = "#/$defs/";

/// The schema of `T`, with those it refers to.
///
/// # Errors
/// When it cannot be written, which only a broken schema could cause.
pub(super) fn of<T: ToSchema>() -> Result<Value, ApiError> {
    let broken = |error: serde_json::Error| ApiError::new(Code::Internal, format!("a schema is broken: {error}"));
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let parts: BTreeMap<_, _> = parts.into_iter().collect();
    let mut schema = serde_json::to_value(T::schema()).map_err(broken)?;
    if let Some(fields) = schema.as_object_mut()
        && !parts.is_empty()
    {
        fields.insert("$defs".to_owned(), serde_json::to_value(parts).map_err(broken)?);
    }
    refer(&mut schema);
    Ok(schema)
}

/// Turns references into the document to what the schema has itself.
fn refer(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(path) if name == "$ref" => *path = path.replacen(DOCUMENT, OWN, 1),
                    field => refer(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(refer),
        _ => {}
    }
}
