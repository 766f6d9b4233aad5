//! How Python shows values: facts are known by it, and lists of triples may hold values other than strings.

use std::fmt::Write;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Number, Value};

/// Python's `repr()` of a string: in single quotes, unless it holds some and no double ones.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::with_capacity(text.len() + 2);
    shown.push(quote);
    for c in text.chars() {
        match c {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if c == quote => shown.extend(['\\', c]),
            ' '..='~' => shown.push(c),
            c if printable(c) => shown.push(c),
            c => escape(&mut shown, u32::from(c)),
        }
    }
    shown.push(quote);
    shown
}

fn escape(shown: &mut String, code: u32) {
    // Writing to a string does not fail.
    let _ = match code {
        0..=0xff => write!(shown, "\\x{code:02x}"),
        0x100..=0xffff => write!(shown, "\\u{code:04x}"),
        _ => write!(shown, "\\U{code:08x}"),
    };
}

/// `str.isprintable`: neither "other" nor "separator" in the Unicode database.
fn printable(c: char) -> bool {
    #[allow(clippy::expect_used)]
    static HIDDEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").expect("a constant that is valid"));
    !HIDDEN.is_match(c.encode_utf8(&mut [0; 4]))
}

/// Python's `str()` of what its `json` module makes of a value.
pub(crate) fn str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => nested(other),
    }
}

fn nested(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => self::number(number),
        Value::String(text) => repr(text),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(nested))),
        Value::Object(fields) => {
            format!("{{{}}}", joined(fields.iter().map(|(key, value)| format!("{}: {}", repr(key), nested(value)))))
        }
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Integers as they are. Floats by their shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn number(number: &Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() => {
            if value != 0.0 && !(1e-4..1e16).contains(&value.abs()) {
                let shown = format!("{value:e}");
                let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
                let (sign, power) = exponent.strip_prefix('-').map_or(('+', exponent), |power| ('-', power));
                format!("{digits}e{sign}{power:0>2}")
            } else {
                format!("{value:?}")
            }
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        for (text, expected) in [
            ("plain", "'plain'"),
            ("o'neil", "\"o'neil\""),
            ("say \"hi\"", "'say \"hi\"'"),
            ("'\"", "'\\'\"'"),
            ("a\\b\n\u{7f}", "'a\\\\b\\n\\x7f'"),
            ("é\u{a0}\u{2028}\u{1f600}\u{e0001}", "'é\\xa0\\u2028\u{1f600}\\U000e0001'"),
        ] {
            assert_eq!(repr(text), expected);
        }
    }

    #[test]
    fn values_are_shown_as_python_shows_them() {
        let json = r#"[null, true, 7, -0.0, 1.0, 0.1, 1e-5, 1.5e300, 1e16, 123456789012345.0, ["a'b", {"k": false}]]"#;
        let value: Value = serde_json::from_str(json).unwrap();
        let expected =
            r#"[None, True, 7, -0.0, 1.0, 0.1, 1e-05, 1.5e+300, 1e+16, 123456789012345.0, ["a'b", {'k': False}]]"#;
        assert_eq!(str(&value), expected);
        assert_eq!(str(&Value::String("o'neil".into())), "o'neil");
    }
}
