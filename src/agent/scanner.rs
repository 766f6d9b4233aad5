//! Reads tagged text while it is being written.
//!
//! Rules, for any text in any pieces: a tag that counts is never shown, everything else is shown once and in order, and what might
//! still become a tag is held back. Inside a query only its closing tag counts, because a query is executed as it is
//! written; inside an answer only its closing tag ends it and other tags are dropped; elsewhere the tag opened last
//! says what follows. A label counts at the beginning of a line alone, and what closes it only behind it. Where all that
//! stands in no tag is the answer, none counts once that has begun, but for white space: models think first, and what
//! follows may quote, in the arguments of a call as well.

use super::protocol::{Kind, Span, Tags};

/// A piece of a turn, without tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What it belongs to.
    pub kind: Kind,
    /// Its text; never empty.
    pub text: String,
    /// Where it starts, in bytes of the text pushed so far.
    pub start: usize,
}

impl Piece {
    /// Where it ends.
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// An incremental reader of one turn.
#[derive(Debug, Clone)]
pub struct Scanner {
    tags: &'static Tags,
    kind: Kind,
    held: String,
    position: usize,
    answered: bool,
    /// Whether there are only blanks between what is held and the beginning of its line.
    fresh: bool,
    /// Whether some of an answer that stands in no tag was given, but for white space.
    said: bool,
}

impl Scanner {
    /// At the beginning of a turn.
    pub fn new(tags: &'static Tags) -> Scanner {
        Scanner::inside(tags, tags.begins)
    }

    /// At the beginning of a turn that goes on inside `kind`. Where all that stands in no tag is the answer, that has begun.
    pub fn inside(tags: &'static Tags, kind: Kind) -> Scanner {
        let answered = kind == Kind::Answer || tags.outside == Kind::Answer;
        Scanner { tags, kind, held: String::new(), position: 0, answered, fresh: true, said: false }
    }

    /// What is being written now.
    pub fn writing(&self) -> Kind {
        self.kind
    }

    /// Whether an answer was begun.
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// Reads on. Pieces that are certain now are appended to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held.push_str(text);
        while let Some((at, tag)) = self.next_tag() {
            self.emit(at, out);
            self.skip(tag.len());
            self.turn_to(tag);
        }
        self.emit(self.held.len() - self.doubtful(), out);
    }

    /// Ends the text: what was held back is no tag.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        self.emit(self.held.len(), out);
    }

    /// The tags that mean something here.
    fn known(&self) -> impl Iterator<Item = &'static str> + use<> {
        let (kind, inside_query) = (self.kind, self.kind == Kind::Query);
        let pairs = self.tags.pairs.iter();
        pairs.flat_map(move |tag| {
            let open = (!inside_query).then_some(tag.open);
            let closes = if tag.is_label() { tag.kind == kind } else { !inside_query || tag.kind == Kind::Query };
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

    /// Whether what is written now is an answer that stands in no tag.
    fn is_bare(&self) -> bool {
        self.kind == Kind::Answer && self.tags.outside == Kind::Answer
    }

    /// Whether a tag may stand at this place in what is held.
    fn takes_tags(&self, at: usize) -> bool {
        !self.is_bare() || (!self.said && self.held[..at].trim().is_empty())
    }

    /// Whether there are only blanks between this place in what is held and the beginning of its line.
    fn begins_line(&self, at: usize) -> bool {
        is_fresh(&self.held[..at], self.fresh)
    }

    /// How many bytes at the end of what is held might be the beginning of a tag.
    fn doubtful(&self) -> usize {
        let begun = self.known().map(|tag| overlap(&self.held, tag));
        begun.filter(|length| self.takes_tags(self.held.len() - length)).max().unwrap_or(0)
    }

    fn turn_to(&mut self, tag: &str) {
        let inside_answer = self.kind == Kind::Answer && self.kind != self.tags.outside;
        for pair in self.tags.pairs {
            if pair.close == tag && pair.kind == self.kind {
                self.kind = self.tags.outside;
            } else if pair.open == tag && !inside_answer {
                self.kind = if pair.kind == Kind::Text { self.tags.outside } else { pair.kind };
                self.answered |= self.kind == Kind::Answer;
            }
        }
    }

    fn emit(&mut self, bytes: usize, out: &mut Vec<Piece>) {
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
            _ => out.push(Piece { kind: self.kind, text, start }),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.fresh = self.begins_line(bytes);
        self.held.drain(..bytes);
        self.position += bytes;
    }
}

/// Whether the line that `text` ends in holds only blanks; `before` says so of what precedes it.
fn is_fresh(text: &str, before: bool) -> bool {
    let line = text.rfind('\n').map(|at| &text[at + 1..]);
    (before || line.is_some()) && line.unwrap_or(text).chars().all(is_blank)
}

/// What may stand before a label in its line.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

/// The length of the longest end of `text` that is a beginning of `tag`, but not all of it.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| text.as_bytes()[text.len() - n..] == tag.as_bytes()[..n]).unwrap_or(0)
}

