//! Reader of `tokenizer.model`: the `ModelProto` of SentencePiece in protocol buffers.

use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer as Pipeline;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use super::sentencepiece::{self, PieceKind, ScoredPiece};
use super::vocabulary::{self, AddedTokens};
use crate::ModelError;

/// Largest file that is read: vocabularies of 256 k pieces take 4 MB.
const MAX_BYTES: u64 = 1 << 26;

/// Content of a `tokenizer.model`.
#[derive(Debug, Default, PartialEq)]
struct ModelFile {
    pieces: Vec<ScoredPiece>,
    /// Number of the algorithm: 1 for Unigram, 2 for BPE. 0 if the file has no settings of the trainer.
    algorithm: u64,
    normalizer: Normalizer,
}

/// Settings of the normalizer.
#[derive(Debug, PartialEq)]
struct Normalizer {
    /// If `true`, every text begins with a space.
    prefix: bool,
    /// If `true`, characters are replaced by a table in the file. Llama 2, Mistral and Gemma have none.
    replaces: bool,
    /// If `true`, spaces at the ends of a text and repeated ones are removed. Llama 2, Mistral and Gemma keep them.
    trims: bool,
}

impl Default for Normalizer {
    /// Settings that a file leaves out.
    fn default() -> Self {
        Self { prefix: true, replaces: false, trims: true }
    }
}

/// Reads the tokenizer in `dir`, with its added tokens.
///
/// # Errors
/// [`ModelError::Layout`] with the command that writes `tokenizer.json` for algorithms other than BPE, for normalizers
/// that change texts and for other files of this name, [`ModelError::Io`] for a file that cannot be read, and
/// [`ModelError::Corrupt`] for defective settings and for an added token that would get another ID than they state.
pub(super) fn pipeline(dir: &Path) -> Result<Pipeline, ModelError> {
    let path = dir.join("tokenizer.model");
    let size = std::fs::metadata(&path).map_err(ModelError::io("read", &path))?.len();
    let refused = |reason: String| ModelError::Layout {
        path: dir.to_owned(),
        layout: format!("a tokenizer in tokenizer.model ({reason})"),
        remedy: vocabulary::remedy(dir),
    };
    if size > MAX_BYTES {
        return Err(refused(format!("{size} bytes: expected at most {MAX_BYTES}")));
    }
    let bytes = std::fs::read(&path).map_err(ModelError::io("read", &path))?;
    let ModelFile { pieces, algorithm, normalizer } = parse(&bytes).map_err(refused)?;
    if algorithm != 2 || pieces.is_empty() {
        return Err(refused("not BPE of SentencePiece".to_owned()));
    }
    if normalizer.replaces {
        return Err(refused("it replaces characters: its precompiled_charsmap is not empty".to_owned()));
    }
    if normalizer.trims {
        return Err(refused("it removes spaces: its remove_extra_whitespaces is true".to_owned()));
    }
    let settings = vocabulary::settings(dir)?;
    let is_control = |piece: &ScoredPiece| matches!(piece.kind, PieceKind::Control | PieceKind::Unknown);
    let is_named = |name: &str| pieces.iter().any(|piece| piece.text == name && is_control(piece));
    let added = AddedTokens::read(dir, &settings, is_named)?;
    // Such a tokenizer writes the space at the beginning of a sequence only.
    let first_only = normalizer.prefix && settings.get("legacy").and_then(Value::as_bool) == Some(false);
    let prefix = normalizer.prefix && !first_only;
    let mut pipeline = sentencepiece::pipeline(&pieces, prefix, added.tokens()).map_err(refused)?;
    if first_only {
        pipeline.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::First, false)));
    }
    added.check(&pipeline)?;
    Ok(pipeline)
}

/// Parses a `ModelProto`: field 1 is a piece, 2 the settings of the trainer, 3 those of the normalizer.
fn parse(bytes: &[u8]) -> Result<ModelFile, String> {
    let mut model = ModelFile::default();
    let mut fields = Fields { rest: bytes };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, FieldValue::Bytes(piece)) => model.pieces.push(parse_piece(piece)?),
            (2, FieldValue::Bytes(trainer)) => model.algorithm = number_in(trainer, 3)?.unwrap_or(1),
            (3, FieldValue::Bytes(normalizer)) => model.normalizer = parse_normalizer(normalizer)?,
            _ => {}
        }
    }
    Ok(model)
}

