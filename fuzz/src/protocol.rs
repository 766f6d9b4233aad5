//! Parsers of the protocols: they accept every text, give the same result for any pieces of it, and find no action in
//! neutralized text.
//!
//! Input: 8 bytes that say how the text is cut into pieces, then the text.

use std::sync::Arc;

use waymark_agent::{Action, Policy, Protocol, ReadingRule, Scanner, SegmentKind, TextPiece, sanitize};
use waymark_engine::{Matcher, StopSet};
use waymark_models::tokenizer::{Detokenizer, TokenBytes};

pub fn run(data: &[u8]) {
    let Some((cuts, bytes)) = data.split_first_chunk::<8>() else { return };
    let pieces = cut(bytes, cuts);
    let text = detokenized(&pieces);
    assert_eq!(text, String::from_utf8_lossy(bytes), "detokenized in pieces");
    for name in Policy::BUILTIN {
        let protocol = Policy::builtin(name).expect("it is built in").protocol;
        check_whole(&*protocol, &text);
        check_pieces(&*protocol, &text, cuts);
        check_stops(&*protocol, bytes, &pieces);
        check_neutral(&*protocol, &text);
    }
}

/// Cuts `bytes` into pieces of 1 to 16 bytes. Their lengths less 1 are the half-bytes of `cuts`, low half first,
/// repeated.
fn cut<'b>(bytes: &'b [u8], cuts: &[u8; 8]) -> Vec<&'b [u8]> {
    let mut lengths = cuts.iter().flat_map(|cut| [cut & 15, cut >> 4]).cycle();
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let wanted = usize::from(lengths.next().unwrap_or(0)) + 1;
        let (piece, after) = rest.split_at(wanted.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn detokenized(pieces: &[&[u8]]) -> String {
    let mut table = TokenBytes::new();
    pieces.iter().for_each(|piece| table.push(piece, false));
    let mut detokenizer = Detokenizer::new(Arc::new(table));
    let mut text = String::new();
    for id in 0..pieces.len() as u32 {
        text.push_str(detokenizer.push(id));
    }
    text + &detokenizer.finish()
}

/// Checks the parser and the spans of a whole turn.
fn check_whole(protocol: &dyn Protocol, turn: &str) {
    for reading in [ReadingRule::First, ReadingRule::SearchFirst, ReadingRule::Lenient] {
        match protocol.parse(turn, reading) {
            Action::Search(request) => {
                assert!(turn.contains(&request.written), "{} reads a search nobody wrote", protocol.name());
                // The lenient reading trims queries. The others keep them, as the references' loops do.
                assert!(reading != ReadingRule::Lenient || request.query == request.query.trim());
            }
            Action::Answer { text } if protocol.tags().trims => {
                assert!(turn.contains(&text), "{} reads an answer nobody wrote", protocol.name());
            }
            Action::Refuse { text } => {
                assert!(turn.contains(&text), "{} reads a refusal nobody wrote", protocol.name());
            }
            _ => {}
        }
    }
    assert!(turn.starts_with(protocol.training().expect("it can be trained").cut(turn)));
    let mut end = 0;
    for span in protocol.spans(turn) {
        assert!(end <= span.range.start && span.range.start < span.range.end, "spans out of order");
        assert!(turn.get(span.range.clone()).is_some(), "a span cuts a character");
        end = span.range.end;
    }
}

/// Checks that the scanner finds the same segments in any pieces as in the whole text.
fn check_pieces(protocol: &dyn Protocol, text: &str, cuts: &[u8; 8]) {
    let (mut scanner, mut pieces, mut rest) = (Scanner::new(protocol.tags()), Vec::new(), text);
    let mut lengths = cuts.iter().flat_map(|cut| [cut & 15, cut >> 4]).cycle();
    while !rest.is_empty() {
        let wanted = usize::from(lengths.next().unwrap_or(0)) + 1;
        let end = (wanted.min(rest.len())..=rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
        scanner.push(&rest[..end], &mut pieces);
        rest = &rest[end..];
    }
    scanner.finish(&mut pieces);
    let whole: Vec<(SegmentKind, &str)> =
        protocol.spans(text).into_iter().map(|span| (span.kind, &text[span.range])).collect();
    assert_eq!(joined(&pieces), joined_spans(&whole), "{} in pieces", protocol.name());
    for piece in &pieces {
        assert_eq!(text.get(piece.start..piece.end()), Some(piece.text.as_str()));
    }
}

fn joined(pieces: &[TextPiece]) -> Vec<(SegmentKind, String)> {
    joined_spans(&pieces.iter().map(|piece| (piece.kind, piece.text.as_str())).collect::<Vec<_>>())
}

fn joined_spans(parts: &[(SegmentKind, &str)]) -> Vec<(SegmentKind, String)> {
    let mut out: Vec<(SegmentKind, String)> = Vec::new();
    for &(kind, text) in parts {
        match out.last_mut() {
            Some((last, said)) if *last == kind => said.push_str(text),
            _ => out.push((kind, text.to_owned())),
        }
    }
    out
}

/// A turn ends at the same place and for the same reason however its bytes are cut into tokens.
fn check_stops(protocol: &dyn Protocol, bytes: &[u8], pieces: &[&[u8]]) {
    let stops = StopSet::new(protocol.stops()).with_lines(protocol.lines());
    let single = first_stop(&stops, bytes.chunks(1));
    let cut = first_stop(&stops, pieces.iter().copied());
    assert_eq!(single.map(|(which, _)| which), cut.map(|(which, _)| which));
    if let (Some((which, end)), Some((_, piece_end))) = (single, cut) {
        assert!(bytes[..end].ends_with(stops.get(which).unwrap_or_default()));
        assert!(end <= piece_end && piece_end < end + 16, "the turn ends late");
    }
}

/// Returns the index of the stop string that ends the pieces, and the end of the piece that completes it.
fn first_stop<'b>(stops: &StopSet, mut pieces: impl Iterator<Item = &'b [u8]>) -> Option<(usize, usize)> {
    let (mut matcher, mut end) = (Matcher::default(), 0);
    pieces.find_map(|piece| {
        end += piece.len();
        matcher.push(stops, piece).map(|which| (which, end))
    })
}

/// Checks that the parser finds no action in neutralized text, and that neutralizing it again changes nothing.
fn check_neutral(protocol: &dyn Protocol, text: &str) {
    let (harmless, _) = sanitize::sanitize(text, protocol.tags());
    assert_eq!(sanitize::sanitize(&harmless, protocol.tags()), (harmless.clone(), 0));
    for stop in protocol.stops() {
        assert!(!harmless.contains(stop));
    }
    let begins = protocol.tags().begins;
    assert!(protocol.spans(&harmless).iter().all(|span| span.kind == begins), "{harmless:?}");
    if begins != SegmentKind::Answer {
        for reading in [ReadingRule::First, ReadingRule::SearchFirst, ReadingRule::Lenient] {
            assert_eq!(protocol.parse(&harmless, reading), Action::Invalid, "{harmless:?}");
        }
    }
}
