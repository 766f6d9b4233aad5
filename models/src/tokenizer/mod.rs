//! Conversion between text and token IDs, with control tokens that untrusted text can never produce.

mod byte;
mod byte_level;
mod control_tokens;
mod detokenizer;
mod fast;
mod gguf;
mod merge;
mod model_file;
mod sentencepiece;
mod table;
mod vocabulary;
mod window;

use std::path::Path;
use std::sync::Arc;

pub use detokenizer::Detokenizer;
pub use table::TokenBytes;
pub use window::encoding_memory;

use crate::ModelError;
use crate::chat::TextSegment;
use crate::weights::Gguf;
use byte::ByteTokenizer;
pub(crate) use control_tokens::END_TOKENS;
use fast::FastTokenizer;
pub(crate) use window::windows;

/// Treatment of control tokens that are spelled out in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Converts spellings to control tokens: for trusted text, such as the template part of a rendered chat.
    Parse,
    /// Keeps spellings as plain text: for everything else. No added token of the vocabulary is matched, except for
    /// single characters, and no control token is ever produced, whatever the text contains.
    Literal,
}

/// A tokenizer with the raw bytes of each of its tokens.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: TokenizerKind,
    table: Arc<TokenBytes>,
    /// Token that begins a text without a template. `None` if a text begins with its own tokens.
    bos: Option<u32>,
}

#[derive(Debug, Clone)]
enum TokenizerKind {
    Bytes(ByteTokenizer),
    Fast(Arc<FastTokenizer>),
}

