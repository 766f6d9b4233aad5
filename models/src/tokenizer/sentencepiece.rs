//! BPE tokenizers of SentencePiece, from a GGUF or from the pieces of a `tokenizer.model`.
//!
//! SentencePiece stores pieces with scores and no merges: the pair that forms the piece with the highest score is
//! merged first. The order of merges follows from the scores, as in `generate_merges` of `transformers`. A GGUF that was
//! converted from a `tokenizer.json` has one score for all pieces; their IDs then tell the order.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use super::merge;

/// Piece of a vocabulary. Its index is its ID.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScoredPiece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// Kind of a piece, with the numbers that SentencePiece and GGUF share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Maximum size of a piece in bytes, far more than in any real vocabulary. The search for merges takes time quadratic
/// in the size.
const LONGEST_PIECE: usize = 1024;

/// Mark of a space.
const SPACE: &str = "▁";

/// Score of pieces that consist of spaces, as in the vocabularies of Llama 2 and Mistral: they are merged last.
const SPACES_SCORE: f32 = -1e9;

impl PieceKind {
    /// Kind by its number. `None` for unknown numbers.
    pub(super) fn of(number: u64) -> Option<PieceKind> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Builds a tokenizer. With `prefix`, every text begins with a space. `further` are tokens besides the vocabulary's
/// control tokens.
///
/// # Errors
/// A message that describes the defect of the vocabulary.
pub(super) fn pipeline(pieces: &[ScoredPiece], prefix: bool, further: Vec<AddedToken>) -> Result<Pipeline, String> {
    if let Some((id, piece)) = pieces.iter().enumerate().find(|(_, piece)| piece.text.len() > LONGEST_PIECE) {
        return Err(format!("piece {id} has {} bytes: expected at most {LONGEST_PIECE}", piece.text.len()));
    }
    let pieces: Vec<ScoredPiece> = pieces.iter().map(marked).collect();
    let pieces = pieces.as_slice();
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(pieces.len());
    for (id, piece) in (0..).zip(pieces) {
        ids.entry(&piece.text).or_insert(id);
    }
    let merges = merges(pieces, &ids);
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merge::check(parts, "", |token| ids.contains_key(token))?;
    let mut vocab = Vocab::with_capacity(ids.len());
    vocab.extend(ids.iter().map(|(text, id)| ((*text).to_owned(), *id)));
    let mut bpe = BPE::builder().vocab_and_merges(vocab, merges).fuse_unk(true).byte_fallback(true);
    if let Some(unknown) = pieces.iter().find(|piece| piece.kind == PieceKind::Unknown) {
        bpe = bpe.unk_token(unknown.text.clone());
    }
    let refused = |error: tokenizers::Error| format!("tokenizer: {error}");
    let mut pipeline = Pipeline::new(bpe.build().map_err(refused)?);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if prefix {
        steps.push(Prepend::new(SPACE.to_owned()).into());
    }
    steps.push(Replace::new(" ", SPACE).map_err(refused)?.into());
    pipeline.with_normalizer(Some(Sequence::new(steps))).map_err(refused)?;
    // User-defined pieces with spaces are merged from their parts: added tokens are matched before spaces are marked.
    let added = pieces.iter().filter_map(|piece| match piece.kind {
        PieceKind::Control | PieceKind::Unknown => Some(AddedToken::from(piece.text.clone(), true)),
        PieceKind::UserDefined if !piece.text.contains(SPACE) => Some(AddedToken::from(piece.text.clone(), false)),
        _ => None,
    });
    let added: Vec<AddedToken> = added.map(|token| token.normalized(false)).chain(further).collect();
    pipeline.add_tokens(added).map_err(refused)?;
    Ok(pipeline)
}

/// Returns a piece as the vocabulary names it. llama.cpp's converter writes user-defined pieces of spaces (Gemma's runs) as
/// they read, and gives them a low score, although SentencePiece matches such pieces before all others.
fn marked(piece: &ScoredPiece) -> ScoredPiece {
    match piece.kind {
        PieceKind::UserDefined => {
            ScoredPiece { text: piece.text.replace(' ', SPACE), score: f32::INFINITY, kind: PieceKind::UserDefined }
        }
        _ => piece.clone(),
    }
}

/// Returns `true` if all ordinary pieces that are merged from others have the same score. llama.cpp's converter writes such
/// files for a checkpoint without `tokenizer.model` (`LlamaHfVocab` in `gguf-py`).
fn is_unscored(pieces: &[ScoredPiece]) -> bool {
    let merged = |piece: &&ScoredPiece| piece.kind == PieceKind::Normal && piece.text.chars().nth(1).is_some();
    let mut scores = pieces.iter().filter(merged).map(|piece| piece.score);
    scores.next().is_some_and(|first| scores.all(|score| score == first))
}

/// Score of the ordinary piece `id` in a vocabulary without scores. SentencePiece numbers its pieces in the order in which
/// training found them, and scores them by their negative number.
fn score_of_id(id: usize, text: &str) -> f32 {
    if text.replace(SPACE, "").is_empty() { SPACES_SCORE } else { -(id as f32) }
}

/// Pairs of pieces whose text together is a piece, in the order in which they are merged.
fn merges(pieces: &[ScoredPiece], ids: &HashMap<&str, u32>) -> Vec<(String, String)> {
    let unscored = is_unscored(pieces);
    let mut found: Vec<(f32, &str, &str)> = Vec::new();
    for (id, piece) in pieces.iter().enumerate() {
        let score = match piece.kind {
            PieceKind::Normal if unscored => score_of_id(id, &piece.text),
            PieceKind::Normal | PieceKind::UserDefined => piece.score,
            _ => continue,
        };
        let mut own: Vec<(&str, &str)> = (1..piece.text.len())
            .filter(|&at| piece.text.is_char_boundary(at))
            .map(|at| piece.text.split_at(at))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        own.sort_by_key(|(left, right)| (ids[left], ids[right]));
        found.extend(own.into_iter().map(|(left, right)| (score, left, right)));
    }
    let length = |text: &str| text.chars().count();
    let key = |(_, left, right): &(f32, &str, &str)| (length(left), length(right));
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| key(b).cmp(&key(a))));
    found.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Specials, Tokenizer};
    use super::*;

    fn pieces() -> Vec<ScoredPiece> {
        let kinds = [PieceKind::Unknown, PieceKind::Control, PieceKind::Byte];
        let special = ["<unk>", "<s>", "<0x21>"].into_iter().zip(kinds).map(|(text, kind)| (text, 0.0, kind));
        let normal = [("▁a", -1.0), ("b", -4.0), ("▁", -5.0), ("a", -6.0), ("ab", -2.0), ("<", -7.0), ("s>", -8.0)];
        let normal = normal.into_iter().map(|(text, score)| (text, score, PieceKind::Normal));
        special.chain(normal).map(|(text, score, kind)| ScoredPiece { text: text.to_owned(), score, kind }).collect()
    }

    #[test]
    fn the_highest_score_is_merged_first_and_unknown_bytes_have_pieces() {
        let with = Tokenizer::from_fast(pipeline(&pieces(), true, Vec::new()).unwrap()).unwrap();
        assert_eq!(with.encode("ab!", Specials::Literal).unwrap(), [3, 4, 2]);
        assert_eq!(with.encode("<s>ab!", Specials::Parse).unwrap(), [1, 3, 4, 2]);
        assert_eq!(with.decode(&[1, 3, 4, 2]), " ab!");
        let without = Tokenizer::from_fast(pipeline(&pieces(), false, Vec::new()).unwrap()).unwrap();
        assert_eq!(without.encode("ab!", Specials::Literal).unwrap(), [7, 2]);
        assert_eq!(without.encode("ab ab", Specials::Literal).unwrap(), [7, 3, 4]);
    }

    #[test]
    fn pieces_without_scores_are_merged_by_their_ids_and_runs_of_spaces_last() {
        let texts = ["▁▁", "▁a", "ab", "cd", "abc", "▁", "a", "b", "c", "d"];
        let piece = |text: &str| ScoredPiece { text: text.to_owned(), score: -1000.0, kind: PieceKind::Normal };
        let tokenizer = pipeline(&texts.map(piece), false, Vec::new()).unwrap();
        let tokenizer = Tokenizer::from_fast(tokenizer).unwrap();
        assert_eq!(tokenizer.encode("abcd", Specials::Literal).unwrap(), [2, 3]);
        assert_eq!(tokenizer.encode("  a", Specials::Literal).unwrap(), [5, 1]);
        assert_eq!(tokenizer.encode("  d", Specials::Literal).unwrap(), [0, 9]);
    }

    #[test]
    fn a_text_may_write_a_space_as_its_mark() {
        let tokenizer = Tokenizer::from_fast(pipeline(&pieces(), false, Vec::new()).unwrap()).unwrap();
        let spaced = tokenizer.encode("a b", Specials::Literal).unwrap();
        assert_eq!(spaced, [6, 5, 4]);
        assert_eq!(tokenizer.encode("a▁b", Specials::Literal).unwrap(), spaced);
    }

    #[test]
    fn a_piece_of_any_length_is_refused() {
        let mut pieces = pieces();
        pieces[6].text = "a".repeat(LONGEST_PIECE + 1);
        assert!(pipeline(&pieces, true, Vec::new()).unwrap_err().contains("piece 6 has 1025 bytes"));
    }

    #[test]
    fn runs_of_spaces_are_pieces_however_a_file_names_them() {
        for name in ["  ", "▁▁"] {
            let mut pieces = pieces();
            let run = pieces.len() as u32;
            pieces.push(ScoredPiece { text: name.to_owned(), score: -1000.0, kind: PieceKind::UserDefined });
            let tokenizer = Tokenizer::from_fast(pipeline(&pieces, false, Vec::new()).unwrap()).unwrap();
            assert_eq!(tokenizer.encode("ab  b", Specials::Literal).unwrap(), [7, run, 4], "{name:?}");
            assert_eq!(tokenizer.decode(&[7, run, 4]), "ab  b", "{name:?}");
        }
        // As in a tokenizer.json, where they are added tokens.
        let further = vec![AddedToken::from("▁▁".to_owned(), false).normalized(false)];
        let tokenizer = Tokenizer::from_fast(pipeline(&pieces(), false, further).unwrap()).unwrap();
        let run = tokenizer.id("▁▁").unwrap();
        assert_eq!(tokenizer.decode(&[7, run, 4]), "ab  b");
    }

    #[test]
    fn no_merge_forms_a_control_token() {
        let pieces = pieces();
        let ids = (0..).zip(&pieces).map(|(id, piece)| (piece.text.as_str(), id)).collect();
        let merges = merges(&pieces, &ids);
        assert_eq!(merges, [("▁", "a"), ("a", "b")].map(|(left, right)| (left.to_owned(), right.to_owned())));
    }
}
