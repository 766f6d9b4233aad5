//! Text to token ids and back, with control tokens that untrusted text can never spell.

mod byte;
mod detokenizer;
mod fast;
mod gguf;
mod merge;
mod table;

use std::path::Path;
use std::sync::Arc;

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

pub use detokenizer::Detokenizer;
pub use table::TokenBytes;

use crate::ModelError;
use crate::chat::Segment;
use crate::weights::Gguf;
use byte::ByteTokenizer;
use fast::FastTokenizer;

/// What becomes of control tokens that are spelled out in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They become the control token: for text written by us, such as a rendered chat template.
    Parse,
    /// They stay plain text: for everything else. No added token of the vocabulary is looked for, and no control token
    /// is ever produced, whatever the text holds.
    Literal,
}

/// A tokenizer with the raw bytes of each of its tokens.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: Kind,
    table: Arc<TokenBytes>,
}

#[derive(Debug, Clone)]
enum Kind {
    Bytes(ByteTokenizer),
    Fast(Arc<FastTokenizer>),
}

impl Tokenizer {
    /// Reads a `tokenizer.json` in the format of the Hugging Face `tokenizers` library.
    ///
    /// # Errors
    /// [`ModelError::Io`] when the file cannot be read, [`ModelError::Corrupt`] when it is not a tokenizer,
    /// [`ModelError::Unsupported`] when it cuts the beginning of a text in another way than what follows a control token.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        let inner = pipeline(path)?;
        if inner.get_pre_tokenizer().is_some_and(marks_the_beginning) {
            // A conversation is encoded in parts, and each would get the space that only the first one has.
            let what = "pre-tokenizer Metaspace with prepend_scheme \"first\"".to_owned();
            return Err(ModelError::Unsupported { path: path.into(), what });
        }
        Self::from_fast(inner).map_err(|reason| ModelError::Corrupt { path: path.into(), reason })
    }

    /// Rebuilds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when the metadata do not fit together, [`ModelError::Unsupported`] for tokenizers other
    /// than byte-level BPE and for unknown ways of cutting text.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_fast(gguf::pipeline(gguf)?).map_err(|reason| gguf.corrupt(reason))
    }

    /// One token per byte value (id = byte), then `<|im_start|>` (256), `<|im_end|>` (257) and `<|endoftext|>` (258):
    /// what the mock backend speaks.
    pub fn bytes() -> Self {
        Self { kind: Kind::Bytes(ByteTokenizer), table: Arc::new(ByteTokenizer::table()) }
    }

    /// The error says what is wrong with the vocabulary.
    fn from_fast(inner: tokenizers::Tokenizer) -> Result<Self, String> {
        let fast = FastTokenizer::new(inner);
        let table = Arc::new(fast.table()?);
        Ok(Self { kind: Kind::Fast(Arc::new(fast)), table })
    }

    /// The ids of a text. Nothing is added: a leading BOS, where a model wants one, is the chat template's business.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, ModelError> {
        match &self.kind {
            Kind::Bytes(bytes) => Ok(bytes.encode(text, specials)),
            Kind::Fast(fast) => fast.encode(text, specials, &self.table),
        }
    }

    /// The ids of a rendered conversation: control tokens are honoured inside trusted segments only. Everything
    /// between two of them is encoded as one text, so that harmless content gets the very ids that the whole rendered
    /// text would get, and a control token's name spread over two segments stays text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, ModelError> {
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
                        ids.extend(self.encode(&text, Specials::Literal)?);
                        text.clear();
                        ids.push(id);
                    }
                }
            }
        }
        ids.extend(self.encode(&text, Specials::Literal)?);
        Ok(ids)
    }

    fn split_control(&self, text: &str) -> Vec<Piece> {
        match &self.kind {
            Kind::Bytes(bytes) => bytes.split_control(text),
            Kind::Fast(fast) => fast.split_control(text),
        }
    }

    /// The text of a sequence of ids; control tokens give nothing, broken UTF-8 gives U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.bytes_of(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The raw bytes of one token; empty for control tokens and for ids outside the vocabulary.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        self.table.get(id)
    }

    /// The bytes of every token, to be shared with the engine.
    pub fn table(&self) -> Arc<TokenBytes> {
        Arc::clone(&self.table)
    }

    /// The id of a token by its name in the vocabulary, such as `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Bytes(bytes) => bytes.id(token),
            Kind::Fast(fast) => fast.id(token),
        }
    }

    /// The name of a token in the vocabulary; for ordinary tokens of a byte-level vocabulary that is not their text.
    pub fn name(&self, id: u32) -> Option<String> {
        match &self.kind {
            Kind::Bytes(bytes) => bytes.name(id),
            Kind::Fast(fast) => fast.name(id),
        }
    }

    /// True for tokens that steer the model and have no text of their own.
    pub fn is_control(&self, id: u32) -> bool {
        self.table.is_control(id)
    }

    /// The names of all control tokens.
    pub fn control_names(&self) -> Vec<String> {
        (0..self.vocab() as u32).filter(|&id| self.is_control(id)).filter_map(|id| self.name(id)).collect()
    }

    /// One more than the highest id.
    pub fn vocab(&self) -> usize {
        self.table.len()
    }
}

/// Reads a `tokenizer.json`. Its merges are checked before `tokenizers` sees them.
///
/// # Errors
/// [`ModelError::Io`] when the file cannot be read, [`ModelError::Corrupt`] when it is not a tokenizer.
pub(crate) fn pipeline(path: &Path) -> Result<tokenizers::Tokenizer, ModelError> {
    let bytes = std::fs::read(path).map_err(ModelError::io("read", path))?;
    let corrupt = |reason: String| ModelError::Corrupt { path: path.into(), reason };
    let json = serde_json::from_slice(&bytes).map_err(|reason| corrupt(format!("not a tokenizer: {reason}")))?;
    merge::check_json(&json).map_err(corrupt)?;
    // From the value that was checked, not from the bytes: these might have a key twice.
    serde_json::from_value(json).map_err(|reason| corrupt(format!("not a tokenizer: {reason}")))
}

/// True when a mark for a space is put before the first word of a text, and before no other beginning.
fn marks_the_beginning(pre: &PreTokenizerWrapper) -> bool {
    match pre {
        PreTokenizerWrapper::Metaspace(space) => space.prepend_scheme == PrependScheme::First,
        PreTokenizerWrapper::Sequence(list) => list.as_ref().iter().any(marks_the_beginning),
        _ => false,
    }
}

/// Part of a trusted text.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Control(u32),
}
