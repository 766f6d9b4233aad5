//! Scanner for tool calls in a reply, while it is written.
//!
//! Calls have the form of Hermes and Qwen: a JSON object with `name` and `arguments` between two tags. A call is
//! reported once it is complete. Anything that is not a call of a known tool stays text, tags included: other JSON,
//! other names, an incomplete call. White space between and around calls is dropped.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::scanner::overlap;
use super::segment::{SegmentKind, Tags};

/// Opening tag of a call.
pub const OPEN: &str = "<tool_call>";

/// Closing tag of a call. It is ignored inside a JSON string.
pub const CLOSE: &str = "</tool_call>";

/// Maximum nesting of the arguments of a call, as of the bodies of requests. A client could not send deeper ones back,
/// and the parser could not read them in a stored record.
const MAX_DEPTH: usize = 64;

/// Tags of tools in prompts, which no text from outside may spell while tools are offered.
pub(super) static TOOL_TAGS: Tags = Tags {
    outside: SegmentKind::Text,
    begins: SegmentKind::Text,
    pairs: &[],
    names: &["tool_call", "tool_response", "tools"],
    labels: &[],
    headers: &[],
    trims: false,
};

/// A segment of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplySegment {
    /// Text, with its position in the reply in bytes.
    Text(String, usize),
    /// A tool call.
    Call(ToolCallText),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallText {
    /// Name of the tool.
    pub name: String,
    /// Arguments: a JSON object as the policy wrote it, without white space between its tokens.
    pub arguments: String,
}

impl ToolCallText {
    /// Parses the JSON of a call. `None` if it is no call, or one whose arguments are nested too deep.
    pub(super) fn of_json(json: &str) -> Option<ToolCallText> {
        let CallJson { name, arguments } = serde_json::from_str(json).ok()?;
        if is_deeper(&Value::Object(arguments), MAX_DEPTH) {
            return None;
        }
        let WrittenArguments { arguments } = serde_json::from_str(json).ok()?;
        // The text is kept, because a parsed integer of more than 64 bits is rounded.
        let arguments = arguments.map_or_else(|| "{}".to_owned(), |written| compact(written.get()));
        Some(ToolCallText { name, arguments })
    }
}

/// Removes the white space between the tokens of a JSON text.
fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut quoted = false;
    let mut escaped = false;
    for c in json.chars() {
        if quoted || !c.is_ascii_whitespace() {
            out.push(c);
        }
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    out
}

/// Returns `true` if arrays and objects in a value are nested deeper than `levels`.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1)),
        _ => false,
    }
}

/// Incremental scanner of one reply.
#[derive(Debug, Clone)]
pub struct CallScanner {
    /// Names of the known tools.
    names: Vec<String>,
    held: String,
    /// Position of `held` in the reply, in bytes.
    position: usize,
    /// The incomplete call at the beginning of `held`, after optional white space.
    open: Option<OpenCall>,
    /// If `true`, only white space followed the last call.
    called: bool,
}

/// An incomplete call. Positions are in `held`.
#[derive(Debug, Clone, Copy)]
struct OpenCall {
    /// Position of its JSON.
    body: usize,
    /// Position up to which it was read.
    read: usize,
    /// State at that position: inside a JSON string, and after a backslash in it.
    quoted: bool,
    escaped: bool,
}

/// JSON form of a call.
#[derive(Deserialize)]
struct CallJson {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// The arguments of a call as text.
#[derive(Deserialize)]
struct WrittenArguments<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl CallScanner {
    /// Creates a scanner for the beginning of a reply. `names` are the tools that may be called.
    pub fn new(names: Vec<String>) -> CallScanner {
        CallScanner { names, held: String::new(), position: 0, open: None, called: false }
    }

