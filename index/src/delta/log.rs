//! Append-only file of delta records.
//!
//! Layout: for each record a magic number, the length of the record as `u64` and its CRC-32, all little-endian, then
//! the record. The manifest says how many bytes of the file belong to the snapshot. Later bytes are the remains of a
//! killed commit, and are overwritten. Bytes that a manifest names are never written again, so a snapshot is a prefix
//! of the file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::record::DeltaRecord;
use crate::error::IndexError;

const MAGIC: [u8; 4] = *b"WMD1";
const HEAD: usize = 4 + 8 + 4;

/// First records of a log, as far as their length and checksums tell them from others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogPrefix {
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// CRC-32 of the heads of the records, which hold the checksums of the records.
    heads: u32,
}

/// Records that were read from a log.
#[derive(Debug)]
pub(crate) struct LogRecords {
    pub(crate) records: Vec<DeltaRecord>,
    /// Part of the log that ends with the last of the records.
    pub(crate) end: LogPrefix,
}

/// Head of a record.
struct FrameHead {
    bytes: [u8; HEAD],
    /// Length of the record in bytes.
    length: u64,
    /// CRC-32 of the record.
    sum: u32,
}

impl FrameHead {
    /// Parses a head. `None` if it is invalid.
    fn parse(bytes: [u8; HEAD]) -> Option<FrameHead> {
        let length = u64::from_le_bytes(bytes[4..12].try_into().ok()?);
        let sum = u32::from_le_bytes(bytes[12..].try_into().ok()?);
        (bytes[..4] == MAGIC).then_some(FrameHead { bytes, length, sum })
    }
}

impl LogPrefix {
    /// Returns the prefix that also has the record with this head.
    fn with(self, head: &FrameHead) -> LogPrefix {
        let mut heads = crc32fast::Hasher::new_with_initial(self.heads);
        heads.update(&head.bytes);
        let bytes = self.bytes.saturating_add(HEAD as u64).saturating_add(head.length);
        LogPrefix { bytes, heads: heads.finalize() }
    }

    /// Returns `true` if the log in `file` begins with this prefix. Reads only the heads of its records.
    fn begins(self, file: &mut File) -> std::io::Result<bool> {
        let mut found = LogPrefix::default();
        while found.bytes < self.bytes {
            let mut bytes = [0; HEAD];
            file.seek(SeekFrom::Start(found.bytes))?;
            file.read_exact(&mut bytes)?;
            let Some(head) = FrameHead::parse(bytes) else { return Ok(false) };
            found = found.with(&head);
        }
        Ok(found == self)
    }
}

/// Appends a record after `prefix` and makes it durable. Returns the prefix that ends with it.
pub(crate) fn append(
    path: &Path,
    prefix: LogPrefix,
    record: &DeltaRecord,
    dims: usize,
) -> Result<LogPrefix, IndexError> {
    let position = prefix.bytes;
    let record = record.encode(dims).map_err(|_| IndexError::Io {
        action: "append a change of more than 4 GiB to",
        path: path.to_owned(),
        source: std::io::ErrorKind::FileTooLarge.into(),
    })?;
    let head = head(&record);
    let frame = [head.bytes.as_slice(), record.as_slice()].concat();
    let new = !path.exists();
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let mut file = open.map_err(IndexError::io("open", path))?;
    check_length(&file, path, position)?;
    let write = |file: &mut File| {
        // Removes what a killed commit left behind.
        file.set_len(position)?;
        file.seek(SeekFrom::Start(position))?;
        file.write_all(&frame)?;
        file.sync_all()
    };
    if let Err(error) = write(&mut file) {
        // Removes the part that was written before the disk was full. The manifest does not name it either way.
        let _ = if new { std::fs::remove_file(path) } else { file.set_len(position) };
        return Err(IndexError::io("write", path)(error));
    }
    if new && let Some(dir) = path.parent() {
        crate::folder::sync_folder(dir)?;
    }
    Ok(prefix.with(&head))
}

/// Builds the head of a record.
fn head(record: &[u8]) -> FrameHead {
    let length = record.len() as u64;
    let sum = crc32fast::hash(record);
    let mut bytes = [0; HEAD];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..].copy_from_slice(&sum.to_le_bytes());
    FrameHead { bytes, length, sum }
}

/// Reads the records in the first `to` bytes of a log.
pub(crate) fn read(path: &Path, to: u64, dims: usize) -> Result<LogRecords, IndexError> {
    let from = LogPrefix::default();
    // An empty log has no file.
    if to == 0 {
        return Ok(LogRecords { records: Vec::new(), end: from });
    }
    let file = open(path, to)?;
    read_records(file, path, from, to, dims)
}

/// Reads the records between the prefix `from` of a log and the byte `to`. `None` if the log does not begin with the
/// prefix, so that it is another one under the same name.
pub(crate) fn read_after(path: &Path, from: LogPrefix, to: u64, dims: usize) -> Result<Option<LogRecords>, IndexError> {
    if to < from.bytes {
        return Ok(None);
    }
    if to == 0 {
        return read(path, to, dims).map(Some);
    }
    let mut file = open(path, to)?;
    if !from.begins(&mut file).map_err(IndexError::io("read", path))? {
        return Ok(None);
    }
    read_records(file, path, from, to, dims).map(Some)
}

