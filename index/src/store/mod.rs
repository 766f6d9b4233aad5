//! Store of passages in one file, addressed by number or by ID.
//!
//! Layout, all integers little-endian: magic · records (four `u32` lengths, then ID, title, text, metadata as JSON) ·
//! `u64` offset of each record and of the end of the last · `u32` numbers in the order of their IDs · `u64` count,
//! `u64` offset of the offsets, magic again. The checksum is in the manifest.

mod current;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::{Map, Value};

use crate::corpus::Document;
use crate::error::IndexError;
use crate::evidence::Passage;
use crate::extract::Passages;

pub(crate) use current::{CurrentStore, DensePassages};
pub(crate) use writer::StoreWriter;

const MAGIC: [u8; 8] = *b"WMSTORE1";
const TAIL: usize = 8 + 8 + MAGIC.len();

/// ID and title of a passage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassageName {
    /// ID from the corpus.
    pub id: String,
    /// Title; may be empty.
    pub title: String,
}

/// Stored passages, memory-mapped.
#[derive(Debug)]
pub(crate) struct PassageStore {
    path: PathBuf,
    map: Mmap,
    count: usize,
    /// Byte offset of the table of offsets.
    offsets: usize,
    /// Byte offset of the numbers in the order of IDs.
    order: usize,
}