/// The parts of a whole turn.
pub(super) fn spans(tags: &'static Tags, turn: &str) -> Vec<Span> {
    let (mut scanner, mut pieces) = (Scanner::new(tags), Vec::new());
    scanner.push(turn, &mut pieces);
    scanner.finish(&mut pieces);
    pieces.into_iter().map(|piece| Span { kind: piece.kind, range: piece.start..piece.end() }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::protocol::Tag;
    use super::super::tag::TAGS;
    use super::*;

    static PLAIN: Tags = Tags {
        outside: Kind::Answer,
        begins: Kind::Answer,
        pairs: &[Tag { kind: Kind::Think, open: "<think>", close: "</think>" }],
        names: &[],
        labels: &[],
        trims: false,
    };

    static LABELLED: Tags = Tags {
        outside: Kind::Think,
        begins: Kind::Think,
        pairs: &[
            Tag { kind: Kind::Query, open: "Ask:", close: "\n" },
            Tag { kind: Kind::Answer, open: "Say:", close: "" },
            Tag { kind: Kind::Text, open: "<r>", close: "</r>" },
        ],
        names: &["r"],
        labels: &["Ask", "Say"],
        trims: true,
    };

    /// The rules of the module, over the whole text, character by character.
    fn oracle(tags: &'static Tags, text: &str) -> Vec<(Kind, String)> {
        let (mut kind, mut at, mut out) = (tags.begins, 0, Vec::<(Kind, String)>::new());
        'text: while at < text.len() {
            let bare = tags.outside == Kind::Answer && kind == Kind::Answer;
            let begun = out.iter().any(|(of, said)| *of == Kind::Answer && !said.trim().is_empty());
            for pair in tags.pairs.iter().filter(|_| !(bare && begun)) {
                for (tag, opens) in [(pair.open, true), (pair.close, false)] {
                    let line = text[..at].rsplit('\n').next().unwrap_or_default();
                    let counts = match (opens, pair.is_label()) {
                        (true, false) => kind != Kind::Query,
                        (true, true) => kind != Kind::Query && line.chars().all(|c| c == ' '),
                        (false, false) => kind != Kind::Query || pair.kind == Kind::Query,
                        (false, true) => kind == pair.kind && !tag.is_empty(),
                    };
                    if !counts || !text[at..].starts_with(tag) {
                        continue;
                    }
                    at += tag.len();
                    let inside_answer = kind == Kind::Answer && tags.outside != Kind::Answer;
                    kind = match (opens, pair.kind) {
                        (true, _) if inside_answer => kind,
                        (true, Kind::Text) => tags.outside,
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

    fn joined(pieces: &[Piece]) -> Vec<(Kind, String)> {
        let mut out: Vec<(Kind, String)> = Vec::new();
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

        /// Any text in any pieces: nothing leaks, nothing is lost, and places are those in the text.
        #[test]
        fn any_pieces_read_like_the_whole(text in text(), cuts in prop::collection::vec(1usize..9, 1..40), which in 0usize..3) {
            let tags = [&TAGS, &PLAIN, &LABELLED][which];
            let (mut scanner, mut pieces) = (Scanner::new(tags), Vec::new());
            let (mut rest, mut cuts) = (text.as_str(), cuts.into_iter().cycle());
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
        let (mut scanner, mut out) = (Scanner::new(&TAGS), Vec::new());
        scanner.push("<think>a < b <", &mut out);
        assert_eq!(joined(&out), [(Kind::Think, "a < b ".to_owned())]);
        scanner.push("/thin", &mut out);
        assert_eq!(joined(&out), [(Kind::Think, "a < b ".to_owned())]);
        scanner.push("g>", &mut out);
        assert_eq!(joined(&out), [(Kind::Think, "a < b </thing>".to_owned())]);
        assert_eq!(scanner.writing(), Kind::Think);
    }

    #[test]
    fn a_label_counts_at_the_beginning_of_a_line() {
        let (mut scanner, mut out) = (Scanner::new(&LABELLED), Vec::new());
        for piece in ["I Say: no\n", " \t", "As", "k: who?", "\nso\nS", "ay: a\nb Ask: c"] {
            scanner.push(piece, &mut out);
        }
        scanner.finish(&mut out);
        let found: Vec<(Kind, &str)> = out.iter().map(|piece| (piece.kind, piece.text.as_str())).collect();
        assert_eq!(joined(&out).len(), 4, "{found:?}");
        let texts: Vec<(Kind, String)> = joined(&out);
        assert_eq!(texts[0], (Kind::Think, "I Say: no\n \t".to_owned()));
        assert_eq!(texts[1], (Kind::Query, " who?".to_owned()));
        assert_eq!(texts[2], (Kind::Think, "so\n".to_owned()));
        assert_eq!(texts[3], (Kind::Answer, " a\nb Ask: c".to_owned()));
    }

    #[test]
    fn an_answer_in_no_tag_may_quote_one_once_it_has_begun() {
        for (turn, parts) in [
            ("a <think>b</think> <th", vec![(Kind::Answer, "a <think>b</think> <th")]),
            (
                "\n<think>a</think>\n<think>b</think> c</think>",
                vec![
                    (Kind::Answer, "\n"),
                    (Kind::Think, "a"),
                    (Kind::Answer, "\n"),
                    (Kind::Think, "b"),
                    (Kind::Answer, " c</think>"),
                ],
            ),
        ] {
            let found: Vec<(Kind, &str)> = spans(&PLAIN, turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
            assert_eq!(found, parts);
        }
        let (mut scanner, mut out) = (Scanner::new(&PLAIN), Vec::new());
        scanner.push("a <", &mut out);
        assert_eq!(joined(&out), [(Kind::Answer, "a <".to_owned())], "nothing is held back for a tag");
    }

    #[test]
    fn spans_leave_the_tags_out() {
        let turn = "<think>t</think>\n<answer> x </answer>";
        let found: Vec<(Kind, &str)> = spans(&TAGS, turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
        assert_eq!(found, [(Kind::Think, "t"), (Kind::Text, "\n"), (Kind::Answer, " x ")]);
    }
}