/// Parses a `NormalizerSpec`: table of characters, space at the beginning, removal of spaces.
fn parse_normalizer(bytes: &[u8]) -> Result<Normalizer, String> {
    let mut normalizer = Normalizer::default();
    let mut fields = Fields { rest: bytes };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (2, FieldValue::Bytes(table)) => normalizer.replaces = !table.is_empty(),
            (3, FieldValue::Varint(prefix)) => normalizer.prefix = prefix != 0,
            (4, FieldValue::Varint(trims)) => normalizer.trims = trims != 0,
            _ => {}
        }
    }
    Ok(normalizer)
}

/// Parses a `SentencePiece`: text, score and kind.
fn parse_piece(bytes: &[u8]) -> Result<ScoredPiece, String> {
    let mut piece = ScoredPiece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    let mut fields = Fields { rest: bytes };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, FieldValue::Bytes(text)) => piece.text = String::from_utf8_lossy(text).into_owned(),
            (2, FieldValue::Fixed(bits)) => piece.score = f32::from_bits(bits),
            (3, FieldValue::Varint(kind)) => {
                piece.kind = PieceKind::of(kind).ok_or_else(|| format!("piece of the unknown kind {kind}"))?;
            }
            _ => {}
        }
    }
    Ok(piece)
}

/// Value of an integer field of a message. `None` if it is not set.
fn number_in(bytes: &[u8], wanted: u64) -> Result<Option<u64>, String> {
    let mut fields = Fields { rest: bytes };
    let mut found = None;
    while let Some((number, value)) = fields.next()? {
        if let (true, FieldValue::Varint(value)) = (number == wanted, value) {
            found = Some(value);
        }
    }
    Ok(found)
}

/// Fields of a message, in order.
struct Fields<'a> {
    rest: &'a [u8],
}

/// Value of a field, by its wire type.
enum FieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed(u32),
    Fixed64,
}

impl<'a> Fields<'a> {
    /// Number and value of the next field. `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => self.take(8).map(|_| FieldValue::Fixed64)?,
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                FieldValue::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                FieldValue::Fixed(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return Err(format!("not protocol buffers: wire type {other}")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or("not protocol buffers: truncated")?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("not protocol buffers: a number of more than 10 bytes".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::super::{Specials, Tokenizer};
    use super::{parse, sentencepiece};

    /// Piece with the given text, score and kind, as a field of the model.
    fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
        let mut message = vec![0x0a, text.len() as u8];
        message.extend(text.as_bytes());
        message.push(0x15);
        message.extend(score.to_le_bytes());
        message.extend([0x18, kind]);
        let mut field = vec![0x0a, message.len() as u8];
        field.extend(message);
        field
    }

    /// Settings of a normalizer that adds no space and removes none.
    const PLAIN: [u8; 4] = [0x18, 0, 0x20, 0];

    fn model(algorithm: u8, normalizer: &[u8]) -> Vec<u8> {
        let pieces =
            [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("a", -3.0, 1), ("b", -4.0, 1), ("ab", -2.0, 1), ("▁", -5.0, 1)];
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|&(text, score, kind)| piece(text, score, kind)).collect();
        // Settings of the trainer with the algorithm, and of the normalizer.
        bytes.extend([0x12, 2, 0x18, algorithm, 0x1a, normalizer.len() as u8]);
        bytes.extend(normalizer);
        bytes
    }

    #[test]
    fn pieces_scores_and_settings_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.model"), model(2, &PLAIN)).unwrap();
        let added = r#"{"added_tokens_decoder": {"6": {"content": "<|end|>", "special": true}}}"#;
        std::fs::write(dir.path().join("tokenizer_config.json"), added).unwrap();
        let tokenizer = Tokenizer::from_folder(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("ab a", Specials::Literal).unwrap(), [4, 5, 2]);
        assert_eq!((tokenizer.id("<s>"), tokenizer.id("<|end|>"), tokenizer.vocab()), (Some(1), Some(6), 7));
        assert!(tokenizer.is_control(1) && tokenizer.is_control(6));
    }

