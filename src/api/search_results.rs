//! Converts retrieved passages to the search results of OpenAI's interface.

use serde_json::{Map, Value};
use waymark_index::{Hit, Passage};

/// Maximum number of attributes of a passage.
pub(super) const MAX_ATTRIBUTES: usize = 16;

/// Maximum length of an attribute's text, in characters.
pub(super) const MAX_TEXT_CHARS: usize = 512;

/// Maximum length of an attribute's name, in characters.
pub(super) const MAX_NAME_CHARS: usize = 64;

/// Returns a function that maps the scores of `hits` to the range from 0 to 1. Scores stay unchanged if the best is at
/// most 1, and are divided by the best otherwise.
pub(super) fn scale(hits: &[Hit]) -> impl Fn(f32) -> f32 + use<> {
    let best = hits.iter().map(|hit| hit.score).fold(1.0, f32::max);
    move |score| (score / best).clamp(0.0, 1.0)
}

/// Returns the display name of a passage: its title, or its ID if it has no title.
pub(super) fn filename(title: &str, id: &str) -> String {
    if title.is_empty() { id.to_owned() } else { title.to_owned() }
}

/// Returns the ID of the uploaded file that a passage is from, or the ID of the passage if it is from no uploaded file.
pub(super) fn file_id(passage: &str) -> &str {
    match passage.split_once('#') {
        Some((file, _)) if is_file(file) => file,
        _ => passage,
    }
}

/// Returns the name of the uploaded file that a passage is from, or else its display name.
pub(super) fn filename_of(hit: &Hit) -> String {
    let Passage { id, title, .. } = &hit.passage;
    let given = hit.metadata.as_ref().and_then(|metadata| metadata.get("filename")).and_then(Value::as_str);
    match given {
        Some(given) if file_id(id) != id => given.to_owned(),
        _ => filename(title, id),
    }
}

/// Returns `true` for text in the form of a file's ID.
fn is_file(id: &str) -> bool {
    id.strip_prefix("file-").is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
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
    fn chunks_of_files_are_told_from_other_passages() {
        let file = format!("file-{}", "0".repeat(32));
        assert_eq!(file_id(&format!("{file}#12")), file);
        for other in ["a#1", "file-1#1", "file-", &file] {
            assert_eq!(file_id(other), other);
        }
    }

    #[test]
    fn of_metadata_only_short_and_flat_values_are_attributes() {
        let long = "ü".repeat(600);
        let metadata = json!({"a": 1, "b": true, "c": long, "d": [1], "e": {}, "f": null, long.as_str(): 1});
        let kept: Map<String, Value> = attributes(metadata.as_object()).collect();
        assert_eq!(Value::Object(kept), json!({"a": 1, "b": true, "c": "ü".repeat(512)}));
        assert_eq!(attributes(None).count(), 0);
    }
}
