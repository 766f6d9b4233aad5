//! JSON files of a model's directory.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::ModelError;

/// Parses a file. `None` if it does not exist.
pub(crate) fn parse_present<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    if path.exists() { parse(path).map(Some) } else { Ok(None) }
}

/// Parses a file.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| ModelError::Corrupt { path: path.to_owned(), reason: error.to_string() })
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    fs::read(path).map_err(ModelError::io("read", path))
}
