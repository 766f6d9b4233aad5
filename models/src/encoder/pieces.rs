//! Word pieces of texts and of pairs of texts.

use std::fmt;
use std::path::Path;

use tokenizers::{
    Encoding, NormalizedString, Normalizer as _, PostProcessor as _, Tokenizer as Pipeline, TruncationDirection,
};

use super::shape::BodyShape;
use super::text_length::LENGTH;
use crate::ModelError;
use crate::tokenizer;

/// Word pieces of a text, or of a pair of texts, with the special pieces of the tokenizer.
#[derive(Debug, Default)]
pub(crate) struct PieceSequence {
    ids: Vec<u32>,
    /// Segment of each piece. Empty if all belong to the first.
    segments: Vec<u32>,
}

impl PieceSequence {
    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// IDs of the pieces.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Iterates over the IDs of the pieces, each with its segment.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u32, u32)> {
        let segment = |place: usize| self.segments.get(place).copied().unwrap_or(0);
        self.ids.iter().enumerate().map(move |(place, &id)| (id, segment(place)))
    }
}

/// Tokenizer of an encoder, with the limits of its model.
#[derive(Debug)]
pub(crate) struct PieceTokenizer {
    pipeline: Pipeline,
    vocab: usize,
    max_pieces: usize,
    /// Number of segments that the model tells apart; at least 1.
    segments: usize,
}

impl PieceTokenizer {
    /// Opens `tokenizer.json` in `dir`.
    pub(crate) fn open(dir: &Path, shape: &BodyShape) -> Result<Self, ModelError> {
        let mut pipeline = tokenizer::pipeline(&dir.join("tokenizer.json"))?;
        // `tokenizer.json` carries the padding and truncation of the training script.
        pipeline.with_padding(None);
        pipeline.with_truncation(None).map_err(|error| failed(&error))?;
        if shape.lower_case && !lowers(&pipeline)? {
            let what = "do_lower_case with a tokenizer that keeps capitals".to_owned();
            return Err(ModelError::Unsupported { path: dir.join(LENGTH), what });
        }
        let BodyShape { vocab, max_pieces, segments, .. } = *shape;
        Ok(PieceTokenizer { pipeline, vocab, max_pieces, segments })
    }

    /// Maximum number of pieces in a sequence.
    pub(crate) fn max_pieces(&self) -> usize {
        self.max_pieces
    }

    /// Number of pieces in `text`, without special ones and without the limit. 0 if the text cannot be split.
    pub(crate) fn count(&self, text: &str) -> usize {
        tokenizer::windows(text).map(|window| self.count_window(window)).sum()
    }

    fn count_window(&self, window: &str) -> usize {
        self.pipeline.encode_fast(window, false).map_or(0, |encoding| encoding.len())
    }

    /// Returns the beginning of `text`, in whole windows, that determines its embedding. The tokenizer takes hundreds
    /// of bytes per byte of its input, so it must not see the rest.
    fn beginning<'a>(&self, text: &'a str) -> &'a str {
        let mut pieces = 0;
        let mut end = 0;
        for window in tokenizer::windows(text) {
            end += window.len();
            // The last window needs no count. Nearly all texts have one window only.
            if end == text.len() {
                break;
            }
            pieces += self.count_window(window);
            if pieces >= self.max_pieces {
                break;
            }
        }
        &text[..end]
    }

    /// Splits a text, cut to the limit.
    pub(crate) fn single(&self, text: &str) -> Result<PieceSequence, ModelError> {
        let encoding = self.pipeline.encode_fast(self.beginning(text), true).map_err(|error| failed(&error))?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some(&last) = ids.last()
            && ids.len() > self.max_pieces
        {
            // The final separator stays, as when the tokenizer itself truncates.
            ids.truncate(self.max_pieces - 1);
            ids.push(last);
        }
        self.checked(PieceSequence { ids, segments: Vec::new() })
    }

    /// Splits the first text of many pairs.
    pub(crate) fn query(&self, text: &str) -> Result<PieceQuery, ModelError> {
        let encoding = self.pipeline.encode_fast(self.beginning(text), false).map_err(|error| failed(&error))?;
        Ok(PieceQuery(encoding))
    }

    /// Splits a pair as the tokenizer's template for pairs says. Pieces beyond the limit are cut off the end of the
    /// document. A query that would leave the document less than half of the room is cut as well.
    pub(crate) fn pair(&self, query: &PieceQuery, document: &str) -> Result<PieceSequence, ModelError> {
        let mut first = query.0.clone();
        let mut second = self.pipeline.encode_fast(self.beginning(document), false).map_err(|error| failed(&error))?;
        let special = self.pipeline.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let room = self.max_pieces.saturating_sub(special);
        let least = second.len().min(room / 2);
        first.truncate(room - least, 0, TruncationDirection::Right);
        second.truncate(room - first.len(), 0, TruncationDirection::Right);
        // Otherwise, `post_process` would apply the template to the overflow as well.
        drop(first.take_overflowing());
        drop(second.take_overflowing());
        let pair = self.pipeline.post_process(first, Some(second), true).map_err(|error| failed(&error))?;
        let segments = if self.segments > 1 { pair.get_type_ids().to_vec() } else { Vec::new() };
        if let Some(segment) = segments.iter().find(|&&segment| segment as usize >= self.segments) {
            let message = format!("segment {segment} of a pair is beyond the model's {} segments", self.segments);
            return Err(ModelError::Tokenizer(message));
        }
        self.checked(PieceSequence { ids: pair.get_ids().to_vec(), segments })
    }

    /// Checks that all pieces are in the model's vocabulary and that their number is within its limit.
    fn checked(&self, sequence: PieceSequence) -> Result<PieceSequence, ModelError> {
        if sequence.len() > self.max_pieces {
            let message = format!("{} special pieces exceed the model's limit of {}", sequence.len(), self.max_pieces);
            return Err(ModelError::Tokenizer(message));
        }
        match sequence.ids.iter().find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(ModelError::Tokenizer(format!("word piece {id} is beyond the model's vocabulary"))),
            None => Ok(sequence),
        }
    }
}

/// Pieces of a query, without special ones.
pub(crate) struct PieceQuery(Encoding);

/// Returns `true` if the tokenizer itself lower-cases texts.
fn lowers(pipeline: &Pipeline) -> Result<bool, ModelError> {
    let Some(normalizer) = pipeline.get_normalizer() else { return Ok(false) };
    let mut text = NormalizedString::from("A");
    normalizer.normalize(&mut text).map_err(|error| failed(&error))?;
    // Some tokenizers put a prefix before the text.
    Ok(text.get().ends_with('a'))
}

/// Converts an error of the tokenizer.
fn failed(error: &dyn fmt::Display) -> ModelError {
    ModelError::Tokenizer(error.to_string())
}
