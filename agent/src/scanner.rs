//! Scanner for tagged text, while it is being written.
//!
//! The result does not depend on how the text is split: a tag that counts is never shown, everything else is shown once
//! and in order, and text that may still become a tag is held back. Inside a query only its closing tag counts, because
//! a query is executed as written; inside an answer only its closing tag ends it and other tags are dropped; elsewhere
//! the tag opened last determines the kind. A label counts only at the beginning of a line, and the end of a label only
//! after that label. If text outside all tags is the answer, no tag counts once the answer has begun with a visible
//! character: models think first, and an answer may quote tags, also in the arguments of a call.

use super::segment::{SegmentKind, Tags, TurnSegment};

/// A segment of a turn, without tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPiece {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Text; never empty.
    pub text: String,
    /// Start, in bytes of the text pushed so far.
    pub start: usize,
}

impl TextPiece {
    /// Returns its end.
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Incremental scanner of one turn.
#[derive(Debug, Clone)]
pub struct Scanner {
    tags: &'static Tags,
    kind: SegmentKind,
    held: String,
    position: usize,
    answered: bool,
    /// If `true`, only blanks precede the held text in its line.
    fresh: bool,
    /// If `true`, a visible character of an answer outside all tags was emitted.
    said: bool,
}

impl Scanner {
    /// Creates a scanner for the beginning of a turn.
    pub fn new(tags: &'static Tags) -> Scanner {
        Scanner::inside(tags, tags.begins)
    }

    /// Creates a scanner for a turn that begins inside `kind`. If text outside all tags is the answer, the answer has
    /// begun.
    pub fn inside(tags: &'static Tags, kind: SegmentKind) -> Scanner {
        let answered = kind == SegmentKind::Answer || tags.outside == SegmentKind::Answer;
        Scanner { tags, kind, held: String::new(), position: 0, answered, fresh: true, said: false }
    }

    /// Returns the kind of text being written.
    pub fn writing(&self) -> SegmentKind {
        self.kind
    }

    /// Returns `true` if an answer has begun.
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// Reads more text. Appends the pieces that are now certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<TextPiece>) {
        self.held.push_str(text);
        // The set of tags that count changes with every tag, so they are found one at a time.
        while let Some((at, tag)) = self.next_tag() {
            self.emit(at, out);
            self.skip(tag.len());
            self.turn_to(tag);
        }
        self.emit(self.held.len() - self.doubtful(), out);
    }

    /// Ends the text: held-back text is no tag.
    pub fn finish(&mut self, out: &mut Vec<TextPiece>) {
        self.emit(self.held.len(), out);
    }

    /// Ends a text that was cut off. An answer is not shown with a part of a tag at its end; other text is.
    pub fn cut(&mut self, out: &mut Vec<TextPiece>) {
        // A label is made of ordinary words, which an answer may end with.
        let tags = self.known().filter(|tag| !tag.ends_with(':'));
        let begun = if self.kind == SegmentKind::Answer { self.begun(tags) } else { 0 };
        self.emit(self.held.len() - begun, out);
        self.skip(begun);
    }

