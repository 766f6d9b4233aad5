//! File of the triples of every passage as extracted or given, in the order in which they became known.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use crate::error::IndexError;
use crate::extract::Extract;
use crate::manifest::GraphInfo;
use crate::openie::Builtin;
use crate::triple::Triple;

/// Origin of the triples of a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub(crate) enum TripleOrigin {
    /// Neither given nor extracted.
    None = 0,
    /// Given by the document.
    Given = 1,
    /// Found by an extractor.
    Extracted = 2,
    /// Found by the built-in extractor, which runs again when the corpus changes. Older snapshots, written before this
    /// value existed, use [`TripleOrigin::Extracted`] instead.
    Builtin = 3,
}

impl TripleOrigin {
    /// Returns the origin of triples found by the extractor with this ID.
    pub(crate) fn of(extractor: &str) -> TripleOrigin {
        if extractor == Builtin.id() { TripleOrigin::Builtin } else { TripleOrigin::Extracted }
    }

    /// Resolves [`TripleOrigin::Extracted`] by the manifest, if that names exactly one extractor.
    pub(crate) fn resolved_with(self, info: &GraphInfo) -> TripleOrigin {
        match (self, info.extractor()) {
            (TripleOrigin::Extracted, Some(extractor)) => TripleOrigin::of(extractor),
            _ => self,
        }
    }

    /// Returns `true` if any extractor found the triples.
    pub(crate) fn is_extracted(self) -> bool {
        matches!(self, TripleOrigin::Extracted | TripleOrigin::Builtin)
    }
}

/// Triples of a snapshot, memory-mapped.
#[derive(Debug)]
pub(crate) struct TripleFile {
    path: PathBuf,
    records: Column<u8>,
    starts: Column<u64>,
    lengths: Column<u32>,
    origins: Column<u8>,
}

impl TripleFile {
    /// Opens the triples of this number of passages.
    pub(crate) fn open(path: &Path, passages: usize) -> Result<TripleFile, IndexError> {
        let mut columns = ColumnFile::open(path)?;
        let triples = TripleFile {
            path: path.to_owned(),
            records: columns.take()?,
            starts: columns.take()?,
            lengths: columns.take()?,
            origins: columns.take()?,
        };
        if [triples.starts.len(), triples.lengths.len(), triples.origins.len()] != [passages; 3] {
            return Err(columns.corrupt(format!("it does not hold the triples of {passages} passages")));
        }
        Ok(triples)
    }

    pub(crate) fn passages(&self) -> usize {
        self.starts.len()
    }

    /// Origin of the triples of a passage.
    pub(crate) fn origin(&self, passage: u32) -> TripleOrigin {
        match self.origins.get(passage as usize) {
            Some(1) => TripleOrigin::Given,
            Some(2) => TripleOrigin::Extracted,
            Some(3) => TripleOrigin::Builtin,
            _ => TripleOrigin::None,
        }
    }

    /// Reads the triples of a passage.
    pub(crate) fn get(&self, passage: u32) -> Result<Vec<Triple>, IndexError> {
        let mut found = Vec::new();
        self.each(passage, |[subject, relation, object]| found.push(Triple::new(subject, relation, object)))?;
        Ok(found)
    }

    /// Calls `visit` for each triple of a passage.
    pub(crate) fn each(&self, passage: u32, mut visit: impl FnMut([&str; 3])) -> Result<(), IndexError> {
        let mut record = self.record(passage);
        while let Some(rest) = record.filter(|rest| !rest.is_empty()) {
            record = triple(rest).map(|(fields, rest)| {
                visit(fields);
                rest
            });
        }
        let message = || format!("the triples of passage {passage} cannot be read");
        record.map(drop).ok_or_else(|| IndexError::corrupt(&self.path, message()))
    }

    fn record(&self, passage: u32) -> Option<&[u8]> {
        let start = usize::try_from(*self.starts.get(passage as usize)?).ok()?;
        let length = *self.lengths.get(passage as usize)? as usize;
        self.records.get(start..start.checked_add(length)?)
    }
}

