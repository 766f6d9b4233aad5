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

/// Appends a record at `position` and makes it durable. Returns the position after it.
pub(crate) fn append(path: &Path, position: u64, record: &DeltaRecord, dims: usize) -> Result<u64, IndexError> {
    let frame = frame(&record.encode(dims));
    let new = !path.exists();
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let mut file = open.map_err(IndexError::io("open", path))?;
    let present = file.metadata().map_err(IndexError::io("read", path))?.len();
    if present < position {
        return Err(IndexError::corrupt(path, format!("it has {present} bytes instead of at least {position}")));
    }
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
    Ok(position + frame.len() as u64)
}

/// Wraps a record for the file.
fn frame(record: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + record.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&(record.len() as u64).to_le_bytes());
    frame.extend_from_slice(&crc32fast::hash(record).to_le_bytes());
    frame.extend_from_slice(record);
    frame
}

/// Reads the records in the bytes `from..to` of a log. `from` must be the end of a record.
pub(crate) fn read(path: &Path, from: u64, to: u64, dims: usize) -> Result<Vec<DeltaRecord>, IndexError> {
    let mut records = Vec::new();
    if from == to {
        return Ok(records);
    }
    let mut file = File::open(path).map_err(IndexError::io("open", path))?;
    let present = file.metadata().map_err(IndexError::io("read", path))?.len();
    if present < to || to < from {
        return Err(IndexError::corrupt(path, format!("it has {present} bytes instead of at least {to}")));
    }
    file.seek(SeekFrom::Start(from)).map_err(IndexError::io("read", path))?;
    let mut file = std::io::BufReader::with_capacity(1 << 18, file).take(to - from);
    let mut position = from;
    while position < to {
        let damaged = |message: &str| IndexError::corrupt(path, format!("the record at byte {position} {message}"));
        let mut head = [0; HEAD];
        file.read_exact(&mut head).map_err(|_| damaged("is cut off"))?;
        let length = u64::from_le_bytes([head[4], head[5], head[6], head[7], head[8], head[9], head[10], head[11]]);
        let sum = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        if head[..4] != MAGIC || length > file.limit() {
            return Err(damaged("has no valid head"));
        }
        let mut record = vec![0; length as usize];
        file.read_exact(&mut record).map_err(|_| damaged("is cut off"))?;
        if crc32fast::hash(&record) != sum {
            return Err(damaged("has a wrong checksum"));
        }
        records.push(DeltaRecord::decode(&record, dims).ok_or_else(|| damaged("cannot be read"))?);
        position += HEAD as u64 + length;
    }
    Ok(records)
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
        let first = append(&path, 0, &record(1), 2).unwrap();
        let second = append(&path, first, &record(2), 2).unwrap();
        append(&path, second, &record(3), 2).unwrap();
        let again = append(&path, second, &record(4), 2).unwrap();
        assert_eq!(read(&path, 0, again, 2).unwrap(), [record(1), record(2), record(4)]);
        assert_eq!(read(&path, first, second, 2).unwrap(), [record(2)]);
        assert!(append(&path, again + 1, &record(5), 2).is_err());
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let end = append(&path, 0, &record(1), 2).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path, 0, end, 2).unwrap_err().to_string();
            assert!(error.contains("byte 0"), "{error}");
        }
    }
}
