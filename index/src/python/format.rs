//! Python's `str()` and `repr()`.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Formats a JSON value like `str()`: a string as it is, anything else like `repr()`.
pub fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let mut out = String::new();
            repr_value(other, &mut out);
            out
        }
    }
}

/// Formats a tuple of at least two strings like `str()`: `('oliver badman', 'is a', 'politician')`. A tuple of one
/// would need a trailing comma.
pub(crate) fn tuple(items: &[&str]) -> String {
    let mut out = String::from("(");
    for (place, item) in items.iter().enumerate() {
        out.push_str(if place == 0 { "" } else { ", " });
        repr_text(item, &mut out);
    }
    out.push(')');
    out
}

fn repr_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => out.push_str(&repr_number(number)),
        Value::String(text) => repr_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                repr_value(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (place, (key, item)) in fields.iter().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                repr_text(key, out);
                out.push_str(": ");
                repr_value(item, out);
            }
            out.push('}');
        }
    }
}

/// Formats integers in full, and floats with the fewest digits that read back as the same number, in scientific
/// notation below 1e-4 and from 1e16 on.
fn repr_number(number: &Number) -> String {
    let (false, Some(value)) = (number.is_i64() || number.is_u64(), number.as_f64()) else {
        return number.to_string();
    };
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..16).contains(&exponent) => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        // Python writes the sign and two digits at least: 1e-05, 1e+16.
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        Err(_) => scientific,
    }
}

/// Formats a string like `repr()`: in single quotes, unless it contains single and no double quotes; escapes
/// backslashes, control and other unprintable characters.
fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) => out.push(c),
            c => escape(c, out),
        }
    }
    out.push(quote);
}

fn escape(c: char, out: &mut String) {
    let code = u32::from(c);
    // Writing to a string cannot fail.
    let _ = match code {
        0..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// Python's `str.isprintable`: no control, format, private, unassigned or separator character except the space. Rust's
/// debug escaping agrees, except that it also escapes a combining mark at the very start; a letter in front avoids
/// that.
fn printable(c: char) -> bool {
    let mut buffer = ['a'; 2];
    buffer[1] = c;
    let text: String = buffer.iter().collect();
    matches!(c, '\'' | '"' | '\\') || text.escape_debug().nth(1) != Some('\\')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        for (text, expected) in [
            ("plain", "'plain'"),
            ("o'neil", "\"o'neil\""),
            ("say \"hi\"", "'say \"hi\"'"),
            ("'\"", "'\\'\"'"),
            ("a\\b\n\t\r", "'a\\\\b\\n\\t\\r'"),
            ("\0\x1b\u{85}\u{a0}", "'\\x00\\x1b\\x85\\xa0'"),
            ("\u{2028}\u{200b}\u{feff}", "'\\u2028\\u200b\\ufeff'"),
            ("\u{e0001}", "'\\U000e0001'"),
            ("Café e\u{301} 北京 😀", "'Café e\u{301} 北京 😀'"),
            ("\u{301}", "'\u{301}'"),
        ] {
            assert_eq!(tuple(&[text, text]), format!("({expected}, {expected})"));
        }
    }

    #[test]
    fn values_are_shown_as_str_shows_them() {
        for (value, expected) in [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!(1), "1"),
            (json!(-7), "-7"),
            (json!(1.0), "1.0"),
            (json!(0.1), "0.1"),
            (json!(1e16), "1e+16"),
            (json!(1e15), "1000000000000000.0"),
            (json!(0.0001), "0.0001"),
            (json!(0.000_015), "1.5e-05"),
            (json!(1.25e300), "1.25e+300"),
            (json!(["a", 1, null]), "['a', 1, None]"),
            (json!({"k": ["it's"]}), "{'k': [\"it's\"]}"),
            (json!("as is"), "as is"),
        ] {
            assert_eq!(show(&value), expected);
        }
    }
}