    /// Returns the tags that count in the current state.
    fn known(&self) -> impl Iterator<Item = &'static str> + use<> {
        let kind = self.kind;
        // A query is searched for as it is written, so only its own end counts in it.
        let inside_query = self.kind == SegmentKind::Query;
        let pairs = self.tags.pairs.iter();
        pairs.flat_map(move |tag| {
            let open = (!inside_query).then_some(tag.open);
            let closes =
                if tag.is_label() { tag.kind == kind } else { !inside_query || tag.kind == SegmentKind::Query };
            let close = (closes && !tag.close.is_empty()).then_some(tag.close);
            [open, close].into_iter().flatten()
        })
    }

    fn next_tag(&self) -> Option<(usize, &'static str)> {
        let first = |tag: &str| {
            let counts = |at: &usize| self.takes_tags(*at) && (!tag.ends_with(':') || self.begins_line(*at));
            self.held.match_indices(tag).map(|(at, _)| at).find(counts)
        };
        self.known().filter_map(|tag| Some((first(tag)?, tag))).min_by_key(|(at, _)| *at)
    }

    /// Returns `true` if an answer outside all tags is being written.
    fn is_bare(&self) -> bool {
        self.kind == SegmentKind::Answer && self.tags.outside == SegmentKind::Answer
    }

    /// Returns `true` if a tag counts at this position of the held text.
    fn takes_tags(&self, at: usize) -> bool {
        !self.is_bare() || (!self.said && self.held[..at].trim().is_empty())
    }

    /// Returns `true` if only blanks precede this position of the held text in its line.
    fn begins_line(&self, at: usize) -> bool {
        is_fresh(&self.held[..at], self.fresh)
    }

    /// Returns the number of bytes at the end of the held text that may begin a tag.
    fn doubtful(&self) -> usize {
        self.begun(self.known())
    }

    /// Returns the number of bytes at the end of the held text that may begin one of these tags.
    fn begun(&self, tags: impl Iterator<Item = &'static str>) -> usize {
        let begun = tags.map(|tag| overlap(&self.held, tag));
        begun.filter(|length| self.takes_tags(self.held.len() - length)).max().unwrap_or(0)
    }

    fn turn_to(&mut self, tag: &str) {
        // An answer goes on until its own end, whatever tags the policy writes in it.
        let inside_answer = self.kind == SegmentKind::Answer && self.kind != self.tags.outside;
        for pair in self.tags.pairs {
            if pair.close == tag && pair.kind == self.kind {
                self.kind = self.tags.outside;
            } else if pair.open == tag && !inside_answer {
                self.kind = if pair.kind == SegmentKind::Text { self.tags.outside } else { pair.kind };
                self.answered |= self.kind == SegmentKind::Answer;
            }
        }
    }

    fn emit(&mut self, bytes: usize, out: &mut Vec<TextPiece>) {
        if bytes == 0 {
            return;
        }
        let start = self.position;
        self.fresh = self.begins_line(bytes);
        let text: String = self.held.drain(..bytes).collect();
        self.said |= self.is_bare() && !text.trim().is_empty();
        self.position += bytes;
        match out.last_mut() {
            Some(last) if last.kind == self.kind && last.end() == start => last.text.push_str(&text),
            _ => out.push(TextPiece { kind: self.kind, text, start }),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.fresh = self.begins_line(bytes);
        self.held.drain(..bytes);
        self.position += bytes;
    }
}

/// Returns `true` if the last line of `text` contains only blanks; `before` is the result for the text before it.
fn is_fresh(text: &str, before: bool) -> bool {
    let line = text.rfind('\n').map(|at| &text[at + 1..]);
    (before || line.is_some()) && line.unwrap_or(text).chars().all(is_blank)
}

/// Returns `true` for characters allowed before a label in its line.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of `tag`.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    // Bytes are compared, because a suffix of this length may begin within a character.
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| text.as_bytes()[text.len() - n..] == tag.as_bytes()[..n]).unwrap_or(0)
}

