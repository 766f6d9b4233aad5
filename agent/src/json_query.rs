//! Graph-R1's format of a query: JSON with the key `query`, whose value is converted like Python's `str` does.
//!
//! Python's `json.loads` reads more than JSON. Refused here are `NaN`, `Infinity`, numbers beyond the range of floats,
//! and escapes of half a surrogate pair. Integers beyond 64 bits are read as floats, which rounds them.

use serde_json::Value;

/// Returns the query of a JSON object (`extract_tool_call` of Graph-R1's `tool_env.py`). `None` for any other text.
pub(super) fn parse(text: &str) -> Option<String> {
    let Value::Object(mut fields) = serde_json::from_str(text.trim()).ok()? else { return None };
    Some(match fields.shift_remove("query")? {
        Value::String(text) => text,
        value => python(&value),
    })
}

/// Formats a value like Python's `repr` of the result of `json.loads`.
fn python(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => decimal(float),
            None => number.to_string(),
        },
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", list(items.iter().map(python).collect())),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{}: {}", quoted(name), python(value));
            format!("{{{}}}", list(fields.iter().map(field).collect()))
        }
    }
}

/// Formats a float with the shortest digits that read back as the same number, with an exponent where Python writes
/// one.
fn decimal(number: f64) -> String {
    let short = format!("{number:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        // Python writes an exponent below 1e-4 and from 1e16 on.
        -4..=15 => format!("{number:?}"),
        power => format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs()),
    }
}

/// Quotes a text with single quotation marks, or with double ones if it contains only single ones.
fn quoted(text: &str) -> String {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == mark => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(mark);
    out
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
        let rounded = parse(r#"{"query": 12345678901234567890123}"#);
        assert_eq!(rounded.as_deref(), Some("1.2345678901234568e+22"));
    }

    /// Expected values are `str(json.loads(text)["query"])` of CPython 3.
    #[test]
    fn values_read_as_in_python() {
        for (text, query) in [
            (r#" {"query": " Who? "} "#, Some(" Who? ")),
            (r#"{"query": "a", "k": 3, "query": "b"}"#, Some("b")),
            (r#"{"query": 5}"#, Some("5")),
            (r#"{"query": -0.5}"#, Some("-0.5")),
            (r#"{"query": 5.0}"#, Some("5.0")),
            (r#"{"query": 1e16}"#, Some("1e+16")),
            (r#"{"query": 123456.5e-10}"#, Some("1.234565e-05")),
            (r#"{"query": 0.0001}"#, Some("0.0001")),
            (r#"{"query": null}"#, Some("None")),
            (r#"{"query": true}"#, Some("True")),
            (r#"{"query": ["it's", "\"", 1, {"a": false}]}"#, Some(r#"["it's", '"', 1, {'a': False}]"#)),
            (r#"{"query": {"a\n": []}}"#, Some(r"{'a\n': []}")),
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