    /// Reads more of the reply and returns the segments that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplySegment> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            let goes_on = match self.open {
                None => self.outside(&mut parts),
                Some(open) => self.inside(open, &mut parts),
            };
            if !goes_on {
                return parts;
            }
        }
    }

    /// Ends the reply. If `ended` is `true`, the model ended it by itself, and a complete call needs no closing tag.
    pub fn finish(&mut self, ended: bool) -> Vec<ReplySegment> {
        let last = self.open.filter(|_| ended).and_then(|open| self.call(&self.held[open.body..]));
        if let Some(call) = last {
            self.held.clear();
            return vec![ReplySegment::Call(call)];
        }
        let mut parts = Vec::new();
        if !self.called || !self.held.trim().is_empty() {
            self.tell(self.held.len(), &mut parts);
        }
        parts
    }

    /// Emits the text before the next call. Returns `true` if there is a call.
    fn outside(&mut self, parts: &mut Vec<ReplySegment>) -> bool {
        let opening = self.held.find(OPEN);
        let certain = opening.unwrap_or_else(|| self.held.len() - overlap(&self.held, OPEN));
        // White space before a call is held back: the call swallows it, unless the text turns out to be none.
        self.tell(self.held[..certain].trim_end().len(), parts);
        // Searched again, because `tell` has moved the text.
        self.open = self.held.find(OPEN).map(|at| {
            let body = at + OPEN.len();
            OpenCall { body, read: body, quoted: false, escaped: false }
        });
        self.open.is_some()
    }

    /// Reads more of an open call. Returns `true` if the call has ended.
    fn inside(&mut self, mut open: OpenCall, parts: &mut Vec<ReplySegment>) -> bool {
        while let Some(&byte) = self.held.as_bytes().get(open.read) {
            let rest = &self.held.as_bytes()[open.read..];
            match byte {
                // A JSON string never spans lines: one that seems to has lost a quote, and must not swallow the calls
                // that follow.
                b'\n' => (open.quoted, open.escaped) = (false, false),
                _ if open.escaped => open.escaped = false,
                b'\\' if open.quoted => open.escaped = true,
                b'"' => open.quoted = !open.quoted,
                b'<' if !open.quoted && rest.starts_with(CLOSE.as_bytes()) => {
                    self.close(open, parts);
                    return true;
                }
                // The rest of the closing tag may still come.
                b'<' if !open.quoted && CLOSE.as_bytes().starts_with(rest) => break,
                _ => {}
            }
            open.read += 1;
        }
        self.open = Some(open);
        false
    }

    /// Ends a call at its closing tag.
    fn close(&mut self, open: OpenCall, parts: &mut Vec<ReplySegment>) {
        let end = open.read + CLOSE.len();
        self.open = None;
        let Some(call) = self.call(&self.held[open.body..open.read]) else { return self.tell(end, parts) };
        parts.push(ReplySegment::Call(call));
        self.skip(end);
        self.called = true;
    }

    fn call(&self, body: &str) -> Option<ToolCallText> {
        ToolCallText::of_json(body).filter(|call| self.names.contains(&call.name))
    }

    /// Emits `bytes` of the held text.
    fn tell(&mut self, bytes: usize, parts: &mut Vec<ReplySegment>) {
        let blank = self.held.len() - self.held.trim_start().len();
        let blank = if self.called { blank.min(bytes) } else { 0 };
        self.skip(blank);
        if bytes == blank {
            return;
        }
        self.called = false;
        parts.push(ReplySegment::Text(self.held[..bytes - blank].to_owned(), self.position));
        self.skip(bytes - blank);
    }

    fn skip(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.position += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a reply in pieces of `size` characters and joins adjacent texts.
    fn read(reply: &str, size: usize, ended: bool) -> Vec<ReplySegment> {
        let mut scanner = CallScanner::new(vec!["look".to_owned()]);
        let letters: Vec<char> = reply.chars().collect();
        let mut parts: Vec<ReplySegment> =
            letters.chunks(size).flat_map(|piece| scanner.push(&piece.iter().collect::<String>())).collect();
        parts.extend(scanner.finish(ended));
        let mut joined: Vec<ReplySegment> = Vec::new();
        for part in parts {
            if let ReplySegment::Text(text, start) = &part {
                assert_eq!(&reply[*start..start + text.len()], text, "{reply}");
            }
            match (joined.last_mut(), part) {
                (Some(ReplySegment::Text(before, _)), ReplySegment::Text(text, _)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn call(arguments: &str) -> ReplySegment {
        ReplySegment::Call(ToolCallText { name: "look".to_owned(), arguments: arguments.to_owned() })
    }

    fn text(text: &str, start: usize) -> ReplySegment {
        ReplySegment::Text(text.to_owned(), start)
    }

    #[test]
    fn calls_are_read_in_whatever_pieces_they_come() {
        const BONN: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"Bonn\"}}\n</tool_call>";
        let bonn = || call(r#"{"at":"Bonn"}"#);
        for (reply, parts) in [
            (BONN.to_owned(), vec![bonn()]),
            (format!("Let me see. \n{BONN}\n{BONN}\n"), vec![text("Let me see.", 0), bonn(), bonn()]),
            (format!("{BONN}\n Done. \n"), vec![bonn(), text("Done. \n", BONN.len() + 2)]),
            ("<tool_call>{\"name\":\"look\"}</tool_call>".to_owned(), vec![call("{}")]),
            (
                r#"<tool_call>{"name":"look","arguments":{"a":"\"</tool_call>"}}</tool_call>"#.to_owned(),
                vec![call(r#"{"a":"\"</tool_call>"}"#)],
            ),
            ("  no call < at <tool all \n".to_owned(), vec![text("  no call < at <tool all \n", 0)]),
            (" \n".to_owned(), vec![text(" \n", 0)]),
        ] {
            for size in [1, 2, 7, 1000] {
                assert_eq!(read(&reply, size, true), parts, "{reply} by {size}");
            }
        }
    }

    #[test]
    fn arguments_keep_their_numbers_and_strings() {
        let written = r#"{ "id": 123456789012345678901234, "x": [ -1.50, 2 ] , "q": "a\\ \" b " }"#;
        let kept = r#"{"id":123456789012345678901234,"x":[-1.50,2],"q":"a\\ \" b "}"#;
        let reply = format!("<tool_call>{{\"name\": \"look\", \"arguments\": {written}}}</tool_call>");
        assert_eq!(read(&reply, 3, true), [call(kept)]);
    }

    #[test]
    fn what_is_no_call_of_a_tool_stays_text() {
        for reply in [
            "<tool_call>{\"name\": \"look\", arguments}</tool_call>",
            "<tool_call>{\"name\": \"leap\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"look\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"look\", \"arguments\": null}</tool_call>",
            "a <tool_call>[]</tool_call> \n<tool_call>",
            "<tool_call>{\"name\": \"look\", \"argu",
        ] {
            for size in [1, 5, 1000] {
                assert_eq!(read(reply, size, true), [text(reply, 0)], "{reply} by {size}");
            }
        }
    }

    #[test]
    fn arguments_that_are_nested_too_deep_make_no_call() {
        let arguments = |lists: usize| format!("{{\"a\":{}{}}}", "[".repeat(lists), "]".repeat(lists));
        let reply = |arguments: &str| format!("<tool_call>{{\"name\":\"look\",\"arguments\":{arguments}}}</tool_call>");
        let deepest = arguments(63);
        assert_eq!(read(&reply(&deepest), 1000, true), [call(&deepest)]);
        let deeper = reply(&arguments(64));
        assert_eq!(read(&deeper, 1000, true), [text(&deeper, 0)]);
    }

    #[test]
    fn a_quote_too_many_ends_with_its_line() {
        const BROKEN: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"q\": \"5\" tall\"}}\n</tool_call>";
        let reply = format!("{BROKEN}\n<tool_call>\n{{\"name\": \"look\", \"arguments\": {{}}}}\n</tool_call>");
        for size in [1, 5, 1000] {
            assert_eq!(read(&reply, size, true), [text(BROKEN, 0), call("{}")], "by {size}");
        }
    }

    #[test]
    fn a_whole_call_needs_no_closing_tag_where_the_reply_ended() {
        let reply = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n";
        assert_eq!(read(reply, 3, true), [call("{}")]);
        assert_eq!(read(reply, 3, false), [text(reply, 0)]);
    }
}
