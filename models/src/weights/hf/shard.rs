//! A single safetensors file.

use std::borrow::Cow;
use std::path::Path;

use safetensors::tensor::{Metadata, SafeTensors};
use sha2::Sha256;

use crate::ModelError;
use crate::weights::mapped_file::Map;
use crate::weights::tensor_view::{TensorView, kind_of};

/// A memory-mapped file and its validated header.
#[derive(Debug)]
pub(super) struct Shard {
    map: Map,
    metadata: Metadata,
    /// Offset of the tensors' bytes.
    data: usize,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        let map = Map::open(path)?;
        // Checks that the tensors fill the file exactly and that each has the size of its shape and type.
        let (header, metadata) = SafeTensors::read_metadata(map.bytes())
            .map_err(|error| map.corrupt(format!("truncated or damaged safetensors: {error}")))?;
        Ok(Self { map, metadata, data: header + 8 })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    pub(super) fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let broken = |reason: String| ModelError::Tensor { name: name.to_owned(), reason };
        let info = self.metadata.info(name).ok_or_else(|| broken("not in the file".to_owned()))?;
        let kind = kind_of(info.dtype)
            .ok_or_else(|| broken(format!("unsupported type {:?} in {}", info.dtype, self.map.path().display())))?;
        let (start, end) = info.data_offsets;
        let bytes = self.map.bytes().get(self.data + start..self.data + end);
        let bytes = bytes.ok_or_else(|| broken("outside the file".to_owned()))?;
        Ok(TensorView { kind, shape: info.shape.clone(), bytes: Cow::Borrowed(bytes) })
    }

    pub(super) fn release(&self) {
        self.map.release();
    }

    pub(super) fn identify(&self, hash: &mut Sha256) {
        self.map.identify(self.data, hash);
    }
}
