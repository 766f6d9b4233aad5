//! Folders that hold an object with its record (uploaded files and vector stores), or records alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use waymark_models::durable_file;

use super::json_file;

/// Name of the record of an object in its folder.
pub(super) const ABOUT: &str = "about.json";

/// Beginning of the names of folders that are being created or removed.
pub(super) const UNFINISHED: &str = ".";

/// Writes the record of the unfinished folder `part`, and renames the folder to `dir`.
pub(super) fn publish(part: &Path, dir: &Path, record: &impl Serialize) -> io::Result<()> {
    json_file::write(&part.join(ABOUT), record)?;
    fs::rename(part, dir)?;
    durable_file::sync_parent(dir)
}

/// Removes a folder so that a killed process leaves it whole or under a name that the next start removes.
pub(super) fn discard(dir: &Path) -> io::Result<()> {
    let gone = dir.with_file_name(format!("{UNFINISHED}{}", Uuid::now_v7().simple()));
    fs::rename(dir, &gone)?;
    durable_file::sync_parent(&gone)?;
    if let Err(error) = fs::remove_dir_all(&gone) {
        tracing::warn!(%error, path = %gone.display(), "cannot remove a deleted folder before the next start");
    }
    Ok(())
}

/// Removes what a killed process left in `dir`: folders that it was creating or removing, and files that it was writing.
pub(super) fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !entry.file_type()?.is_dir() {
            if durable_file::is_part(&name) {
                fs::remove_file(entry.path())?;
            }
        } else if name.starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Reads the records in a folder of files, by the stems of their names, after removing those that are unfinished.
pub(super) fn read_all<T: DeserializeOwned>(folder: &Path) -> io::Result<BTreeMap<String, T>> {
    remove_unfinished(folder)?;
    let mut records = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let is_record = path.extension().is_some_and(|extension| extension == "json");
        if let (Some(name), true) = (stem, is_record)
            && let Some(record) = json_file::read(&path)?
        {
            records.insert(name, record);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_a_killed_process_was_writing_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        json_file::write(&dir.path().join("a.json"), &1).unwrap();
        fs::write(dir.path().join(".a.json.7.part"), "2").unwrap();
        fs::create_dir(dir.path().join(".gone")).unwrap();
        assert_eq!(read_all::<u32>(dir.path()).unwrap(), BTreeMap::from([("a".to_owned(), 1)]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
