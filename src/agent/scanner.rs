//! Reads tagged text while it is being written.
//!
//! Rules, for any text in any pieces: a tag is never shown, everything else is shown once and in order, and what might
//! still become a tag is held back. Inside a query only its closing tag counts, because a query is executed as it is
//! written; inside an answer only its closing tag ends it and other tags are dropped; elsewhere the tag opened last
//! says what follows.

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
}

impl Scanner {
    /// At the beginning of a turn, outside every tag.
    pub fn new(tags: &'static Tags) -> Scanner {
        let answered = tags.outside == Kind::Answer;
        Scanner { tags, kind: tags.outside, held: String::new(), position: 0, answered }
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
        let inside_query = self.kind == Kind::Query;
        let pairs = self.tags.pairs.iter();
        pairs.flat_map(move |tag| {
            let open = (!inside_query).then_some(tag.open);
            let close = (!inside_query || tag.kind == Kind::Query).then_some(tag.close);
            [open, close].into_iter().flatten()
        })
    }

    fn next_tag(&self) -> Option<(usize, &'static str)> {
        self.known().filter_map(|tag| Some((self.held.find(tag)?, tag))).min_by_key(|(at, _)| *at)
    }

    /// How many bytes at the end of what is held might be the beginning of a tag.
    fn doubtful(&self) -> usize {
        self.known().map(|tag| overlap(&self.held, tag)).max().unwrap_or(0)
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
        let text: String = self.held.drain(..bytes).collect();
        self.position += bytes;
        match out.last_mut() {
            Some(last) if last.kind == self.kind && last.end() == start => last.text.push_str(&text),
            _ => out.push(Piece { kind: self.kind, text, start }),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.position += bytes;
    }
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
