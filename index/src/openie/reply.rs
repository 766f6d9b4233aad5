//! Parses replies of a language model: the first object that contains the requested list, after repairing replies that
//! were cut off.

use std::sync::LazyLock;

use regex::Regex;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::python;

/// List requested from a model, named by its JSON key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyList {
    /// Key `named_entities`.
    Entities,
    /// Key `triples`.
    Triples,
}

/// Error of a reply without a usable list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplyError {
    #[error("the reply contains no object with `{0}`")]
    Missing(&'static str),
    #[error("the object with `{0}` in the reply cannot be read")]
    Broken(&'static str),
}

impl ReplyList {
    pub(crate) fn key(self) -> &'static str {
        match self {
            ReplyList::Entities => "named_entities",
            ReplyList::Triples => "triples",
        }
    }

    /// Returns the list in `reply`, repairing the reply first if it was `cut` off. If HippoRAG's parser would find
    /// none, accepts any JSON object in the reply that has the key.
    pub(crate) fn read(self, reply: &str, cut: bool) -> Result<Vec<Value>, ReplyError> {
        let mended;
        let reply = if cut {
            mended = mend(reply);
            mended.as_str()
        } else {
            reply
        };
        self.find(reply).or_else(|error| self.find_json(reply).ok_or(error))
    }

    /// Parses like HippoRAG's `_extract_ner_from_response` and its counterpart for triples: reads the first flat object
    /// with the key as a Python literal. HippoRAG treats [`ReplyError::Missing`] as an empty list.
    fn find(self, reply: &str) -> Result<Vec<Value>, ReplyError> {
        let pattern = match self {
            ReplyList::Entities => &ENTITIES,
            ReplyList::Triples => &TRIPLES,
        };
        let found = pattern.as_ref().and_then(|pattern| pattern.find(reply)).ok_or(ReplyError::Missing(self.key()))?;
        let list = python::literal(found.as_str()).as_mut().and_then(|value| self.list(value));
        list.ok_or(ReplyError::Broken(self.key()))
    }

    fn find_json(self, reply: &str) -> Option<Vec<Value>> {
        // A reply has a handful of braces; one with more contains no trustworthy list.
        const BRACES: usize = 256;
        reply.match_indices('{').take(BRACES).find_map(|(start, _)| {
            // Reads one value, and ignores the text after it.
            let mut values = serde_json::Deserializer::from_str(&reply[start..]).into_iter::<Map<String, Value>>();
            self.list(&mut Value::Object(values.next()?.ok()?))
        })
    }

    fn list(self, value: &mut Value) -> Option<Vec<Value>> {
        match value.get_mut(self.key())?.take() {
            Value::Array(list) => Some(list),
            _ => None,
        }
    }
}

static ENTITIES: LazyLock<Option<Regex>> = LazyLock::new(|| pattern("named_entities"));
static TRIPLES: LazyLock<Option<Regex>> = LazyLock::new(|| pattern("triples"));

/// Pattern of a flat object with a list under `key`; the list may contain lists, but no objects.
fn pattern(key: &str) -> Option<Regex> {
    Regex::new(&format!(r#"\{{[^{{}}]*"{key}"\s*:\s*\[[^\]]*\][^{{}}]*\}}"#)).ok()
}

/// Repairs like HippoRAG's `fix_broken_generated_json`: valid JSON is unchanged; otherwise drops everything after the
/// last comma, and closes the open brackets and braces.
pub(crate) fn mend(text: &str) -> String {
    if is_json(text) {
        return text.to_owned();
    }
    // Any comma counts, even one within a string: HippoRAG does not look either.
    let kept = text.rfind(',').map_or(text, |comma| &text[..comma]);
    let mut open = Vec::new();
    let mut in_string = false;
    let mut escaped = false;
    for c in kept.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' if open.last() == Some(&c) => _ = open.pop(),
            _ => {}
        }
    }
    kept.chars().chain(open.into_iter().rev()).collect()
}

