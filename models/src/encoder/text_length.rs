//! Length of texts, from the files of sentence-transformers.

use std::path::Path;

use serde::Deserialize;

use super::json_file::parse_present;
use crate::ModelError;

/// Minimum length limit: two special pieces mark the ends of a text, and at least one piece must fit between them.
pub(super) const FEWEST_PIECES: usize = 3;

/// Name of the file in which sentence-transformers stores the length limit.
pub(super) const LENGTH: &str = "sentence_bert_config.json";

/// Name of the tokenizer's settings, which hold the length limit since sentence-transformers 6.
const TOKENIZER: &str = "tokenizer_config.json";

/// Preparation of texts, as stated in a model's directory.
pub(super) struct TextLength {
    /// Maximum number of pieces.
    pub(super) max_pieces: usize,
    /// If `true`, texts are lower-cased before they are split.
    pub(super) lower_case: bool,
}

#[derive(Deserialize)]
struct LengthFile {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    /// Maximum number of pieces, or a very large number for none.
    model_max_length: Option<f64>,
}

impl TextLength {
    /// Reads the files of a directory whose positions allow `most` pieces. Texts have at most `default_pieces` pieces
    /// where no file states a limit.
    pub(super) fn read(dir: &Path, most: usize, default_pieces: usize) -> Result<Self, ModelError> {
        let length: Option<LengthFile> = parse_present(&dir.join(LENGTH))?;
        let stated = max_pieces(dir, length.as_ref(), most, default_pieces)?;
        Ok(TextLength {
            max_pieces: stated.clamp(FEWEST_PIECES, most.max(FEWEST_PIECES)),
            lower_case: length.is_some_and(|length| length.do_lower_case == Some(true)),
        })
    }
}

/// Returns the length limit of a directory whose positions allow `most` pieces.
fn max_pieces(
    dir: &Path,
    length: Option<&LengthFile>,
    most: usize,
    default_pieces: usize,
) -> Result<usize, ModelError> {
    if let Some(stated) = length.and_then(|length| length.max_seq_length) {
        return Ok(stated);
    }
    let tokenizer: Option<TokenizerFile> = parse_present(&dir.join(TOKENIZER))?;
    let stated = tokenizer.as_ref().and_then(|tokenizer| tokenizer.model_max_length);
    Ok(match stated {
        // The cast saturates: tokenizers without a limit state 10³⁰.
        Some(pieces) => pieces as usize,
        None if length.is_some() || tokenizer.is_some() => most,
        None => default_pieces,
    })
}
