//! Journal of vectors embedded for a snapshot that is not published yet.
//!
//! Embedding is the most expensive part of a build, so a killed build must not repeat it. Every vector is appended to
//! one file as soon as it is known, under a hash of its text; the next build or commit in the same folder reads it from
//! there. The file is removed once a snapshot is published.
//!
//! Layout, all integers little-endian: magic · `u32` numbers per vector · `u32` length of the embedder's ID · the ID ·
//! `u32` CRC-32 of all that; then records of equal length: 16 bytes of the text's SHA-256 · the vector as `f32` · `u32`
//! CRC-32 of both. Reading stops at the first record that is truncated or fails its checksum; the next write replaces
//! it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::error::IndexError;

const MAGIC: [u8; 8] = *b"WMEMBED1";

/// Bytes of a record before its vector.
const KEY: u64 = 16;

/// Interval between syncs: the most work lost if the machine crashes. A killed process loses nothing that it has
/// written.
pub(crate) const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Hash that identifies a text: the first half of its SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TextHash([u8; 16]);

impl TextHash {
    pub(crate) fn of(text: &str) -> TextHash {
        TextHash::of_half(&Sha256::digest(text.as_bytes())[..16])
    }

    /// Identifies a text and the name of its model, which holds no zero byte.
    pub(crate) fn with_model(model: &str, text: &str) -> TextHash {
        let hash = Sha256::new().chain_update(model).chain_update([0]).chain_update(text).finalize();
        TextHash::of_half(&hash[..16])
    }

    fn of_half(hash: &[u8]) -> TextHash {
        let mut key = [0; 16];
        key.copy_from_slice(hash);
        TextHash(key)
    }
}

/// Journal of one folder, owned by the folder's only writer.
#[derive(Debug)]
pub(crate) struct EmbeddingJournal {
    path: PathBuf,
    header: Vec<u8>,
    dims: usize,
    /// `None` until the first vector is added, which creates the file.
    file: Option<File>,
    /// Byte offset of each vector.
    places: HashMap<TextHash, u64>,
    /// Byte offset of the next record.
    end: u64,
    synced: Instant,
}

