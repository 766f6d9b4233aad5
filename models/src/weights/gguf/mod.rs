//! GGUF files: weights, configuration and vocabulary in one file.

mod config;
mod experts;
mod header;
mod name;
mod permute;
mod read;
mod value;
mod windows;

use std::borrow::Cow;
use std::path::Path;

use sha2::Sha256;

use super::mapped_file::Map;
use super::tensor_view::TensorView;
use crate::ModelError;
use crate::architecture::{DecoderConfig, Family, NormPlacement};
use crate::layout::gguf_parts;
use header::Header;
use value::MetadataValue;

/// An open GGUF file. Tensors have the names and row order of the Hugging Face checkpoint from which the file was
/// converted.
#[derive(Debug)]
pub struct Gguf {
    map: Map,
    header: Header,
}

impl Gguf {
    /// Opens a file and checks its header: every tensor must lie inside the file and consist of whole blocks.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Corrupt`] describing the defect, or [`ModelError::Layout`] for one of several
    /// parts.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let map = Map::open(path)?;
        let header = Header::read(map.bytes()).map_err(|reason| map.corrupt(reason))?;
        let gguf = Self { map, header };
        match gguf.number("split.count") {
            Some(count) if count > 1 => Err(gguf_parts::refusal(path, count)),
            _ => Ok(gguf),
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// Architecture, such as `llama` or `qwen2`.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when the file does not state it.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        self.text("general.architecture").ok_or_else(|| self.corrupt("general.architecture is missing"))
    }

    /// Text value of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.header.metadata.get(key)? {
            MetadataValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Non-negative integer of the metadata.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.header.metadata.get(key)?.unsigned()
    }

    /// Real number of the metadata.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.header.metadata.get(key)?.float()
    }

    /// Array of texts of the metadata; broken UTF-8 is replaced.
    pub fn texts(&self, key: &str) -> Option<Vec<Cow<'_, str>>> {
        match self.header.metadata.get(key)? {
            MetadataValue::Array(array) => array.texts(self.map.bytes()),
            _ => None,
        }
    }

    /// Array of numbers of the metadata, read lazily: a damaged file may claim any length. `None` stands for an
    /// element that is negative or not an integer.
    pub fn numbers(&self, key: &str) -> Option<impl ExactSizeIterator<Item = Option<u64>>> {
        match self.header.metadata.get(key)? {
            MetadataValue::Array(array) => array.numbers(self.map.bytes()),
            _ => None,
        }
    }

    /// Truth value of the metadata.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.header.metadata.get(key)? {
            MetadataValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Array of truth values of the metadata, read lazily like [`numbers`](Self::numbers). Numbers other than 0 count as
    /// `true`. `None` stands for an element that is neither.
    fn flags(&self, key: &str) -> Option<impl ExactSizeIterator<Item = Option<bool>>> {
        match self.header.metadata.get(key)? {
            MetadataValue::Array(array) => array.flags(self.map.bytes()),
            _ => None,
        }
    }

    /// Array of real numbers of the metadata. `None` if an element is not a number.
    pub fn floats(&self, key: &str) -> Option<Vec<f32>> {
        match self.header.metadata.get(key)? {
            MetadataValue::Array(array) => array.floats(self.map.bytes()),
            _ => None,
        }
    }

    /// Decoder configuration described by the metadata.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] for missing or impossible numbers, [`ModelError::Unsupported`] for unknown
    /// architectures and features.
    pub fn config(&self) -> Result<DecoderConfig, ModelError> {
        config::read(self)
    }

    /// Returns `true` if there is a tensor with this canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.stored(name).is_some()
    }

    /// Tensor by its canonical name. Its bytes are borrowed from the file unless rows have to be reordered.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let Some(tensor) = self.stored(name) else {
            let called = name::gguf(name, self.norms());
            let called = called.map_or_else(String::new, |ggml| format!(", where it would be called {ggml}"));
            let reason = format!("not in {}{called}", self.path().display());
            return Err(ModelError::Tensor { name: name.to_owned(), reason });
        };
        let bytes = &self.map.bytes()[tensor.bytes.clone()];
        let bytes = match permute::heads(self, name)? {
            Some(heads) => Cow::Owned(permute::undo(bytes, tensor.shape[0], heads, name)?),
            None => Cow::Borrowed(bytes),
        };
        Ok(TensorView { kind: tensor.kind, shape: tensor.shape.clone(), bytes })
    }

    fn stored(&self, name: &str) -> Option<&header::Tensor> {
        self.header.tensors.get(&name::gguf(name, self.norms())?)
    }

    /// Position of the norms, on which names depend.
    fn norms(&self) -> NormPlacement {
        let family = self.architecture().ok().and_then(|name| Family::of_gguf(name).ok());
        family.map_or(NormPlacement::Before, |family| family.norms)
    }

    pub(super) fn release(&self) {
        self.map.release();
    }

    pub(super) fn identify(&self, hash: &mut Sha256) {
        self.map.identify(self.header.len, hash);
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> ModelError {
        self.map.corrupt(reason)
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> ModelError {
        self.map.unsupported(what)
    }
}
