//! Headers that protocols write before each passage or triple of their evidence.

use super::folded_text::{FoldedText, is_control};

/// Header of an item of evidence, as parts that may be separated by white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvidenceHeader {
    /// Parts in lower case. [`EvidenceHeader::NUMBER`] stands for a number.
    pub parts: &'static [&'static str],
    /// Part that is replaced in retrieved text: a single punctuation mark.
    pub mark: usize,
    /// If `true`, the header counts only at the beginning of a line.
    pub begins_line: bool,
}

impl EvidenceHeader {
    /// Part that stands for a number.
    pub const NUMBER: &'static str = "#";

    /// Returns the position of the mark of the header that begins at `at`. `None` if none begins there.
    pub(super) fn mark_at(&self, text: &FoldedText, at: usize) -> Option<usize> {
        let first = text.get(at)?;
        if first.is_whitespace() || is_control(first) || !self.may_begin(text, at, first) {
            return None;
        }
        let mut at = at;
        let mut mark = None;
        // All parts of a header that must begin a line are on the same line.
        let between = |c: char| c.is_whitespace() && !(self.begins_line && breaks(c));
        for (number, part) in self.parts.iter().enumerate() {
            at = text.skip(at, between);
            if number == self.mark {
                mark = Some(at);
            }
            at = if *part == EvidenceHeader::NUMBER {
                let end = text.skip(at, char::is_numeric);
                text.get(at).filter(|first| first.is_numeric()).map(|_| end)?
            } else {
                text.after(at, part)?
            };
        }
        mark
    }

    /// Returns `true` if a header may begin at `at`: not within a word, and at the beginning of a line if it has to.
    fn may_begin(&self, text: &FoldedText, at: usize, first: char) -> bool {
        if self.begins_line {
            let blank = |c: &char| !breaks(*c) && (c.is_whitespace() || is_control(*c));
            let before = (0..at).rev().find_map(|at| text.get(at).filter(|c| !blank(c)));
            return before.is_none_or(breaks);
        }
        let before = at.checked_sub(1).and_then(|at| text.get(at));
        // Only ASCII continues a word: the set of other letters depends on the reader's version of Unicode.
        !(first.is_ascii_alphanumeric() && before.is_some_and(|c| c.is_ascii_alphanumeric()))
    }
}

/// Returns `true` if the character ends a line.
pub(super) fn breaks(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}
