//! Small JSON files that are replaced whole.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use waymark_models::durable_file;

/// Replaces a file with the JSON of `value`. A killed process leaves the old file or the new one.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    durable_file::replace(path, &serde_json::to_vec(value)?)
}

/// Reads a file. `None` if there is none.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(json) => Ok(Some(serde_json::from_slice(&json)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file durably. A file that is gone already is not an error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => durable_file::sync_parent(path),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_reported_as_damaged() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("about.json");
        assert_eq!(read::<u32>(&path).unwrap(), None);
        write(&path, &1).unwrap();
        write(&path, &2).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), Some(2));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
        fs::write(&path, "{").unwrap();
        assert!(read::<u32>(&path).is_err());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), None);
    }
}
