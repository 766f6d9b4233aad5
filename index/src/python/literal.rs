//! Python's `ast.literal_eval` for strings, numbers, `True`, `False`, `None`, lists, tuples and dicts.

use serde_json::{Map, Number, Value};

/// Replaces half a surrogate pair from an escape, which no Rust string can hold.
const LONE: char = char::REPLACEMENT_CHARACTER;

/// Maximum nesting depth. Python's limit is about the same.
const DEEPEST: usize = 90;

/// Parses a Python literal; tuples become arrays. `None` where Python would raise, and for sets, bytes and complex
/// numbers, which JSON cannot represent.
pub(crate) fn literal(text: &str) -> Option<Value> {
    let mut reader = LiteralReader { rest: text };
    let value = reader.value(0)?;
    reader.skip();
    reader.rest.is_empty().then_some(value)
}

struct LiteralReader<'a> {
    rest: &'a str,
}

impl LiteralReader<'_> {
    /// Skips white space, including line breaks: all text read here is within brackets or was stripped before.
    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
    }

    fn peek(&mut self) -> Option<char> {
        self.skip();
        self.rest.chars().next()
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        match self.peek()? {
            '[' => self.items('[', ']', depth).map(|(items, _)| Value::Array(items)),
            '(' => {
                let (mut items, commas) = self.items('(', ')', depth)?;
                // A single value in parentheses without a comma is not a tuple.
                if items.len() == 1 && commas == 0 { items.pop() } else { Some(Value::Array(items)) }
            }
            '{' => self.dict(depth),
            '\'' | '"' | 'r' | 'R' | 'u' | 'U' => self.strings(),
            '0'..='9' | '.' | '-' | '+' => self.number(),
            _ => self.word(),
        }
    }

    /// Returns the values between two brackets and the number of commas.
    fn items(&mut self, open: char, close: char, depth: usize) -> Option<(Vec<Value>, usize)> {
        self.rest = self.rest.strip_prefix(open)?;
        let mut items = Vec::new();
        let mut commas = 0;
        loop {
            if self.peek()? == close {
                self.rest = &self.rest[close.len_utf8()..];
                return Some((items, commas));
            }
            // Two values without a comma between them.
            if items.len() != commas {
                return None;
            }
            items.push(self.value(depth + 1)?);
            commas += usize::from(self.take(","));
        }
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        self.rest = self.rest.strip_prefix('{')?;
        let mut fields = Map::new();
        let mut expects_more = true;
        loop {
            if self.take("}") {
                return Some(Value::Object(fields));
            }
            if !expects_more {
                return None;
            }
            let key = self.value(depth + 1)?;
            // Python cannot hash lists and dicts, so they cannot be keys.
            if !self.take(":") || matches!(key, Value::Array(_) | Value::Object(_)) {
                return None;
            }
            let value = self.value(depth + 1)?;
            fields.insert(super::show(&key), value);
            expects_more = self.take(",");
        }
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            "None" => Some(Value::Null),
            _ => None,
        }
    }

    /// Reads a number with at most one sign, which white space may follow.
    fn number(&mut self) -> Option<Value> {
        let minus = self.take("-");
        if !minus {
            self.take("+");
        }
        self.skip();
        let (digits, rest) = self.rest.split_at(number_length(self.rest));
        self.rest = rest;
        number_value(&digits.replace('_', ""), minus)
    }

    /// Reads one string, or several adjacent ones, which Python concatenates.
    fn strings(&mut self) -> Option<Value> {
        let mut text = String::new();
        loop {
            self.string(&mut text)?;
            if !matches!(self.peek(), Some('\'' | '"' | 'r' | 'R' | 'u' | 'U')) {
                return Some(Value::String(text));
            }
        }
    }

    fn string(&mut self, out: &mut String) -> Option<()> {
        let raw = self.rest.starts_with(['r', 'R']);
        let body = self.rest.strip_prefix(['r', 'R', 'u', 'U']).unwrap_or(self.rest);
        // Triple marks come first, because they begin with a single one.
        let quote = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quote| body.starts_with(quote))?;
        let mut rest = &body[quote.len()..];
        loop {
            if let Some(after) = rest.strip_prefix(quote) {
                self.rest = after;
                return Some(());
            }
            let c = rest.chars().next()?;
            rest = &rest[c.len_utf8()..];
            match c {
                '\\' if raw => {
                    let escaped = rest.chars().next()?;
                    // A raw string keeps the backslash, which still protects a quotation mark.
                    out.extend(['\\', escaped]);
                    rest = &rest[escaped.len_utf8()..];
                }
                '\\' => rest = escape(rest, out)?,
                '\n' if quote.len() == 1 => return None,
                c => out.push(c),
            }
        }
    }
}

