//! GGUF files: weights, configuration and vocabulary in one.

mod config;
mod header;
mod name;
mod permute;
mod read;
mod value;

use std::borrow::Cow;
use std::path::Path;

use sha2::Sha256;

use super::map::Map;
use super::view::TensorView;
use crate::ModelError;
use crate::decoder::DecoderConfig;
use header::Header;
use value::Value;

/// An open GGUF file. Tensors have the names and the row order of the Hugging Face checkpoint that it was made from.
#[derive(Debug)]
pub struct Gguf {
    map: Map,
    header: Header,
}

impl Gguf {
    /// Opens a file and checks its header: every tensor lies inside the file and has whole blocks.
    ///
    /// # Errors
    /// [`ModelError::Io`], or [`ModelError::Corrupt`] saying what is wrong with the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let map = Map::open(path)?;
        let header = Header::read(map.bytes()).map_err(|reason| map.corrupt(reason))?;
        Ok(Self { map, header })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// The architecture, such as `llama` or `qwen2`.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] when the file does not say.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        self.text("general.architecture").ok_or_else(|| self.corrupt("general.architecture is missing"))
    }

    /// A text of the metadata.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.header.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number of the metadata that is not negative.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.header.metadata.get(key)?.unsigned()
    }

    /// A real number of the metadata.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.header.metadata.get(key)?.float()
    }

    /// An array of texts of the metadata; broken UTF-8 is replaced.
    pub fn texts(&self, key: &str) -> Option<Vec<Cow<'_, str>>> {
        match self.header.metadata.get(key)? {
            Value::Array(array) => array.texts(self.map.bytes()),
            _ => None,
        }
    }

    /// An array of numbers of the metadata, read one by one: a damaged file may claim any number of them. None stands for
    /// an element that is negative or no whole number.
    pub fn numbers(&self, key: &str) -> Option<impl ExactSizeIterator<Item = Option<u64>>> {
        match self.header.metadata.get(key)? {
            Value::Array(array) => array.numbers(self.map.bytes()),
            _ => None,
        }
    }

    /// The decoder that the metadata describe.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] for missing or impossible numbers, [`ModelError::Unsupported`] for architectures that
    /// are not known here.
    pub fn config(&self) -> Result<DecoderConfig, ModelError> {
        config::read(self)
    }

    /// True when there is a tensor of this canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.stored(name).is_some()
    }

    /// A tensor by its canonical name. Its bytes are borrowed from the file, except where rows have to change places.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let Some(tensor) = self.stored(name) else {
            let reason = format!("not in {}", self.path().display());
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
        self.header.tensors.get(&name::gguf(name)?)
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