impl PassageStore {
    pub(crate) fn open(path: &Path) -> Result<PassageStore, IndexError> {
        let file = File::open(path).map_err(IndexError::io("open", path))?;
        // SAFETY: files of a snapshot are never written again once they are published, only unlinked.
        let map = unsafe { Mmap::map(&file) }.map_err(IndexError::io("map", path))?;
        let corrupt = |message: &str| IndexError::corrupt(path, message);
        // Every offset is checked, so that a forged file cannot cause a panic.
        let tail = map.len().checked_sub(TAIL).ok_or_else(|| corrupt("it is too short"))?;
        if !map.starts_with(&MAGIC) || !map.ends_with(&MAGIC) {
            return Err(corrupt("it is not a passage store"));
        }
        let count = usize::try_from(u64_at(&map, tail)).unwrap_or(usize::MAX);
        let offsets = usize::try_from(u64_at(&map, tail + 8)).unwrap_or(usize::MAX);
        let order = count.checked_add(1).and_then(|n| n.checked_mul(8)).and_then(|n| n.checked_add(offsets));
        let end = count.checked_mul(4).zip(order).and_then(|(numbers, order)| order.checked_add(numbers));
        match order {
            Some(order) if end == Some(tail) => Ok(PassageStore { path: path.to_owned(), map, count, offsets, order }),
            _ => Err(corrupt("its table does not fit its length")),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Number of passages, as [`PassageStore::len`]. An index never exceeds the range of `u32`.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    /// Reads the passage with this number, without its metadata.
    pub(crate) fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        let [id, title, text, _] = self.fields(number)?;
        Ok(Passage { id: id.to_owned(), title: title.to_owned(), text: text.to_owned() })
    }

    /// Reads ID and title of the passage with this number.
    pub(crate) fn name(&self, number: u32) -> Result<PassageName, IndexError> {
        let [id, title, ..] = self.fields(number)?;
        Ok(PassageName { id: id.to_owned(), title: title.to_owned() })
    }

    /// Reads the searchable text of the passage with this number.
    pub(crate) fn content(&self, number: u32) -> Result<String, IndexError> {
        let [_, title, text, _] = self.fields(number)?;
        Ok(crate::corpus::content(title, text))
    }

    /// Reads the whole document with this number, without triples.
    pub(crate) fn document(&self, number: u32) -> Result<Document, IndexError> {
        let [id, title, text, _] = self.fields(number)?;
        let metadata = self.metadata(number)?;
        Ok(Document { id: id.to_owned(), title: title.to_owned(), text: text.to_owned(), triples: None, metadata })
    }

    /// Size of the record with this number in bytes.
    pub(crate) fn bytes(&self, number: u32) -> Result<u64, IndexError> {
        self.record(number).map(|record| record.len() as u64).ok_or_else(|| self.broken(number))
    }

    /// Reads the metadata of the document with this number. `None` if it has none.
    pub(crate) fn metadata(&self, number: u32) -> Result<Option<Map<String, Value>>, IndexError> {
        // Parses nothing else of the record, because conditions read the metadata of every passage.
        match self.record(number).and_then(pieces).ok_or_else(|| self.broken(number))? {
            [.., []] => Ok(None),
            [.., json] => serde_json::from_slice(json).map(Some).map_err(|_| self.broken(number)),
        }
    }

    /// Returns the number of the passage with this ID.
    pub(crate) fn find(&self, id: &str) -> Result<Option<u32>, IndexError> {
        let place = self.first_from(id)?;
        if place == self.count {
            return Ok(None);
        }
        let number = self.ordered(place);
        Ok((self.fields(number)?[0] == id).then_some(number))
    }

    /// Returns the numbers of the passages whose ID begins with `prefix`, in the order of their IDs.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Result<Vec<u32>, IndexError> {
        let first = self.first_from(prefix)?;
        let mut numbers = Vec::new();
        for number in (first..self.count).map(|place| self.ordered(place)) {
            if !self.fields(number)?[0].starts_with(prefix) {
                break;
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// Returns the first place, in the order of IDs, of an ID that is not before `id`.
    fn first_from(&self, id: &str) -> Result<usize, IndexError> {
        let mut low = 0;
        let mut high = self.count;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.fields(self.ordered(middle))?[0] < id {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Returns the number at a place in the order of IDs.
    fn ordered(&self, place: usize) -> u32 {
        let at = self.order + 4 * place;
        // Read byte by byte, as the table need not lie at a multiple of four.
        self.map[at..at + 4].iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte))
    }

    /// Returns ID, title, text and metadata of a record. Checks all bounds, so that a file opened without verification
    /// causes an error instead of a panic.
    fn fields(&self, number: u32) -> Result<[&str; 4], IndexError> {
        self.record(number).and_then(split).ok_or_else(|| self.broken(number))
    }

    fn record(&self, number: u32) -> Option<&[u8]> {
        let number = number as usize;
        if number >= self.count {
            return None;
        }
        let offset = |i: usize| usize::try_from(u64_at(&self.map, self.offsets + 8 * i)).ok();
        let start = offset(number)?;
        let end = offset(number + 1)?;
        self.map[..self.offsets].get(start..end)
    }

    pub(super) fn broken(&self, number: u32) -> IndexError {
        IndexError::corrupt(&self.path, format!("passage {number} cannot be read"))
    }
}

impl Passages for PassageStore {
    fn len(&self) -> usize {
        self.count
    }

    fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        PassageStore::passage(self, number)
    }
}

fn split(record: &[u8]) -> Option<[&str; 4]> {
    let mut fields = [""; 4];
    for (field, bytes) in fields.iter_mut().zip(pieces(record)?) {
        *field = std::str::from_utf8(bytes).ok()?;
    }
    Some(fields)
}

/// Splits a record into its four fields as bytes.
fn pieces(mut record: &[u8]) -> Option<[&[u8]; 4]> {
    let mut lengths = [0; 4];
    for length in &mut lengths {
        let (bytes, rest) = record.split_first_chunk()?;
        (*length, record) = (u32::from_le_bytes(*bytes) as usize, rest);
    }
    let mut pieces: [&[u8]; 4] = [&[]; 4];
    for (piece, length) in pieces.iter_mut().zip(lengths) {
        (*piece, record) = record.split_at_checked(length)?;
    }
    record.is_empty().then_some(pieces)
}

/// Reads the number at `at`, which must be in bounds.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests;
