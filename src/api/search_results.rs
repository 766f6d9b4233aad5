//! Converts retrieved passages to the search results of OpenAI's interface.

use serde_json::{Map, Value};
use waymark_index::Hit;

/// Maximum number of attributes of a passage.
pub(super) const MAX_ATTRIBUTES: usize = 16;

/// Maximum length of an attribute's text, in characters.
pub(super) const MAX_TEXT_CHARS: usize = 512;

/// Maximum length of an attribute's name, in characters.
const MAX_NAME_CHARS: usize = 64;

/// Returns a function that maps the scores of `hits` to 0 to 1. Scores stay as they are if the best is at most 1, and
/// are divided by the best otherwise.
pub(super) fn scale(hits: &[Hit]) -> impl Fn(f32) -> f32 + use<> {
    let best = hits.iter().map(|hit| hit.score).fold(1.0, f32::max);
    move |score| (score / best).clamp(0.0, 1.0)
}

/// Returns the display name of a passage: its title, or its ID if it has no title.
pub(super) fn filename(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { title.to_owned() }
}

/// Returns the metadata that OpenAI's interface can hold: numbers, booleans, and texts, truncated if they are too long.
pub(super) fn attributes(metadata: Option<&Map<String, Value>>) -> impl Iterator<Item = (String, Value)> {
    metadata.into_iter().flatten().filter(|(name, _)| name.chars().count() <= MAX_NAME_CHARS).filter_map(
        |(name, value)| {
            let value = match value {
                Value::String(text) => Value::String(text.chars().take(MAX_TEXT_CHARS).collect()),
                Value::Number(_) | Value::Bool(_) => value.clone(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((name.clone(), value))
        },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn of_metadata_only_short_and_flat_values_are_attributes() {
        let long = "ü".repeat(600);
        let metadata = json!({"a": 1, "b": true, "c": long, "d": [1], "e": {}, "f": null, long.as_str(): 1});
        let kept: Map<String, Value> = attributes(metadata.as_object()).collect();
        assert_eq!(Value::Object(kept), json!({"a": 1, "b": true, "c": "ü".repeat(512)}));
        assert_eq!(attributes(None).count(), 0);
    }
}