    #[test]
    fn an_added_token_after_a_gap_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.model"), model(2, &PLAIN)).unwrap();
        let added = r#"{"added_tokens_decoder": {"9": {"content": "<|end|>", "special": true}}}"#;
        std::fs::write(dir.path().join("tokenizer_config.json"), added).unwrap();
        let refused = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("tokenizer_config.json") && refused.contains("ID 9"), "{refused}");
    }

    #[test]
    fn control_pieces_stay_such_where_an_older_file_lists_them_again() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("tokenizer.model", &model(2, &PLAIN));
        write("added_tokens.json", br#"{"<s>": 1, "<tool>": 6}"#);
        let tokenizer = Tokenizer::from_folder(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("<s>ab<tool>", Specials::Parse).unwrap(), [1, 4, 6]);
        assert!(tokenizer.is_control(1) && !tokenizer.is_control(6));
    }

    #[test]
    fn without_legacy_only_the_beginning_of_a_sequence_gets_a_space() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        // A normalizer with a space at the beginning.
        write("tokenizer.model", &model(2, &[0x18, 1, 0x20, 0]));
        let open = || Tokenizer::from_folder(dir.path()).unwrap();
        assert_eq!(open().encode("ab", Specials::Literal).unwrap(), [5, 4]);
        assert_eq!(open().encode_text("ab").unwrap(), [5, 4]);
        write("tokenizer_config.json", br#"{"legacy": false}"#);
        assert_eq!(open().encode("ab", Specials::Literal).unwrap(), [4]);
        assert_eq!(open().encode_text("ab a").unwrap(), [5, 4, 5, 2]);
        assert_eq!(open().encode("<s>ab", Specials::Parse).unwrap(), [1, 4]);
        write("tokenizer_config.json", br#"{"legacy": true}"#);
        assert_eq!(open().encode("<s>ab", Specials::Parse).unwrap(), [1, 5, 4]);
    }

    #[test]
    fn tokens_agree_with_sentencepiece() {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sentencepiece"));
        let tokenizer = Tokenizer::from_folder(dir).unwrap();
        let expected: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap();
        let cases = expected["cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u64> = case["ids"].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).collect();
            let found = tokenizer.encode(text, Specials::Literal).unwrap();
            assert_eq!(found.iter().map(|&id| u64::from(id)).collect::<Vec<_>>(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&found), format!(" {text}"));
        }
    }

    #[test]
    fn a_vocabulary_without_scores_gives_the_same_tokens() {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sentencepiece"));
        let scored = Tokenizer::from_folder(dir).unwrap();
        let mut pieces = parse(&std::fs::read(dir.join("tokenizer.model")).unwrap()).unwrap().pieces;
        pieces.iter_mut().for_each(|piece| piece.score = -1000.0);
        let unscored = Tokenizer::from_fast(sentencepiece::pipeline(&pieces, true, Vec::new()).unwrap()).unwrap();
        for text in ["these other questions", "The director of the film was born in another city."] {
            let wanted = scored.encode(text, Specials::Literal).unwrap();
            assert_eq!(unscored.encode(text, Specials::Literal).unwrap(), wanted, "{text:?}");
        }
    }

    #[test]
    fn other_files_of_this_name_are_refused_with_the_command() {
        for bytes in [model(1, &PLAIN), b"IQ== 0\nIg== 1\n".to_vec(), model(2, &PLAIN)[..20].to_vec()] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("tokenizer.model"), bytes).unwrap();
            let refused = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
            assert!(refused.contains("tokenizer.model") && refused.contains("save_pretrained"), "{refused}");
        }
    }

    #[test]
    fn normalizers_that_change_texts_are_refused_by_name() {
        let replaces = [&PLAIN[..], &[0x12, 2, b'x', 0]].concat();
        for (normalizer, name) in [
            (&replaces[..], "precompiled_charsmap"),
            (&[0x18, 0, 0x20, 1], "remove_extra_whitespaces"),
            // SentencePiece removes spaces by default.
            (&[0x18, 0], "remove_extra_whitespaces"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("tokenizer.model"), model(2, normalizer)).unwrap();
            let refused = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("save_pretrained"), "{refused}");
        }
        let dir = tempfile::tempdir().unwrap();
        let empty_table = [&PLAIN[..], &[0x12, 0]].concat();
        std::fs::write(dir.path().join("tokenizer.model"), model(2, &empty_table)).unwrap();
        assert!(Tokenizer::from_folder(dir.path()).is_ok());
    }
}
