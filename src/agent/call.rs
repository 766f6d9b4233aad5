//! Calls of tools in a reply, found while it is written.
//!
//! They are read as Hermes and Qwen write them: a JSON object with `name` and `arguments`, between two tags. A call is told
//! once it is whole. What is no call of a tool that there is stays text, tags included: other JSON, other names, a call
//! that breaks off. White space between calls and around them means nothing.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::scanner::overlap;

/// What opens a call.
pub(crate) const OPEN: &str = "<tool_call>";

/// What closes it; not within a string of its JSON.
pub(crate) const CLOSE: &str = "</tool_call>";

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text, and where it begins, in bytes of the reply.
    Text(String, usize),
    /// A call.
    Call(Call),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// The tool's name.
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: String,
}

/// An incremental reader of one reply.
#[derive(Debug, Clone)]
pub(crate) struct CallScanner {
    /// The tools that there are.
    names: Vec<String>,
    held: String,
    /// Where in the reply what is held begins.
    position: usize,
    /// The call that what is held begins with, but for white space.
    open: Option<Open>,
    /// Whether there is only white space since the last call.
    called: bool,
}

/// A call on its way; places are in what is held.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Where its JSON begins.
    body: usize,
    /// How far it was read.
    read: usize,
    /// Whether that is inside a string, and behind a backslash there.
    quoted: bool,
    escaped: bool,
}

/// A call as models write it.
#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl CallScanner {
    /// At the beginning of a reply by somebody who may call the tools with these names.
    pub(crate) fn new(names: Vec<String>) -> CallScanner {
        CallScanner { names, held: String::new(), position: 0, open: None, called: false }
    }

    /// Reads on, and gives the parts that are certain now.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
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

    /// Ends the reply. Where it `ended` by itself, a whole call needs no closing tag.
    pub(crate) fn finish(&mut self, ended: bool) -> Vec<Part> {
        let last = self.open.filter(|_| ended).and_then(|open| self.call(&self.held[open.body..]));
        if let Some(call) = last {
            self.held.clear();
            return vec![Part::Call(call)];
        }
        let mut parts = Vec::new();
        if !self.called || !self.held.trim().is_empty() {
            self.tell(self.held.len(), &mut parts);
        }
        parts
    }

    /// Tells the text before the next call, and says whether there is one.
    fn outside(&mut self, parts: &mut Vec<Part>) -> bool {
        let opening = self.held.find(OPEN);
        let certain = opening.unwrap_or_else(|| self.held.len() - overlap(&self.held, OPEN));
        self.tell(self.held[..certain].trim_end().len(), parts);
        self.open = self.held.find(OPEN).map(|at| {
            let body = at + OPEN.len();
            Open { body, read: body, quoted: false, escaped: false }
        });
        self.open.is_some()
    }

    /// Reads a call as far as it goes, and says whether it is over.
    fn inside(&mut self, mut open: Open, parts: &mut Vec<Part>) -> bool {
        while let Some(&byte) = self.held.as_bytes().get(open.read) {
            let rest = &self.held.as_bytes()[open.read..];
            match byte {
                // No string of JSON goes beyond its line: one that seems to has lost a quote, which is not to take the calls
                // that follow along.
                b'\n' => (open.quoted, open.escaped) = (false, false),
                _ if open.escaped => open.escaped = false,
                b'\\' if open.quoted => open.escaped = true,
                b'"' => open.quoted = !open.quoted,
                b'<' if !open.quoted && rest.starts_with(CLOSE.as_bytes()) => {
                    self.close(open, parts);
                    return true;
                }
                b'<' if !open.quoted && CLOSE.as_bytes().starts_with(rest) => break,
                _ => {}
            }
            open.read += 1;
        }
        self.open = Some(open);
        false
    }

    /// Ends a call at its closing tag.
    fn close(&mut self, open: Open, parts: &mut Vec<Part>) {
        let end = open.read + CLOSE.len();
        self.open = None;
        let Some(call) = self.call(&self.held[open.body..open.read]) else { return self.tell(end, parts) };
        parts.push(Part::Call(call));
        self.skip(end);
        self.called = true;
    }

    fn call(&self, body: &str) -> Option<Call> {
        let Written { name, arguments } = serde_json::from_str(body).ok()?;
        let arguments = Value::Object(arguments).to_string();
        self.names.contains(&name).then_some(Call { name, arguments })
    }

    /// Tells so much of what is held.
    fn tell(&mut self, bytes: usize, parts: &mut Vec<Part>) {
        let blank = self.held.len() - self.held.trim_start().len();
        let blank = if self.called { blank.min(bytes) } else { 0 };
        self.skip(blank);
        if bytes == blank {
            return;
        }
        self.called = false;
        parts.push(Part::Text(self.held[..bytes - blank].to_owned(), self.position));
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

    /// What is read of a reply that comes in pieces of so many characters, neighbouring texts joined.
    fn read(reply: &str, size: usize, ended: bool) -> Vec<Part> {
        let mut scanner = CallScanner::new(vec!["look".to_owned()]);
        let letters: Vec<char> = reply.chars().collect();
        let mut parts: Vec<Part> =
            letters.chunks(size).flat_map(|piece| scanner.push(&piece.iter().collect::<String>())).collect();
        parts.extend(scanner.finish(ended));
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            if let Part::Text(text, start) = &part {
                assert_eq!(&reply[*start..start + text.len()], text, "{reply}");
            }
            match (joined.last_mut(), part) {
                (Some(Part::Text(before, _)), Part::Text(text, _)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn call(arguments: &str) -> Part {
        Part::Call(Call { name: "look".to_owned(), arguments: arguments.to_owned() })
    }

    fn text(text: &str, start: usize) -> Part {
        Part::Text(text.to_owned(), start)
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
    fn what_is_no_call_of_a_tool_stays_text() {
        for reply in [
            "<tool_call>{\"name\": \"look\", arguments}</tool_call>",
            "<tool_call>{\"name\": \"leap\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"look\", \"arguments\": [1]}</tool_call>",
            "a <tool_call>[]</tool_call> \n<tool_call>",
            "<tool_call>{\"name\": \"look\", \"argu",
        ] {
            for size in [1, 5, 1000] {
                assert_eq!(read(reply, size, true), [text(reply, 0)], "{reply} by {size}");
            }
        }
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
