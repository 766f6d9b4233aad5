//! Repair of a damaged index from an undamaged copy.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::checksum::FileChecksum;
use crate::delta::log;
use crate::error::IndexError;
use crate::folder::{self, LockedFolder};
use crate::manifest::{DeltaInfo, Manifest};

/// Result of [`repair`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Replaced parts: file relative to the index, and the range of bytes.
    pub replaced: Vec<(String, Range<u64>)>,
    /// Number of files read.
    pub files: usize,
}

/// Replaces every damaged block of the published snapshot in `dir` by the same block of a copy of the index in `from`,
/// such as a replica or a backup. Each repaired file must have its recorded checksum. The copy may be of another
/// snapshot, as long as it holds the same files; of the log of changes it may hold the beginning alone, if the rest of
/// the log in `dir` is whole. Searches of the index continue with the damaged files until the index is opened again. A
/// [`LiveIndex`](crate::LiveIndex) opens it with its next scrub, commit or merge.
///
/// # Errors
/// If the copy lacks a damaged block or it is damaged there too; if another process is writing; if the disk fails.
pub fn repair(dir: &Path, from: &Path) -> Result<RepairReport, IndexError> {
    // Locked first: another process may publish a snapshot until then.
    let _writing = LockedFolder::lock(dir)?;
    let manifest = Manifest::read(dir)?;
    let source = Manifest::read(from)?;
    let mut report = RepairReport::default();
    for (name, sum) in &manifest.files {
        report.files += 1;
        let path = dir.join(name);
        // A missing file is one damaged range.
        let damaged = match path.exists() {
            true => sum.damaged(&path, &mut |_| ())?,
            false => std::iter::once(0..sum.bytes).collect(),
        };
        if damaged.is_empty() {
            continue;
        }
        let copy = copy_of(&source, from, name, sum).ok_or_else(|| {
            IndexError::corrupt(
                &path,
                format!("damaged from byte {} on, and {} has no such file", damaged[0].start, from.display()),
            )
        })?;
        restore(&path, &copy, sum, &damaged)?;
        report.replaced.extend(damaged.into_iter().map(|range| (name.clone(), range)));
    }
    if let Some(delta) = &manifest.delta {
        let path = dir.join(&delta.log);
        let dims = manifest.embedder.dims;
        if log::read(&path, delta.bytes, dims).is_err() {
            let common = common_log(&source, delta);
            restore_log(&path, &from.join(&delta.log), common..delta.bytes, dims)?;
            report.replaced.push((delta.log.clone(), 0..common));
        }
    }
    Ok(report)
}

/// Finds the file of the copy with the same content.
fn copy_of(source: &Manifest, from: &Path, name: &str, sum: &FileChecksum) -> Option<PathBuf> {
    let within = |name: &str| name.split_once('/').map(|(_, within)| within.to_owned());
    let same = |(other, found): &(&String, &FileChecksum)| within(other) == within(name) && *found == sum;
    source.files.iter().find(same).map(|(other, _)| from.join(other))
}

/// Writes a file anew, with damaged ranges from the copy.
fn restore(path: &Path, copy: &Path, sum: &FileChecksum, damaged: &[Range<u64>]) -> Result<(), IndexError> {
    // A missing file is one damaged range; anything else that is lost here fails the check below.
    let mut bytes = fs::read(path).unwrap_or_default();
    bytes.resize(sum.bytes as usize, 0);
    for range in damaged {
        bytes[range.start as usize..range.end as usize].copy_from_slice(&read(copy, range.clone())?);
    }
    if FileChecksum::of_bytes(&bytes).crc32 != sum.crc32 {
        return Err(IndexError::corrupt(copy, "it is damaged where the other copy is"));
    }
    replace(path, &bytes)
}

/// Returns the length of the beginning of a log that the copy has too. A copy whose manifest names another log may
/// still hold this one.
fn common_log(source: &Manifest, delta: &DeltaInfo) -> u64 {
    let copied = source.delta.as_ref().filter(|copied| copied.log == delta.log);
    copied.map_or(delta.bytes, |copied| copied.bytes.min(delta.bytes))
}

/// Writes a log anew, with everything before the range `own` from the copy.
fn restore_log(path: &Path, copy: &Path, own: Range<u64>, dims: usize) -> Result<(), IndexError> {
    log::check(path, own.start, own.end, dims)?;
    log::check(copy, 0, own.start, dims)?;
    let mut bytes = read(copy, 0..own.start)?;
    // A log that is missing is copied whole.
    if !own.is_empty() {
        bytes.extend(read(path, own)?);
    }
    replace(path, &bytes)
}

fn read(path: &Path, range: Range<u64>) -> Result<Vec<u8>, IndexError> {
    let mut file = File::open(path).map_err(IndexError::io("open", path))?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
    read.map_err(IndexError::io("read", path))?;
    Ok(bytes)
}

/// Replaces a file by a rename, so that processes that have mapped the damaged one keep it.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), IndexError> {
    let part = path.with_extension("repair.part");
    folder::replace_file(&part, path, bytes)?;
    path.parent().map_or(Ok(()), folder::sync_folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::checksum::BLOCK;

    #[test]
    fn a_file_of_another_length_is_restored_from_a_copy() {
        let temp = tempfile::tempdir().unwrap();
        let copy = temp.path().join("copy.bin");
        let path = temp.path().join("file.bin");
        let bytes: Vec<u8> = (0..5 * BLOCK / 2).map(|i| (i % 251) as u8).collect();
        let sum = FileChecksum::of_bytes(&bytes);
        fs::write(&copy, &bytes).unwrap();
        let cut = bytes[..BLOCK as usize + 100].to_vec();
        for damage in [Vec::new(), cut, [&bytes[..], b"more"].concat(), bytes.repeat(2)] {
            fs::write(&path, &damage).unwrap();
            let ranges = sum.damaged(&path, &mut |_| ()).unwrap();
            restore(&path, &copy, &sum, &ranges).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{} bytes", damage.len());
        }
    }
}
