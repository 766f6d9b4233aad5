//! Index of the files of a sharded checkpoint.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;

use crate::ModelError;

/// Index of shards: the file of each tensor.
#[derive(Debug, Deserialize)]
pub(crate) struct ShardIndex {
    pub(super) weight_map: HashMap<String, String>,
}

impl ShardIndex {
    /// Name of the index in the directory of a checkpoint.
    pub(crate) const FILE: &str = "model.safetensors.index.json";

    /// Reads the index in `dir`. `None` if there is none.
    ///
    /// # Errors
    /// [`ModelError::Io`], or [`ModelError::Corrupt`] if it is not an index, or names a file outside the directory.
    pub(crate) fn read(dir: &Path) -> Result<Option<ShardIndex>, ModelError> {
        let path = dir.join(ShardIndex::FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let corrupt = |reason: String| ModelError::Corrupt { path: path.clone(), reason };
        let bytes = std::fs::read(&path).map_err(ModelError::io("read", &path))?;
        let index: ShardIndex = serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if let Some(file) = index.files().iter().find(|file| file.contains(['/', '\\']) || file.starts_with('.')) {
            return Err(corrupt(format!("{file:?} is not a file name in the same directory")));
        }
        Ok(Some(index))
    }

    /// Returns the names of the files, sorted.
    pub(crate) fn files(&self) -> Vec<&str> {
        let files: BTreeSet<&str> = self.weight_map.values().map(String::as_str).collect();
        files.into_iter().collect()
    }
}
