//! Closing of schemas: objects that list their properties allow no others.
//!
//! In JSON schema, an object may have any further property unless `additionalProperties` forbids them. A model that may
//! keep adding properties often does not end its output, and clients do not read properties that their schema does not
//! name. The output still satisfies the schema that the client sent.

use serde_json::{Map, Value};

/// Keywords that leave a whole schema open. Most of them let several schemas describe one object, and closing one would
/// forbid the properties of the others. `minProperties` may require properties that are not listed.
const COMBINING: [&str; 9] = [
    "allOf",
    "dependencies",
    "dependentSchemas",
    "else",
    "if",
    "minProperties",
    "not",
    "then",
    "unevaluatedProperties",
];

/// Keywords that say something of the properties of an object.
const PROPERTIES: [&str; 3] = ["patternProperties", "properties", "required"];

/// Keywords whose schemas describe the same object as [`PROPERTIES`] next to them.
const BESIDE: [&str; 3] = ["$ref", "anyOf", "oneOf"];

/// Keywords whose values are data, not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Keywords whose values are schemas by names that the client chose. Such a name may read like a keyword, but is none.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// Closes the objects of a schema, unless several of its schemas may describe one object.
pub(super) fn close_objects(schema: &mut Value) {
    if !combines(schema) {
        close(schema);
    }
}

fn combines(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(combines),
        Value::Object(fields) => {
            let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
            let shared = has(&PROPERTIES) && has(&BESIDE);
            let combined = |(name, value): (&String, &Value)| match (name.as_str(), value) {
                (name, _) if DATA.contains(&name) => false,
                (name, _) if COMBINING.contains(&name) => true,
                (name, Value::Object(schemas)) if NAMED.contains(&name) => schemas.values().any(combines),
                (_, value) => combines(value),
            };
            shared || fields.iter().any(combined)
        }
        _ => false,
    }
}

fn close(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(fields) => {
            for (name, value) in &mut *fields {
                match (name.as_str(), value) {
                    (name, _) if DATA.contains(&name) => {}
                    (name, Value::Object(schemas)) if NAMED.contains(&name) => schemas.values_mut().for_each(close),
                    (_, value) => close(value),
                }
            }
            if is_open(fields) {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        _ => {}
    }
}

/// Returns `true` if the fields describe an object that lists all properties it needs, and says nothing about others.
fn is_open(fields: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = fields.get("properties") else { return false };
    let said = ["additionalProperties", "patternProperties"].iter().any(|name| fields.contains_key(*name));
    let listed = |name: &Value| name.as_str().is_some_and(|name| properties.contains_key(name));
    let complete = match fields.get("required") {
        Some(Value::Array(names)) => names.iter().all(listed),
        _ => true,
    };
    !properties.is_empty() && !said && complete
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn closed(mut schema: Value) -> Value {
        close_objects(&mut schema);
        schema
    }

    #[test]
    fn objects_that_list_their_properties_are_closed() {
        let inner = json!({"type": "object", "properties": {"b": {"default": {"properties": {"c": 1}}}}});
        let schema = closed(json!({
            "properties": {"a": {"items": inner}, "z": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]}},
            "required": ["a"],
            "$defs": {"d": {"properties": {"x": {}}}},
        }));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["a"]["items"]["additionalProperties"], false);
        assert_eq!(schema["$defs"]["d"]["additionalProperties"], false);
        let data = &schema["properties"]["a"]["items"]["properties"]["b"]["default"];
        assert_eq!(*data, json!({"properties": {"c": 1}}));
    }

    #[test]
    fn properties_may_be_called_like_keywords() {
        for name in COMBINING.iter().chain(&PROPERTIES).chain(&BESIDE).chain(&DATA).chain(&NAMED).copied() {
            let schema = closed(json!({
                "properties": {name: {"properties": {"a": {}}}, "b": {"$ref": "#/$defs/not"}},
                "$defs": {"not": {"properties": {"x": {}}}},
            }));
            let expected = json!({
                "properties": {
                    name: {"properties": {"a": {}}, "additionalProperties": false},
                    "b": {"$ref": "#/$defs/not"},
                },
                "$defs": {"not": {"properties": {"x": {}}, "additionalProperties": false}},
                "additionalProperties": false,
            });
            assert_eq!(schema, expected, "{name}");
        }
        let schema = closed(json!({"properties": {"a": {"default": {"not": 1}}}}));
        assert_eq!(schema["additionalProperties"], false, "keywords in data have no meaning");
    }

    #[test]
    fn other_schemas_stay_as_they_are() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {}}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {}}, "required": ["a", "b"]}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}),
            json!({"required": ["id"], "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"patternProperties": {"^x": {}}, "oneOf": [{"properties": {"a": {}}}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
    }
}