/// Returns the segments of a whole turn.
pub(super) fn spans(tags: &'static Tags, turn: &str) -> Vec<TurnSegment> {
    let mut scanner = Scanner::new(tags);
    let mut pieces = Vec::new();
    scanner.push(turn, &mut pieces);
    scanner.finish(&mut pieces);
    pieces.into_iter().map(|piece| TurnSegment { kind: piece.kind, range: piece.start..piece.end() }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::segment::Tag;
    use super::super::tag::TAGS;
    use super::*;

    static PLAIN: Tags = Tags {
        outside: SegmentKind::Answer,
        begins: SegmentKind::Answer,
        pairs: &[Tag { kind: SegmentKind::Think, open: "<think>", close: "</think>" }],
        names: &[],
        labels: &[],
        headers: &[],
        trims: false,
    };

    static LABELED: Tags = Tags {
        outside: SegmentKind::Think,
        begins: SegmentKind::Think,
        pairs: &[
            Tag { kind: SegmentKind::Query, open: "Ask:", close: "\n" },
            Tag { kind: SegmentKind::Answer, open: "Say:", close: "" },
            Tag { kind: SegmentKind::Text, open: "<r>", close: "</r>" },
        ],
        names: &["r"],
        labels: &["Ask", "Say"],
        headers: &[],
        trims: true,
    };

    /// Reference implementation: the rules of the module on the whole text, character by character.
    fn oracle(tags: &'static Tags, text: &str) -> Vec<(SegmentKind, String)> {
        let mut kind = tags.begins;
        let mut at = 0;
        let mut out = Vec::<(SegmentKind, String)>::new();
        'text: while at < text.len() {
            let bare = tags.outside == SegmentKind::Answer && kind == SegmentKind::Answer;
            let begun = out.iter().any(|(of, said)| *of == SegmentKind::Answer && !said.trim().is_empty());
            for pair in tags.pairs.iter().filter(|_| !(bare && begun)) {
                for (tag, opens) in [(pair.open, true), (pair.close, false)] {
                    let line = text[..at].rsplit('\n').next().unwrap_or_default();
                    let counts = match (opens, pair.is_label()) {
                        (true, false) => kind != SegmentKind::Query,
                        (true, true) => kind != SegmentKind::Query && line.chars().all(|c| c == ' '),
                        (false, false) => kind != SegmentKind::Query || pair.kind == SegmentKind::Query,
                        (false, true) => kind == pair.kind && !tag.is_empty(),
                    };
                    if !counts || !text[at..].starts_with(tag) {
                        continue;
                    }
                    at += tag.len();
                    let inside_answer = kind == SegmentKind::Answer && tags.outside != SegmentKind::Answer;
                    kind = match (opens, pair.kind) {
                        (true, _) if inside_answer => kind,
                        (true, SegmentKind::Text) => tags.outside,
                        (true, opened) => opened,
                        (false, closed) if closed == kind => tags.outside,
                        (false, _) => kind,
                    };
                    continue 'text;
                }
            }
            let c = text[at..].chars().next().unwrap_or_default();
            at += c.len_utf8();
            match out.last_mut() {
                Some((last, said)) if *last == kind => said.push(c),
                _ => out.push((kind, c.to_string())),
            }
        }
        out
    }

    fn joined(pieces: &[TextPiece]) -> Vec<(SegmentKind, String)> {
        let mut out: Vec<(SegmentKind, String)> = Vec::new();
        for piece in pieces {
            match out.last_mut() {
                Some((kind, text)) if *kind == piece.kind => text.push_str(&piece.text),
                _ => out.push((piece.kind, piece.text.clone())),
            }
        }
        out
    }

    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("<think>"),
            Just("</think>"),
            Just("<search>"),
            Just("</search>"),
            Just("<answer>"),
            Just("</answer>"),
            Just("<information>"),
            Just("</information>"),
            Just("<"),
            Just("</"),
            Just("</sea"),
            Just("<ans"),
            Just(">"),
            Just("h>"),
            Just("a b"),
            Just("\u{e9}\u{1f600}"),
            Just("\n"),
            Just("<<search>>"),
            Just(" "),
            Just("Ask:"),
            Just("Say:"),
            Just("Sa"),
            Just("<r>"),
        ];
        prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// For any text and split, no tag is shown, no text is lost, and positions are those in the text.
        #[test]
        fn any_pieces_read_like_the_whole(text in text(), cuts in prop::collection::vec(1usize..9, 1..40), which in 0usize..3) {
            let tags = [&TAGS, &PLAIN, &LABELED][which];
            let mut scanner = Scanner::new(tags);
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            let mut cuts = cuts.into_iter().cycle();
            while !rest.is_empty() {
                let wanted = cuts.next().unwrap_or(1);
                let end = (wanted.min(rest.len())..=rest.len()).find(|&n| rest.is_char_boundary(n)).unwrap_or(rest.len());
                let mut now = Vec::new();
                scanner.push(&rest[..end], &mut now);
                pieces.extend(now);
                rest = &rest[end..];
            }
            scanner.finish(&mut pieces);
            prop_assert_eq!(joined(&pieces), oracle(tags, &text));
            for piece in &pieces {
                prop_assert_eq!(&text[piece.start..piece.end()], &piece.text);
            }
        }
    }

    #[test]
    fn a_possible_tag_is_held_back_and_nothing_else() {
        let mut scanner = Scanner::new(&TAGS);
        let mut out = Vec::new();
        scanner.push("<think>a < b <", &mut out);
        assert_eq!(joined(&out), [(SegmentKind::Think, "a < b ".to_owned())]);
        scanner.push("/thin", &mut out);
        assert_eq!(joined(&out), [(SegmentKind::Think, "a < b ".to_owned())]);
        scanner.push("g>", &mut out);
        assert_eq!(joined(&out), [(SegmentKind::Think, "a < b </thing>".to_owned())]);
        assert_eq!(scanner.writing(), SegmentKind::Think);
    }

    #[test]
    fn an_answer_that_is_cut_off_shows_no_part_of_a_tag() {
        for (tags, text, kind, shown) in [
            (&PLAIN, "\n<thi", SegmentKind::Answer, "\n"),
            (&PLAIN, "a <thi", SegmentKind::Answer, "a <thi"),
            (&PLAIN, "<think>a </thi", SegmentKind::Think, "a </thi"),
            (&TAGS, "<answer>x</ans", SegmentKind::Answer, "x"),
            (&TAGS, "<answer>x<sear", SegmentKind::Answer, "x"),
            (&TAGS, "<think>x<sear", SegmentKind::Think, "x<sear"),
            (&LABELED, "Say: I Sa", SegmentKind::Answer, " I Sa"),
        ] {
            let mut scanner = Scanner::new(tags);
            let mut out = Vec::new();
            scanner.push(text, &mut out);
            scanner.cut(&mut out);
            assert_eq!(joined(&out), [(kind, shown.to_owned())], "{text}");
        }
    }

    #[test]
    fn a_label_counts_at_the_beginning_of_a_line() {
        let mut scanner = Scanner::new(&LABELED);
        let mut out = Vec::new();
        for piece in ["I Say: no\n", " \t", "As", "k: who?", "\nso\nS", "ay: a\nb Ask: c"] {
            scanner.push(piece, &mut out);
        }
        scanner.finish(&mut out);
        let found: Vec<(SegmentKind, &str)> = out.iter().map(|piece| (piece.kind, piece.text.as_str())).collect();
        assert_eq!(joined(&out).len(), 4, "{found:?}");
        let texts: Vec<(SegmentKind, String)> = joined(&out);
        assert_eq!(texts[0], (SegmentKind::Think, "I Say: no\n \t".to_owned()));
        assert_eq!(texts[1], (SegmentKind::Query, " who?".to_owned()));
        assert_eq!(texts[2], (SegmentKind::Think, "so\n".to_owned()));
        assert_eq!(texts[3], (SegmentKind::Answer, " a\nb Ask: c".to_owned()));
    }

    #[test]
    fn an_answer_in_no_tag_may_quote_one_once_it_has_begun() {
        for (turn, parts) in [
            ("a <think>b</think> <th", vec![(SegmentKind::Answer, "a <think>b</think> <th")]),
            (
                "\n<think>a</think>\n<think>b</think> c</think>",
                vec![
                    (SegmentKind::Answer, "\n"),
                    (SegmentKind::Think, "a"),
                    (SegmentKind::Answer, "\n"),
                    (SegmentKind::Think, "b"),
                    (SegmentKind::Answer, " c</think>"),
                ],
            ),
        ] {
            let found: Vec<(SegmentKind, &str)> =
                spans(&PLAIN, turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
            assert_eq!(found, parts);
        }
        let mut scanner = Scanner::new(&PLAIN);
        let mut out = Vec::new();
        scanner.push("a <", &mut out);
        assert_eq!(joined(&out), [(SegmentKind::Answer, "a <".to_owned())], "nothing is held back for a tag");
    }

    #[test]
    fn spans_leave_the_tags_out() {
        let turn = "<think>t</think>\n<answer> x </answer>";
        let found: Vec<(SegmentKind, &str)> =
            spans(&TAGS, turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
        assert_eq!(found, [(SegmentKind::Think, "t"), (SegmentKind::Text, "\n"), (SegmentKind::Answer, " x ")]);
    }
}
