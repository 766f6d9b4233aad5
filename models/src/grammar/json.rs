//! JSON schemas that output can be constrained to, with size limits.

use serde_json::{Map, Value, json};

use super::GrammarError;
use super::closing::close_objects;

/// Shape of the requested JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// Any object.
    Object,
    /// JSON described by this JSON schema (draft 2020-12).
    Schema(Value),
}

/// Maximum size of a schema in compact form, in bytes.
const MAX_BYTES: usize = 64 << 10;

/// Maximum nesting depth of a schema.
const MAX_DEPTH: usize = 32;

/// Schema key for settings of llguidance, refused because it can disable the library's checks.
const SETTINGS_KEY: &str = "x-guidance";

impl Json {
    /// The schema in the form that llguidance expects. White space is bounded, so no output can grow without
    /// adding content, and escapes of any character are allowed, for outputs in which a character must not appear
    /// verbatim. Objects are closed ([`close_objects`]).
    ///
    /// # Errors
    /// [`GrammarError::Schema`] when the schema is not an object, too large or too deep, or contains `x-guidance`.
    pub(super) fn schema(&self) -> Result<Value, GrammarError> {
        let mut fields = match self {
            Json::Object => Map::from_iter([("type".to_owned(), json!("object"))]),
            Json::Schema(Value::Object(fields)) => fields.clone(),
            Json::Schema(_) => return refuse("a schema must be a JSON object"),
        };
        if fields.contains_key(SETTINGS_KEY) {
            return refuse("`x-guidance` is not a keyword of JSON schema");
        }
        let settings = json!({ "whitespace_pattern": r"[ \t\n]{1,16}", "json_allow_general_unicode_escapes": true });
        fields.insert(SETTINGS_KEY.to_owned(), settings);
        let mut schema = Value::Object(fields);
        if depth(&schema, MAX_DEPTH).is_none() {
            return refuse(&format!("the schema is nested more than {MAX_DEPTH} levels deep"));
        }
        let bytes = schema.to_string().len();
        if bytes > MAX_BYTES {
            return refuse(&format!("the schema has {bytes} bytes: at most {MAX_BYTES} are allowed"));
        }
        // Closing comes last, so the added keywords do not count toward the limits of depth and size.
        close_objects(&mut schema);
        Ok(schema)
    }
}

fn refuse<T>(reason: &str) -> Result<T, GrammarError> {
    Err(GrammarError::Schema(reason.to_owned()))
}

/// Number of nesting levels that a value leaves of `left`. `None` if it needs more.
fn depth(value: &Value, left: usize) -> Option<usize> {
    let below = |value: &Value| depth(value, left.checked_sub(1)?);
    match value {
        Value::Array(items) => items.iter().try_fold(left, |least, item| Some(least.min(below(item)?))),
        Value::Object(fields) => fields.values().try_fold(left, |least, field| Some(least.min(below(field)?))),
        _ => Some(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_out_of_bounds_are_refused_with_the_reason() {
        let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "items": inner }));
        let long = json!({"description": "x".repeat(MAX_BYTES)});
        for (schema, reason) in [
            (json!(true), "object"),
            (nested(40), "32 levels"),
            (long, "bytes"),
            (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
        ] {
            let refused = Json::Schema(schema).schema().map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|message| message.contains(reason)), "{refused:?}");
        }
        assert!(Json::Schema(nested(20)).schema().is_ok() && Json::Object.schema().is_ok());
    }
}
