//! Graph-R1's format of a query: JSON with the key `query`, whose value is converted like Python's `str` does.
//!
//! Python's `json.loads` reads more than JSON. Refused here are `NaN`, `Infinity`, numbers beyond the range of floats,
//! and escapes of half a surrogate pair. Integers beyond 64 bits are read as floats, which rounds them, unless they are
//! the whole query.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;
use waymark_index::python;

/// Returns the query of a JSON object (`extract_tool_call` of Graph-R1's `tool_env.py`). `None` for any other text.
pub(super) fn parse(text: &str) -> Option<String> {
    let text = text.trim();
    let Value::Object(mut fields) = serde_json::from_str(text).ok()? else { return None };
    Some(match fields.shift_remove("query")? {
        Value::String(query) => query,
        value => whole_number(text).unwrap_or_else(|| python::show(&value)),
    })
}

/// Returns the digits of a query that is a whole number. `None` for any other query.
fn whole_number(object: &str) -> Option<String> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let written = fields.get("query")?.get();
    let digits = written.strip_prefix('-').unwrap_or(written);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Python's whole numbers have no negative zero.
    let number = if digits == "0" { digits } else { written };
    Some(number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPython 3 reads all of these.
    #[test]
    fn values_beyond_json_are_refused_or_rounded() {
        for text in ["NaN", "-Infinity", "1e400", r#""\ud83d""#] {
            assert_eq!(parse(&format!("{{\"query\": {text}}}")), None, "{text}");
        }
        let rounded = parse(r#"{"query": [12345678901234567890123]}"#);
        assert_eq!(rounded.as_deref(), Some("[1.2345678901234568e+22]"));
    }

    /// Expected values are `str(json.loads(text)["query"])` of CPython 3.
    #[test]
    fn values_read_as_in_python() {
        for (text, query) in [
            (r#" {"query": " Who? "} "#, Some(" Who? ")),
            (r#"{"query": "a", "k": 3, "query": "b"}"#, Some("b")),
            (r#"{"query": 5}"#, Some("5")),
            (r#"{"query": 12345678901234567890123}"#, Some("12345678901234567890123")),
            (r#"{"query": -9223372036854775809}"#, Some("-9223372036854775809")),
            (r#"{"query": 1, "query": -0}"#, Some("0")),
            (r#"{"query": -0.5}"#, Some("-0.5")),
            (r#"{"query": 5.0}"#, Some("5.0")),
            (r#"{"query": 1e16}"#, Some("1e+16")),
            (r#"{"query": 123456.5e-10}"#, Some("1.234565e-05")),
            (r#"{"query": 0.0001}"#, Some("0.0001")),
            (r#"{"query": null}"#, Some("None")),
            (r#"{"query": true}"#, Some("True")),
            (r#"{"query": ["it's", "\"", 1, {"a": false}]}"#, Some(r#"["it's", '"', 1, {'a': False}]"#)),
            (r#"{"query": {"a\n": []}}"#, Some(r"{'a\n': []}")),
            (r#"{"query": ["a\u200bb", "\u00a0\u007f", "\u00e9"]}"#, Some(r"['a\u200bb', '\xa0\x7f', 'é']")),
            (r#"{"Query": "a"}"#, None),
            (r#"["query"]"#, None),
            (r#""a query""#, None),
            ("plain text", None),
            (r#"{"query": "a"} b"#, None),
            ("{'query': 'a'}", None),
            ("", None),
        ] {
            assert_eq!(parse(text).as_deref(), query, "{text}");
        }
    }
}