/// Returns `true` if Python's `json.loads` accepts the text: JSON, or JSON with `NaN` or `Infinity`.
fn is_json(text: &str) -> bool {
    let valid = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    if valid(text) {
        return true;
    }
    if !(text.contains("NaN") || text.contains("Infinity")) {
        return false;
    }
    // Text outside of strings: every other piece between unescaped quotes.
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let special = ["NaN", "Infinity"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match (c, special) {
            (_, Some(word)) => word.len(),
            ('\\', None) if in_string => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => c.len_utf8(),
        };
        in_string ^= c == '"';
        // Any number will do: only the form of the text is checked.
        plain.push_str(if special.is_some() { "0" } else { &rest[..taken] });
        rest = &rest[taken..];
    }
    valid(&plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::golden::cases;

    #[test]
    fn broken_json_is_mended_as_hipporag_mends_it() {
        for case in cases::<Value>("hippo_text_utils", "fix_broken_generated_json") {
            assert_eq!(mend(case["in"].as_str().unwrap()), case["out"].as_str().unwrap(), "{case}");
        }
    }

    #[test]
    fn entities_are_read_as_hipporag_reads_them() {
        for case in cases::<Value>("hippo_text_utils", "extract_ner") {
            let found = ReplyList::Entities.find(case["in"].as_str().unwrap());
            let found = if let Err(ReplyError::Missing(_)) = found { Ok(Vec::new()) } else { found };
            assert_eq!(found.ok().map(Value::Array).unwrap_or_default(), case["out"], "{case}");
        }
    }

    #[test]
    fn mending_counts_no_bracket_within_a_string() {
        for (text, expected) in [
            (r#"{"a": ["x]", "y}"#, r#"{"a": ["x]"]}"#),
            (r#"{"a": ["\"[", "b"#, r#"{"a": ["\"["]}"#),
            (r#"{"a": ["cut here, and"#, r#"{"a": ["cut here]}"#),
            (r#"{"a": NaN, "b": -Infinity, "c": "\"NaN\\"}"#, r#"{"a": NaN, "b": -Infinity, "c": "\"NaN\\"}"#),
            (r#"{"a": NaNa, 1}"#, r#"{"a": NaNa}"#),
            ("]}", "]}"),
            ("", ""),
        ] {
            assert_eq!(mend(text), expected);
        }
    }

    #[test]
    fn triples_are_found_in_talk() {
        let reply = "Here you are:\n```json\n{\"triples\": [[\"a\", \"b\", \"c\"],\n [\"d\", \"e\", \"f\"]]}\n```";
        assert_eq!(ReplyList::Triples.read(reply, false), Ok(vec![json!(["a", "b", "c"]), json!(["d", "e", "f"])]));
        let reply = r#"{"triples": [["a", "b", "c"], ["d", "e"#;
        assert_eq!(ReplyList::Triples.read(reply, true), Ok(vec![json!(["a", "b", "c"]), json!(["d"])]));
        assert_eq!(ReplyList::Triples.read(reply, false), Err(ReplyError::Missing("triples")));
    }

    #[test]
    fn what_python_cannot_read_may_still_be_json() {
        assert_eq!(
            ReplyList::Triples.read(r#"{"triples": [["a", "b", null]]}"#, false),
            Ok(vec![json!(["a", "b", null])])
        );
        assert_eq!(
            ReplyList::Triples.read(r#"{"triples": [["a{", "b", "c"]]}"#, false),
            Ok(vec![json!(["a{", "b", "c"])])
        );
        assert_eq!(ReplyList::Triples.read(r#"{"triples": [a]}"#, false), Err(ReplyError::Broken("triples")));
        assert_eq!(ReplyList::Triples.read(r#"{"triples": "a"}"#, false), Err(ReplyError::Missing("triples")));
    }

    proptest! {
        #[test]
        fn no_reply_makes_it_panic(reply in "(\\{|\\}|\\[|\\]|\"triples\"|:|,|'|\"|\\\\|NaN|é|a| ){0,40}") {
            let _ = ReplyList::Triples.read(&reply, true);
            let mended = mend(&reply);
            prop_assert!(is_json(&reply) == (mended == reply && is_json(&mended)));
        }
    }
}
