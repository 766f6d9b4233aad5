//! Reader of tool calls in the turns of a policy that searches. Only text outside all tags can contain a call.

use super::scanner::TextPiece;
use super::segment::SegmentKind;
use super::tool_call::{CallScanner, ReplySegment, ToolCallText};

/// Finds the first tool call of a turn while the turn is written. Call syntax inside a tag is ordinary text.
#[derive(Debug)]
pub(super) struct TurnCalls {
    names: Vec<String>,
    /// Kind of the text outside all tags.
    outside: SegmentKind,
    scanner: CallScanner,
    /// End of the last piece as an offset in the turn. A gap before the next piece means that a tag lies between them,
    /// and a call does not extend over a tag.
    end: usize,
    /// Number of bytes read.
    taken: usize,
    /// Number of bytes returned as text, which are the first of those read.
    passed: usize,
    call: Option<ToolCallText>,
}

impl TurnCalls {
    /// Creates a reader for the beginning of a turn. `names` are the tools that may be called.
    pub(super) fn new(names: &[String], outside: SegmentKind) -> TurnCalls {
        let names = names.to_vec();
        let scanner = CallScanner::new(names.clone());
        TurnCalls { names, outside, scanner, end: 0, taken: 0, passed: 0, call: None }
    }

    /// Returns `true` if text of this kind can contain a call.
    pub(super) fn reads(&self, kind: SegmentKind) -> bool {
        kind == self.outside
    }

    /// Returns the call. `None` until it is complete.
    pub(super) fn call(&self) -> Option<&ToolCallText> {
        self.call.as_ref()
    }

    /// Returns the number of bytes read.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the number of read bytes that were returned as text; later ones are held back or belong to the call.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    /// Reads a piece of text outside all tags. Returns the text before the call that is known not to belong to the
    /// call.
    pub(super) fn read(&mut self, piece: &TextPiece) -> String {
        let mut text = String::new();
        if piece.start != self.end {
            text = self.finish();
            self.scanner = CallScanner::new(self.names.clone());
        }
        self.end = piece.end();
        self.taken += piece.text.len();
        let segments = self.scanner.push(&piece.text);
        self.keep(segments, &mut text);
        text
    }

    /// Ends the turn. Returns the text of a call that is incomplete.
    pub(super) fn finish(&mut self) -> String {
        let mut text = String::new();
        let segments = self.scanner.finish(false);
        self.keep(segments, &mut text);
        text
    }

    fn keep(&mut self, segments: Vec<ReplySegment>, text: &mut String) {
        for segment in segments {
            match segment {
                _ if self.call.is_some() => {}
                ReplySegment::Text(more, _) => {
                    self.passed += more.len();
                    text.push_str(&more);
                }
                ReplySegment::Call(call) => self.call = Some(call),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = "<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>";

    fn read(pieces: &[(&str, usize)]) -> (String, bool) {
        let mut calls = TurnCalls::new(&["look".to_owned()], SegmentKind::Text);
        let piece =
            |&(text, start): &(&str, usize)| TextPiece { kind: SegmentKind::Text, text: text.to_owned(), start };
        let mut text: String = pieces.iter().map(|given| calls.read(&piece(given))).collect();
        text += &calls.finish();
        (text, calls.call().is_some())
    }

    #[test]
    fn a_call_ends_the_text_of_its_turn() {
        assert_eq!(read(&[("Hm. ", 0), (CALL, 4), (" and more", 4 + CALL.len())]), ("Hm.".to_owned(), true));
        let (head, tail) = CALL.split_at(5);
        assert_eq!(read(&[(head, 0), (tail, 5)]), (String::new(), true));
        assert_eq!(read(&[(head, 0), (tail, 90)]), (CALL.to_owned(), false), "a tag stands between the two");
        assert_eq!(read(&[(&CALL[..20], 0)]), (CALL[..20].to_owned(), false));
    }
}