/// Checks the records between the bytes `from` and `to` of a log. `from` is the end of a record.
pub(crate) fn check(path: &Path, from: u64, to: u64, dims: usize) -> Result<(), IndexError> {
    if from >= to {
        return Ok(());
    }
    let from = LogPrefix { bytes: from, ..LogPrefix::default() };
    read_records(open(path, to)?, path, from, to, dims).map(drop)
}

/// Opens a log that has at least `bytes` bytes.
fn open(path: &Path, bytes: u64) -> Result<File, IndexError> {
    let file = File::open(path).map_err(IndexError::io("open", path))?;
    check_length(&file, path, bytes)?;
    Ok(file)
}

/// Checks that a log has at least `bytes` bytes.
fn check_length(file: &File, path: &Path, bytes: u64) -> Result<(), IndexError> {
    let present = file.metadata().map_err(IndexError::io("read", path))?.len();
    if present < bytes {
        return Err(IndexError::corrupt(path, format!("it has {present} bytes instead of at least {bytes}")));
    }
    Ok(())
}

/// Reads the records of the log in `file` between the prefix `from` and the byte `to`.
fn read_records(mut file: File, path: &Path, from: LogPrefix, to: u64, dims: usize) -> Result<LogRecords, IndexError> {
    file.seek(SeekFrom::Start(from.bytes)).map_err(IndexError::io("read", path))?;
    let mut file = std::io::BufReader::with_capacity(1 << 18, file).take(to - from.bytes);
    let mut records = Vec::new();
    let mut end = from;
    while end.bytes < to {
        let position = end.bytes;
        let damaged = |message: &str| IndexError::corrupt(path, format!("the record at byte {position} {message}"));
        let mut bytes = [0; HEAD];
        file.read_exact(&mut bytes).map_err(|_| damaged("is cut off"))?;
        let limit = file.limit();
        let head = FrameHead::parse(bytes).filter(|head| head.length <= limit);
        let head = head.ok_or_else(|| damaged("has no valid head"))?;
        let mut record = vec![0; head.length as usize];
        file.read_exact(&mut record).map_err(|_| damaged("is cut off"))?;
        if crc32fast::hash(&record) != head.sum {
            return Err(damaged("has a wrong checksum"));
        }
        records.push(DeltaRecord::decode(&record, dims).ok_or_else(|| damaged("cannot be read"))?);
        end = end.with(&head);
    }
    Ok(LogRecords { records, end })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record(snapshot: u64) -> DeltaRecord {
        DeltaRecord { snapshot, deleted: vec![format!("d{snapshot}")], ..DeltaRecord::default() }
    }

    #[test]
    fn a_prefix_stays_and_what_a_killed_commit_left_goes() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let first = append(&path, LogPrefix::default(), &record(1), 2).unwrap();
        let second = append(&path, first, &record(2), 2).unwrap();
        append(&path, second, &record(3), 2).unwrap();
        let again = append(&path, second, &record(4), 2).unwrap();
        let whole = read(&path, again.bytes, 2).unwrap();
        assert_eq!((whole.records, whole.end), (vec![record(1), record(2), record(4)], again));
        let part = read_after(&path, first, second.bytes, 2).unwrap().unwrap();
        assert_eq!((part.records, part.end), (vec![record(2)], second));
        let beyond = LogPrefix { bytes: again.bytes + 1, ..again };
        assert!(append(&path, beyond, &record(5), 2).is_err());
    }

    #[test]
    fn a_log_with_another_beginning_is_not_continued() {
        let temp = tempfile::tempdir().unwrap();
        let written = |name: &str, snapshots: [u64; 3]| {
            let path = temp.path().join(name);
            let mut end = LogPrefix::default();
            let ends = snapshots.map(|snapshot| {
                end = append(&path, end, &record(snapshot), 2).unwrap();
                end
            });
            (path, ends)
        };
        let (own, [_, held, newest]) = written("own", [1, 2, 3]);
        let (other, [_, _, end]) = written("other", [4, 2, 3]);
        assert_eq!(end.bytes, newest.bytes);
        assert!(read_after(&own, held, newest.bytes, 2).unwrap().is_some());
        assert!(read_after(&other, held, newest.bytes, 2).unwrap().is_none());
        assert!(read_after(&other, held, held.bytes, 2).unwrap().is_none());
        let none = LogPrefix::default();
        assert_eq!(read_after(&other, none, end.bytes, 2).unwrap().unwrap().records.len(), 3);
        assert!(read_after(&temp.path().join("missing"), none, 0, 2).unwrap().unwrap().records.is_empty());
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let end = append(&path, LogPrefix::default(), &record(1), 2).unwrap().bytes;
        let bytes = std::fs::read(&path).unwrap();
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path, end, 2).unwrap_err().to_string();
            assert!(error.contains("byte 0"), "{error}");
        }
    }
}
