//! JSON values whose numbers are kept as they were written.

use std::fmt::{self, Write};

use minijinja::Value;
use serde::de::Error as _;
use serde_json::Error;
use serde_json::value::RawValue;

use super::tool::Mark;

/// Maximum nesting, as of the JSON parser.
const MAX_DEPTH: usize = 128;

/// JSON value. Its [text](fmt::Display) is compact, with the numbers of the text that it was parsed from.
#[derive(Debug)]
pub(super) enum ExactJson<'a> {
    /// Fields in their order.
    Object(Vec<(String, ExactJson<'a>)>),
    Array(Vec<ExactJson<'a>>),
    Text(String),
    /// Number, as it was written.
    Number(&'a str),
    /// `true`, `false` or `null`.
    Word(Option<bool>),
}

impl<'a> ExactJson<'a> {
    /// Parses a text in one pass.
    ///
    /// # Errors
    /// If the text is not valid JSON, has a number that no float can hold, or is nested more than 128 deep.
    pub(super) fn parse(text: &'a str) -> serde_json::Result<ExactJson<'a>> {
        // The standard parser decides on the form, and rounds no number here.
        let valid: &RawValue = serde_json::from_str(text)?;
        Reader { rest: valid.get() }.value(MAX_DEPTH)
    }

    /// Converts the value for a template. Applies `mark` to every text. Integers of more than 128 bits become floats.
    pub(super) fn value(self, mark: Mark<'_>) -> Value {
        match self {
            ExactJson::Object(fields) => {
                Value::from_pairs(fields.into_iter().map(|(name, field)| (mark(&name), field.value(mark))))
            }
            ExactJson::Array(items) => items.into_iter().map(|item| item.value(mark)).collect(),
            ExactJson::Text(text) => Value::from(mark(&text)),
            ExactJson::Number(text) => number(text),
            ExactJson::Word(word) => word.map_or_else(|| Value::from(()), Value::from),
        }
    }
}

impl fmt::Display for ExactJson<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExactJson::Object(fields) => {
                let shown = |(name, field): &(String, ExactJson<'_>), out: &mut fmt::Formatter<'_>| {
                    write_text(name, out)?;
                    write!(out, ":{field}")
                };
                write_list(['{', '}'], fields, shown, out)
            }
            ExactJson::Array(items) => write_list(['[', ']'], items, |item, out| write!(out, "{item}"), out),
            ExactJson::Text(text) => write_text(text, out),
            ExactJson::Number(text) => out.write_str(text),
            ExactJson::Word(Some(word)) => write!(out, "{word}"),
            ExactJson::Word(None) => out.write_str("null"),
        }
    }
}

/// Writes items between brackets, separated by commas.
fn write_list<T>(
    [open, close]: [char; 2],
    items: &[T],
    show: impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
    out: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    out.write_char(open)?;
    for (at, item) in items.iter().enumerate() {
        out.write_str(if at == 0 { "" } else { "," })?;
        show(item, out)?;
    }
    out.write_char(close)
}

/// Writes a text in quotes, without needless escapes.
fn write_text(text: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    out.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

fn number(text: &str) -> Value {
    let small = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    let large = || text.parse::<i128>().map(Value::from).or_else(|_| text.parse::<u128>().map(Value::from));
    small.or_else(|_| large()).unwrap_or_else(|_| Value::from(text.parse::<f64>().unwrap_or_default()))
}

/// Reader of a text that is valid JSON.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Reads a value that is nested at most `levels` deep.
    fn value(&mut self, levels: usize) -> serde_json::Result<ExactJson<'a>> {
        let levels = levels.checked_sub(1).ok_or_else(|| Error::custom("nested too deep"))?;
        self.skip_space();
        match self.rest.as_bytes().first() {
            Some(b'{') => self.fields(levels).map(ExactJson::Object),
            Some(b'[') => self.items(levels).map(ExactJson::Array),
            Some(b'"') => self.text().map(ExactJson::Text),
            Some(b't' | b'f' | b'n') => serde_json::from_str(self.word()).map(ExactJson::Word),
            _ => {
                let text = self.word();
                let holds = text.parse::<f64>().is_ok_and(f64::is_finite);
                if holds { Ok(ExactJson::Number(text)) } else { Err(Error::custom("number out of range")) }
            }
        }
    }

    fn fields(&mut self, levels: usize) -> serde_json::Result<Vec<(String, ExactJson<'a>)>> {
        let mut fields = Vec::new();
        while self.another('}') {
            let name = self.text()?;
            self.skip_space();
            // A colon.
            self.take(1);
            fields.push((name, self.value(levels)?));
        }
        Ok(fields)
    }

    fn items(&mut self, levels: usize) -> serde_json::Result<Vec<ExactJson<'a>>> {
        let mut items = Vec::new();
        while self.another(']') {
            items.push(self.value(levels)?);
        }
        Ok(items)
    }

    /// Skips the bracket or comma in front of the next item. Returns `false` at the closing bracket, which it skips.
    fn another(&mut self, close: char) -> bool {
        self.skip_space();
        let closes = |rest: &str| rest.is_empty() || rest.starts_with(close);
        if !closes(self.rest) {
            self.take(1);
            self.skip_space();
        }
        let ends = closes(self.rest);
        self.take(usize::from(ends));
        !ends
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes the first `len` bytes, or all if there are fewer.
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    /// Takes a number or a word.
    fn word(&mut self) -> &'a str {
        let ends = |byte: u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
        self.take(self.rest.bytes().position(ends).unwrap_or(self.rest.len()))
    }

    /// Takes a text in quotes.
    fn text(&mut self) -> serde_json::Result<String> {
        let mut escaped = false;
        let end = self.rest.bytes().skip(1).position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let quoted = self.take(end.map_or(self.rest.len(), |end| end + 2));
        serde_json::from_str(quoted)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_the_standard_parser() {
        let value =
            json!({"a": [], "b": {}, "c": [1, -2.5, true, false, null, "x\"\\\n\u{1}é,]}"], "": {"d": {"e": [[0]]}}});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let parsed = ExactJson::parse(&text).unwrap().to_string();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&parsed).unwrap(), value, "{parsed}");
            assert!(!parsed.contains('\n') && !parsed.contains(": "), "{parsed}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(ExactJson::parse(&nested(MAX_DEPTH)).is_ok());
        for levels in [MAX_DEPTH + 1, 100_000] {
            assert!(ExactJson::parse(&nested(levels)).is_err(), "{levels}");
        }
    }
}
