//! JSON schemas of tool inputs and outputs: the OpenAPI schemas of their types, each made self-contained.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use crate::api::error::{ApiError, Code};

/// Prefix of references in the OpenAPI document.
const DOCUMENT: &str = "#/components/schemas/";

/// Prefix of references in a self-contained schema.
const OWN: &str = "#/$defs/";

/// Returns the schema of `T`, together with the schemas it refers to.
///
/// # Errors
/// If the schema cannot be serialized, which only a bug could cause.
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

/// Turns references into the OpenAPI document into references within the schema.
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