impl Tokenizer {
    /// Reads a `tokenizer.json` in the format of the Hugging Face `tokenizers` library.
    ///
    /// # Errors
    /// [`ModelError::Io`] when the file cannot be read, [`ModelError::Corrupt`] when it is not a tokenizer.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        Self::from_fast(pipeline(path)?).map_err(|reason| ModelError::Corrupt { path: path.into(), reason })
    }

    /// Reads the tokenizer of a checkpoint in `dir`: `tokenizer.json`, `vocab.json` with `merges.txt`, or a
    /// `tokenizer.model` of SentencePiece with BPE.
    ///
    /// # Errors
    /// Same as [`from_file`](Self::from_file), and [`ModelError::Layout`] with the command that writes a
    /// `tokenizer.json` for other tokenizers.
    pub fn from_folder(dir: &Path) -> Result<Self, ModelError> {
        let file = dir.join("tokenizer.json");
        let has = |name: &str| dir.join(name).is_file();
        if has("tokenizer.json") || !(has("vocab.json") || has("tokenizer.model")) {
            return Self::from_file(&file);
        }
        if !(has("vocab.json") && has("merges.txt")) {
            let broken = |reason| ModelError::Corrupt { path: dir.join("tokenizer.model"), reason };
            return Self::from_fast(model_file::pipeline(dir)?).map_err(broken);
        }
        Self::from_fast(vocabulary::pipeline(dir)?)
            .map_err(|reason| ModelError::Corrupt { path: dir.join("vocab.json"), reason })
    }

    /// Rebuilds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when the metadata are inconsistent, [`ModelError::Unsupported`] for tokenizers other
    /// than byte-level BPE and SentencePiece's BPE, and for unknown pre-tokenization rules.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let tokenizer = Self::from_fast(gguf::pipeline(gguf)?).map_err(|reason| gguf.corrupt(reason))?;
        let bos = gguf::bos(gguf).filter(|&id| (id as usize) < tokenizer.vocab());
        Ok(tokenizer.with_bos(bos))
    }

    /// Creates the byte tokenizer of the mock backend: one token per byte value (id = byte), then `<|im_start|>`
    /// (256), `<|im_end|>` (257) and `<|endoftext|>` (258).
    pub fn bytes() -> Self {
        Self { kind: TokenizerKind::Bytes(ByteTokenizer), table: Arc::new(ByteTokenizer::table()), bos: None }
    }

    /// Wraps a library tokenizer. The error describes the defect of the vocabulary.
    fn from_fast(inner: tokenizers::Tokenizer) -> Result<Self, String> {
        let fast = FastTokenizer::new(inner);
        let table = Arc::new(fast.table()?);
        Ok(Self { kind: TokenizerKind::Fast(Arc::new(fast)), table, bos: None })
    }

    /// Sets the token that begins a text without a template (see [`encode_text`](Self::encode_text)). `None` writes
    /// none.
    #[must_use]
    pub fn with_bos(self, bos: Option<u32>) -> Self {
        Self { bos, ..self }
    }

    /// Token that the post-processor of a `tokenizer.json` writes before a text. `None` if it writes none.
    pub(crate) fn opening_token(&self) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Bytes(_) => None,
            TokenizerKind::Fast(fast) => fast.opening_token(),
        }
    }

    /// Returns the tokenizer for a model with `rows` embeddings: without the added tokens beyond them, which the model
    /// cannot read. Their names are plain text.
    ///
    /// # Errors
    /// A message with both numbers if a token of the vocabulary itself has no embedding.
    pub(crate) fn fitted_to(self, rows: usize) -> Result<Self, String> {
        let tokens = self.vocab();
        if tokens <= rows {
            return Ok(self);
        }
        if let TokenizerKind::Fast(fast) = &self.kind {
            let fitted = Self::from_fast(fast.without_added_from(rows)?)?;
            if fitted.vocab() <= rows {
                return Ok(fitted.with_bos(self.bos.filter(|&id| (id as usize) < rows)));
            }
        }
        Err(format!("the tokenizer has {tokens} tokens, the embedding matrix {rows} rows"))
    }

    /// Returns the tokenizer of a model whose turns end with `ends`. Those of them that the files declare as
    /// [markers](Self::marker_names) become control tokens, since none of them stands in an answer. Words, characters
    /// and white space keep their text, because other texts contain them.
    #[must_use]
    pub(crate) fn with_ends(self, ends: &[u32]) -> Self {
        let markers = self.marker_names().into_iter().filter_map(|name| self.id(&name));
        let markers: Vec<u32> = markers.filter(|id| ends.contains(id)).collect();
        if markers.is_empty() {
            return self;
        }
        let table = Arc::new(self.table.with_control(&markers));
        Self { table, ..self }
    }

    /// Upper bound of the memory to encode a text of `bytes` bytes, in bytes. A tokenizer that writes a space before
    /// each text encodes the text as a whole, others encode it window by window.
    pub fn encoding_memory(&self, bytes: usize) -> usize {
        match &self.kind {
            TokenizerKind::Fast(fast) if !fast.is_windowed() => window::whole_encoding_memory(bytes),
            TokenizerKind::Fast(_) | TokenizerKind::Bytes(_) => encoding_memory(bytes),
        }
    }

    /// Encodes a text, without a leading BOS. A text with [`Specials::Literal`] continues a sequence: it does not get
    /// the space that some tokenizers write before the first word.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, ModelError> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => Ok(bytes.encode(text, specials)),
            TokenizerKind::Fast(fast) => fast.encode(text, specials, &self.table),
        }
    }

    /// Encodes a text that begins a sequence and that no template wrote: after the BOS, if this model's texts begin
    /// with it. Control tokens that are spelled out stay text.
    ///
    /// # Errors
    /// The same as for [`encode`](Self::encode).
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let ids = self.encode_plain(text, true)?;
        let bos = self.bos.filter(|bos| ids.first() != Some(bos));
        Ok(bos.into_iter().chain(ids).collect())
    }

    /// Encodes a rendered conversation that begins a sequence, in the way of
    /// [`encode_segments`](Self::encode_segments). A BOS is written by the chat template, if at all.
    ///
    /// # Errors
    /// The same as for [`encode`](Self::encode).
    pub fn encode_prompt(&self, segments: &[TextSegment]) -> Result<Vec<u32>, ModelError> {
        self.encode_parts(segments, true)
    }

    /// Encodes a part of a rendered conversation that continues a sequence. Control tokens are recognized inside
    /// trusted segments only. The text between two control tokens is encoded in one piece, so harmless content
    /// gets the same IDs as in the whole rendered text, and a control token's name spread over two segments stays text.
    ///
    /// # Errors
    /// The same as for [`encode`](Self::encode).
    pub fn encode_segments(&self, segments: &[TextSegment]) -> Result<Vec<u32>, ModelError> {
        self.encode_parts(segments, false)
    }

    fn encode_parts(&self, segments: &[TextSegment], begins: bool) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::new();
        let mut text = String::new();
        for segment in segments {
            if !segment.trusted {
                text.push_str(&segment.text);
                continue;
            }
            for piece in self.split_control(&segment.text) {
                match piece {
                    Piece::Text(part) => text.push_str(&part),
                    Piece::Control(id) => {
                        let part = self.encode_plain(&text, begins && ids.is_empty())?;
                        ids.extend(part);
                        text.clear();
                        ids.push(id);
                    }
                }
            }
        }
        let part = self.encode_plain(&text, begins && ids.is_empty())?;
        ids.extend(part);
        Ok(ids)
    }

    /// Encodes text without control tokens, at the beginning of a sequence or after other tokens.
    fn encode_plain(&self, text: &str, is_first: bool) -> Result<Vec<u32>, ModelError> {
        match &self.kind {
            TokenizerKind::Fast(fast) if is_first => fast.encode_first(text, &self.table),
            TokenizerKind::Fast(_) | TokenizerKind::Bytes(_) => self.encode(text, Specials::Literal),
        }
    }

    fn split_control(&self, text: &str) -> Vec<Piece> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => bytes.split_control(text),
            TokenizerKind::Fast(fast) => fast.split_control(text),
        }
    }

    /// Decodes a sequence of IDs. Control tokens yield no text, broken UTF-8 yields U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.bytes_of(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Raw bytes of one token; empty for control tokens and for IDs outside the vocabulary.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        self.table.get(id)
    }

    /// Bytes of every token, for sharing with the engine.
    pub fn table(&self) -> Arc<TokenBytes> {
        Arc::clone(&self.table)
    }

    /// ID of a token by its name in the vocabulary, such as `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => bytes.id(token),
            TokenizerKind::Fast(fast) => fast.id(token),
        }
    }

    /// Name of a token in the vocabulary. For ordinary tokens of a byte-level vocabulary, the name is not the text.
    pub fn name(&self, id: u32) -> Option<String> {
        match &self.kind {
            TokenizerKind::Bytes(bytes) => bytes.name(id),
            TokenizerKind::Fast(fast) => fast.name(id),
        }
    }

    /// Returns `true` for tokens that control the model and have no text of their own.
    pub fn is_control(&self, id: u32) -> bool {
        self.table.is_control(id)
    }

    /// Names of all control tokens.
    pub fn control_names(&self) -> Vec<String> {
        (0..self.vocab() as u32).filter(|&id| self.is_control(id)).filter_map(|id| self.name(id)).collect()
    }

    /// Names of tokens that structure a text without controlling the model, such as `<think>` and `<tool_call>`.
    pub fn marker_names(&self) -> Vec<String> {
        match &self.kind {
            TokenizerKind::Bytes(_) => Vec::new(),
            TokenizerKind::Fast(fast) => fast.markers(),
        }
    }

    /// Length of the longest token in bytes; at least 1. `n` tokens stand for at most `n` times as many bytes.
    pub fn longest(&self) -> usize {
        self.table.longest().max(1)
    }

    /// Highest ID plus one.
    pub fn vocab(&self) -> usize {
        self.table.len()
    }
}

/// Reads a `tokenizer.json` and checks its merges before `tokenizers` sees them.
///
/// # Errors
/// [`ModelError::Io`] when the file cannot be read, [`ModelError::Corrupt`] when it is not a tokenizer.
pub(crate) fn pipeline(path: &Path) -> Result<tokenizers::Tokenizer, ModelError> {
    let bytes = std::fs::read(path).map_err(ModelError::io("read", path))?;
    let corrupt = |reason: String| ModelError::Corrupt { path: path.into(), reason };
    let json = serde_json::from_slice(&bytes).map_err(|reason| corrupt(format!("not a tokenizer: {reason}")))?;
    merge::check_json(&json).map_err(corrupt)?;
    // Parsed from the checked value, not from the bytes, which might contain a key twice.
    serde_json::from_value(json).map_err(|reason| corrupt(format!("not a tokenizer: {reason}")))
}

/// Part of a trusted text.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Control(u32),
}