/// Splits the first triple off a record.
fn triple(mut record: &[u8]) -> Option<([&str; 3], &[u8])> {
    let mut fields = [""; 3];
    for field in &mut fields {
        let (length, rest) = number(record)?;
        let (text, rest) = rest.split_at_checked(length)?;
        (*field, record) = (std::str::from_utf8(text).ok()?, rest);
    }
    Some((fields, record))
}

/// Decodes a number of seven bits per byte, the lowest first; the high bit is clear in the last byte.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_u64;
    // Nine bytes hold 63 bits: a damaged file must not shift beyond the number.
    for (place, &byte) in bytes.iter().enumerate().take(9) {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some((usize::try_from(number).ok()?, &bytes[place + 1..]));
        }
    }
    None
}

/// Iterates over the triples of a passage without repetitions, each at its first place (`filter_invalid_triples` of
/// HippoRAG 2).
pub(crate) fn distinct(triples: &[Triple]) -> impl Iterator<Item = &Triple> {
    let mut seen = HashSet::with_capacity(triples.len());
    triples.iter().filter(move |triple| seen.insert(*triple))
}

/// Writer of a triple file. Accepts the triples of each passage once, in any order.
#[derive(Debug)]
pub(crate) struct TripleWriter {
    path: PathBuf,
    columns: ColumnFileWriter,
    starts: Vec<u64>,
    lengths: Vec<u32>,
    origins: Vec<u8>,
}

impl TripleWriter {
    pub(crate) fn create(path: &Path) -> Result<TripleWriter, IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        // Records go to the file as they come, since all of them may exceed the memory; only their bounds are kept.
        columns.begin::<u8>()?;
        let starts = Vec::new();
        let lengths = Vec::new();
        let origins = Vec::new();
        Ok(TripleWriter { path: path.to_owned(), columns, starts, lengths, origins })
    }

    /// Adds the triples of a passage, without repetitions (see [`distinct`]).
    pub(crate) fn add(&mut self, passage: u32, triples: &[Triple], origin: TripleOrigin) -> Result<(), IndexError> {
        let mut record = Vec::new();
        for triple in distinct(triples) {
            for field in [&triple.subject, &triple.relation, &triple.object] {
                write_number(&mut record, field.len());
                record.extend_from_slice(field.as_bytes());
            }
        }
        let length = u32::try_from(record.len()).map_err(|_| {
            IndexError::io("store 4 GiB of triples of one passage in", &self.path)(
                std::io::ErrorKind::FileTooLarge.into(),
            )
        })?;
        self.reach(passage as usize + 1);
        self.starts[passage as usize] = self.columns.push(&record)?;
        self.lengths[passage as usize] = length;
        self.origins[passage as usize] = origin as u8;
        Ok(())
    }

    /// Returns `true` if the triples of any passage are known.
    pub(crate) fn any(&self) -> bool {
        self.origins.iter().any(|&origin| origin != TripleOrigin::None as u8)
    }

    /// Returns `true` if any passage has triples of this origin, even an empty list.
    pub(crate) fn has(&self, origin: TripleOrigin) -> bool {
        self.origins.contains(&(origin as u8))
    }

    /// Returns the passages below `passages` whose triples are not known.
    pub(crate) fn unknown(&self, passages: u32) -> Vec<u32> {
        let unknown =
            |&number: &u32| self.origins.get(number as usize).is_none_or(|&origin| origin == TripleOrigin::None as u8);
        (0..passages).filter(unknown).collect()
    }

    /// Completes the file for this number of passages, without syncing it.
    pub(crate) fn finish(mut self, passages: usize) -> Result<(), IndexError> {
        self.reach(passages);
        self.columns.column(&self.starts)?;
        self.columns.column(&self.lengths)?;
        self.columns.column(&self.origins)?;
        self.columns.finish()
    }

    fn reach(&mut self, passages: usize) {
        let passages = passages.max(self.starts.len());
        // Passages in between are empty until they are added, as extractors finish in any order.
        self.starts.resize(passages, 0);
        self.lengths.resize(passages, 0);
        self.origins.resize(passages, TripleOrigin::None as u8);
    }
}

fn write_number(record: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        record.push(number as u8 | 0x80);
        number >>= 7;
    }
    record.push(number as u8);
}
