//! Hugging Face checkpoints: safetensors, single or sharded, with a `config.json`.

mod config;
mod experts;
mod features;
mod shard;
mod shard_index;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sha2::Sha256;

use super::tensor_view::TensorView;
use crate::ModelError;
use shard::Shard;

pub(super) use config::read as read_config;
pub(crate) use shard_index::ShardIndex;

/// Open safetensors files, presented as one set of tensors.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    shards: Vec<Shard>,
    /// Index of the shard that holds each tensor.
    places: HashMap<String, usize>,
}

impl Safetensors {
    /// Opens one `.safetensors` file, or a directory with `model.safetensors` or `model.safetensors.index.json`. In a
    /// directory with both, the single file counts, as in `transformers`.
    ///
    /// # Errors
    /// [`ModelError::Io`], or [`ModelError::Corrupt`] naming the defective file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if !path.is_dir() {
            return Self::single(path);
        }
        let single = path.join("model.safetensors");
        if single.is_file() {
            return Self::single(&single);
        }
        match ShardIndex::read(path)? {
            Some(index) => Self::sharded(path, &index),
            None => Self::single(&single),
        }
    }

    /// Creates an empty set of tensors for the checkpoint at `path`.
    pub(super) fn none(path: &Path) -> Self {
        Self { path: path.into(), shards: Vec::new(), places: HashMap::new() }
    }

    fn single(path: &Path) -> Result<Self, ModelError> {
        let shard = Shard::open(path)?;
        let places = shard.names().map(|name| (name, 0)).collect();
        Ok(Self { path: path.into(), shards: vec![shard], places })
    }

    fn sharded(folder: &Path, index: &ShardIndex) -> Result<Self, ModelError> {
        let files = index.files();
        let shards = files.iter().map(|file| Shard::open(&folder.join(file))).collect::<Result<Vec<_>, _>>()?;
        let mut places = HashMap::new();
        for (name, file) in &index.weight_map {
            let place = files.binary_search(&file.as_str()).unwrap_or_default();
            if !shards[place].has(name) {
                let reason = format!("tensor {name} is not in {file}");
                return Err(ModelError::Corrupt { path: folder.join(ShardIndex::FILE), reason });
            }
            places.insert(name.clone(), place);
        }
        Ok(Self { path: folder.into(), shards, places })
    }

    /// Returns `true` if there is a tensor with this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Tensor by name, with bytes borrowed from the file. Also finds tensors of checkpoints that were saved without
    /// a language-model head and therefore lack the prefix `model.`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] when the tensor does not exist or its type is not `F32`, `F16` or `BF16`.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        match self.find(name) {
            Some((shard, name)) => shard.tensor(name),
            None => {
                let reason = format!("not in {}", self.path.display());
                Err(ModelError::Tensor { name: name.to_owned(), reason })
            }
        }
    }

    fn find<'n>(&self, name: &'n str) -> Option<(&Shard, &'n str)> {
        let names = [Some(name), name.strip_prefix("model.")];
        names.into_iter().flatten().find_map(|name| Some((&self.shards[*self.places.get(name)?], name)))
    }

    pub(super) fn release(&self) {
        self.shards.iter().for_each(Shard::release);
    }

    pub(super) fn identify(&self, hash: &mut Sha256) {
        self.shards.iter().for_each(|shard| shard.identify(hash));
    }
}