/// Returns the length of the number without a sign at the beginning of `text`, or of what looks like one.
fn number_length(text: &str) -> usize {
    let mut end = 0;
    for (place, c) in text.char_indices() {
        let exponent = matches!(c, '+' | '-') && text[..place].ends_with(['e', 'E']);
        if !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || exponent) {
            break;
        }
        end = place + c.len_utf8();
    }
    end
}

/// Returns the value of the digits of a number. `None` if Python would refuse them.
fn number_value(digits: &str, minus: bool) -> Option<Value> {
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        // Python refuses `012`, but reads `00`.
        if digits.len() > 1 && digits.starts_with('0') && !digits.trim_matches('0').is_empty() {
            return None;
        }
        let signed = if minus { format!("-{digits}") } else { digits.to_owned() };
        // An integer beyond 64 bits is read as a float below.
        if let Ok(number) = signed.parse::<i64>() {
            return Some(Value::from(number));
        }
    }
    // Rust reads `inf` and `nan` as floats, but they are no literals.
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let value: f64 = digits.parse().ok()?;
    Number::from_f64(if minus { -value } else { value }).map(Value::Number)
}

/// Decodes the escape after a backslash, and returns the text behind the escape.
fn escape<'a>(text: &'a str, out: &mut String) -> Option<&'a str> {
    let c = text.chars().next()?;
    let rest = &text[c.len_utf8()..];
    let plain = match c {
        '\n' => return Some(rest),
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'v' => '\x0b',
        '\\' | '\'' | '"' => c,
        'x' => return code(rest, 2, out),
        'u' => return unit(rest, out),
        'U' => return code(rest, 8, out),
        '0'..='7' => {
            let end = text.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            out.push(char::from_u32(u32::from_str_radix(&text[..end], 8).ok()?)?);
            return Some(&text[end..]);
        }
        // Character names would need Unicode's name table.
        'N' => return None,
        other => {
            out.extend(['\\', other]);
            return Some(rest);
        }
    };
    out.push(plain);
    Some(rest)
}

fn hex(text: &str, digits: usize) -> Option<(u32, &str)> {
    let head = text.get(..digits).filter(|head| head.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((u32::from_str_radix(head, 16).ok()?, &text[digits..]))
}

fn code<'a>(text: &'a str, digits: usize, out: &mut String) -> Option<&'a str> {
    let (value, rest) = hex(text, digits)?;
    if value > u32::from(char::MAX) {
        return None;
    }
    out.push(char::from_u32(value).unwrap_or(LONE));
    Some(rest)
}

/// Decodes a `\u` escape. Two that form a surrogate pair are read as one character, as in JSON: Python would keep the
/// halves, which cannot be encoded as UTF-8.
fn unit<'a>(text: &'a str, out: &mut String) -> Option<&'a str> {
    let (high, rest) = hex(text, 4)?;
    if (0xd800..0xdc00).contains(&high)
        && let Some((low @ 0xdc00..0xe000, after)) = rest.strip_prefix("\\u").and_then(|rest| hex(rest, 4))
    {
        out.push(char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).unwrap_or(LONE));
        return Some(after);
    }
    out.push(char::from_u32(high).unwrap_or(LONE));
    Some(rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        for (text, expected) in [
            ("{'fact': [['a', \"b\", 'c']]}", json!({"fact": [["a", "b", "c"]]})),
            ("('a',)", json!(["a"])),
            ("('a')", json!("a")),
            ("()", json!([])),
            ("[1, -2, 3.5, 1e3, .5, True, False, None,]", json!([1, -2, 3.5, 1000.0, 0.5, true, false, null])),
            ("['a' \"b\"\n'c']", json!(["abc"])),
            (r"'\x41\u00e9\n\'\/'", json!("Aé\n'\\/")),
            (r"'\ud83d\ude00'", json!("😀")),
            (r"r'\n'", json!("\\n")),
            ("'''two\nlines'''", json!("two\nlines")),
            (r"'\101\0'", json!("A\0")),
            ("{1: 2}", json!({"1": 2})),
            ("[- 1, +2, 1e-3]", json!([-1, 2, 0.001])),
        ] {
            assert_eq!(literal(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_python_refuses_is_refused() {
        for text in [
            "", "[1 2]", "[,]", "['a'", "'a\nb'", "{'a'}", "null", "true", "[1]]", "'a", "{[1]: 2}", "012", "x", "--1",
            "+-1", "- -1", "-", "-True",
        ] {
            assert_eq!(literal(text), None, "{text}");
        }
        assert_eq!(literal(&"[".repeat(100_000)), None);
    }
}
