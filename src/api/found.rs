//! Passages that were found, as OpenAI's interface has them.

use serde_json::{Map, Value};
use waymark_index::Hit;

/// Attributes of a passage at most.
pub(super) const MOST_ATTRIBUTES: usize = 16;

/// Longest text of an attribute, in characters.
pub(super) const LONGEST: usize = 512;

/// Longest name of an attribute, in characters.
const LONGEST_NAME: usize = 64;

/// How the scores of a list are brought into 0 to 1: as they are where the best of them is at most 1, otherwise as a share
/// of the best.
pub(super) fn scale(hits: &[Hit]) -> impl Fn(f32) -> f32 + use<> {
    let best = hits.iter().map(|hit| hit.score).fold(1.0, f32::max);
    move |score| (score / best).clamp(0.0, 1.0)
}

/// The name a passage goes by: its title, or its id where it has none.
pub(super) fn filename(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { title.to_owned() }
}

/// What there is room for of a document's metadata: texts, of which the end may be left out, numbers and booleans.
pub(super) fn attributes(metadata: Option<&Map<String, Value>>) -> impl Iterator<Item = (String, Value)> {
    metadata.into_iter().flatten().filter(|(name, _)| name.chars().count() <= LONGEST_NAME).filter_map(
        |(name, value)| {
            let value = match value {
                Value::String(text) => Value::String(text.chars().take(LONGEST).collect()),
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