impl EmbeddingJournal {
    /// Opens the journal at `path` for vectors of the embedder `id`, and finds its complete records. Records of another
    /// embedder are overwritten by the first write.
    pub(crate) fn open(path: &Path, id: &str, dims: usize) -> Result<EmbeddingJournal, IndexError> {
        let path = path.to_owned();
        let header = header(id, dims);
        let places = HashMap::new();
        let synced = Instant::now();
        let file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other.map_err(IndexError::io("open", &path))?),
        };
        let mut journal = EmbeddingJournal { path, header, dims, file: None, places, end: 0, synced };
        if let Some(file) = file {
            journal.load(&file).map_err(IndexError::io("read", &journal.path))?;
            journal.file = Some(file);
        }
        Ok(journal)
    }

    /// Finds the complete records of `file`. [`EmbeddingJournal::end`] stays 0 if the header does not match.
    fn load(&mut self, file: &File) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut found = vec![0; self.header.len()];
        if !fill(&mut reader, &mut found)? || found != self.header {
            return Ok(());
        }
        self.end = self.header.len() as u64;
        let mut record = vec![0; record_length(self.dims)];
        while fill(&mut reader, &mut record)? {
            // A damaged record and everything after it is written again.
            let Some(key) = key_of(&record) else { break };
            // A repeated key overwrites its place; both records hold the same vector.
            self.places.insert(key, self.end + KEY);
            self.end += record.len() as u64;
        }
        Ok(())
    }

    /// Returns the vector of the text with the hash `key`.
    pub(crate) fn get(&mut self, key: TextHash) -> Result<Option<Vec<f32>>, IndexError> {
        let (Some(&place), Some(file)) = (self.places.get(&key), &mut self.file) else { return Ok(None) };
        let mut vector = vec![0.0; self.dims];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut vector);
        let read = file.seek(SeekFrom::Start(place)).and_then(|_| file.read_exact(bytes));
        read.map_err(IndexError::io("read", &self.path))?;
        Ok(Some(vector))
    }

    /// Appends vectors, each of the journal's length.
    pub(crate) fn add(&mut self, vectors: &[(TextHash, &[f32])]) -> Result<(), IndexError> {
        // The header is written with the first record, so a journal without vectors needs no file.
        let mut bytes = if self.end == 0 { self.header.clone() } else { Vec::new() };
        let mut place = self.end + bytes.len() as u64 + KEY;
        for (key, vector) in vectors {
            let begin = bytes.len();
            bytes.extend_from_slice(&key.0);
            bytes.extend_from_slice(bytemuck::cast_slice(vector));
            let sum = crc32fast::hash(&bytes[begin..]);
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        self.append(&bytes).map_err(IndexError::io("write", &self.path))?;
        // Only now: a record whose write failed must not be found.
        for (key, _) in vectors {
            self.places.insert(*key, place);
            place += record_length(self.dims) as u64;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
                none.insert(file)
            }
        };
        // Removes what a failed or killed writer left after its last complete record.
        file.set_len(self.end)?;
        file.seek(SeekFrom::Start(self.end))?;
        file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        if self.synced.elapsed() >= SYNC_EVERY {
            file.sync_data()?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

/// Fills `buffer`. Returns `false` if the file ends first.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

fn header(id: &str, dims: usize) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    // Truncation to 32 bits is harmless: no ID or vector is that long, and a collision only shares a journal.
    header.extend_from_slice(&(dims as u32).to_le_bytes());
    header.extend_from_slice(&(id.len() as u32).to_le_bytes());
    header.extend_from_slice(id.as_bytes());
    let sum = crc32fast::hash(&header);
    header.extend_from_slice(&sum.to_le_bytes());
    header
}

fn record_length(dims: usize) -> usize {
    KEY as usize + dims * size_of::<f32>() + 4
}

/// Returns the key of a record, or `None` if its checksum is wrong.
fn key_of(record: &[u8]) -> Option<TextHash> {
    let (body, sum) = record.split_last_chunk()?;
    let key = body.first_chunk()?;
    (crc32fast::hash(body) == u32::from_le_bytes(*sum)).then_some(TextHash(*key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn filled(path: &Path, count: usize) {
        let mut journal = EmbeddingJournal::open(path, "test", 3).unwrap();
        for i in 0..count {
            journal.add(&[(TextHash::of(&format!("text {i}")), &[i as f32, 0.5, -1.0])]).unwrap();
        }
    }

    /// Counts the complete vectors in the journal, which must be those of the first texts.
    fn whole(path: &Path, count: usize) -> usize {
        let mut journal = EmbeddingJournal::open(path, "test", 3).unwrap();
        let found: Vec<_> = (0..count).map(|i| journal.get(TextHash::of(&format!("text {i}"))).unwrap()).collect();
        let kept = found.iter().take_while(|vector| vector.is_some()).count();
        assert!(found[kept..].iter().all(Option::is_none));
        for (i, vector) in found[..kept].iter().enumerate() {
            assert_eq!(vector.as_deref(), Some(&[i as f32, 0.5, -1.0][..]));
        }
        kept
    }

    #[test]
    fn what_was_added_is_there_when_it_is_opened_again() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal");
        filled(&path, 7);
        assert_eq!(whole(&path, 9), 7);
        let mut journal = EmbeddingJournal::open(&path, "test", 3).unwrap();
        journal.add(&[(TextHash::of("text 7"), &[7.0, 0.5, -1.0])]).unwrap();
        assert_eq!(journal.get(TextHash::of("text 3")).unwrap(), Some(vec![3.0, 0.5, -1.0]));
        assert_eq!(whole(&path, 9), 8);
    }

    #[test]
    fn a_torn_or_changed_tail_is_dropped_and_written_over() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal");
        filled(&path, 3);
        let bytes = fs::read(&path).unwrap();
        let header = header("test", 3).len();
        let record = record_length(3);
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            assert_eq!(whole(&path, 3), length.saturating_sub(header) / record, "cut at {length}");
            filled(&path, 3);
            assert_eq!(whole(&path, 3), 3);
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            fs::write(&path, &changed).unwrap();
            assert_eq!(
                whole(&path, 3),
                at.saturating_sub(header) / record * usize::from(at >= header),
                "changed at {at}"
            );
        }
    }

    #[test]
    fn another_embedder_begins_anew() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("journal");
        for (id, dims) in [("other", 3), ("test", 4)] {
            filled(&path, 2);
            let mut other = EmbeddingJournal::open(&path, id, dims).unwrap();
            assert_eq!(other.get(TextHash::of("text 0")).unwrap(), None);
            other.add(&[(TextHash::of("text 1"), &vec![1.0; dims])]).unwrap();
            assert_eq!(other.get(TextHash::of("text 1")).unwrap(), Some(vec![1.0; dims]));
            assert_eq!(whole(&path, 2), 0);
        }
    }
}
