//! Imports triples that were extracted elsewhere, from a file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::filter::valid_triples;
use super::records::RecordReader;
use crate::corpus::content;
use crate::error::IndexError;
use crate::evidence::Passage;
use crate::extract::{Extract, Passages, TripleSink};
use crate::location::Location;
use crate::triple::Triple;

/// Summary of an import. Counts of passages add up over all extractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// Number of records in the file.
    pub records: u64,
    /// Number of records replaced by a later one for the same passage.
    pub replaced: u64,
    /// Number of triples dropped because they do not have three parts or repeat an earlier one of the same record.
    pub dropped: u64,
    /// Number of passages requested.
    pub passages: u64,
    /// Number of requested passages without a record.
    pub missing: u64,
    /// Number of requested passages whose record has no triple.
    pub empty: u64,
    /// Number of records that match no requested passage.
    pub unmatched: u64,
}

/// Hash of a passage's ID or of its text, by which records are found.
type PassageKey = [u8; 16];

/// Position of a record in the file.
#[derive(Debug, Clone, Copy)]
struct RecordSpan {
    offset: u64,
    length: usize,
    line: u64,
    /// Index among the kept records, from 0.
    number: usize,
}

/// Triples from a file. Two formats are supported: OpenIE results of HippoRAG or RouteRAG, `{"docs": [{"idx",
/// "passage", "extracted_entities", "extracted_triples"}, …]}` (the `idx`, which differs in HippoRAG 1, is ignored),
/// matched by the text of the passage; and JSONL of `{"id", "triples"}`, matched by the passage's ID. Lists of records,
/// and files that mix both kinds of records, work as well.
///
/// Only the positions of the records are kept in memory, about 50 bytes each. [`Extract::extract`] reads the file
/// again, so the file must not change in between.
#[derive(Debug)]
pub struct Imported {
    path: PathBuf,
    places: HashMap<PassageKey, RecordSpan>,
    counts: Mutex<ImportCounts>,
}

#[derive(Debug, Default)]
struct ImportCounts {
    report: ImportReport,
    /// For each record, by its number: `true` if a passage requested it.
    matched: Vec<bool>,
}

impl Imported {
    /// Reads the file once and notes the position of each record.
    ///
    /// # Errors
    /// If the file cannot be read, has neither format, or contains a record without the required fields.
    pub fn open(path: &Path) -> Result<Imported, IndexError> {
        let mut places = HashMap::new();
        let mut report = ImportReport::default();
        for found in RecordReader::open(path)? {
            let found = found?;
            report.records += 1;
            let record = ParsedRecord::parse(&found.bytes).map_err(|message| IndexError::BadTriples {
                location: found.location.clone(),
                message: format!("record {}: {message}", report.records),
            })?;
            report.dropped += record.dropped;
            let line = found.location.line;
            let number = places.len();
            let place = RecordSpan { offset: found.offset, length: found.bytes.len(), line, number };
            places
                .entry(record.key)
                .and_modify(|old: &mut RecordSpan| {
                    report.replaced += 1;
                    // The later record counts; it keeps the number, so that it is matched once.
                    *old = RecordSpan { number: old.number, ..place };
                })
                .or_insert(place);
        }
        let matched = vec![false; places.len()];
        Ok(Imported { path: path.to_owned(), places, counts: Mutex::new(ImportCounts { report, matched }) })
    }

    /// Returns the counts so far.
    pub fn report(&self) -> ImportReport {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let unmatched = counts.matched.iter().filter(|&&matched| !matched).count() as u64;
        ImportReport { unmatched, ..counts.report }
    }

    fn find(&self, passage: &Passage) -> Option<(PassageKey, RecordSpan)> {
        let keys = [key(KeyKind::Id, &passage.id), key(KeyKind::Text, &content(&passage.title, &passage.text))];
        // The ID comes first, because several passages may have the same text.
        keys.into_iter().find_map(|key| Some((key, *self.places.get(&key)?)))
    }

    fn read(&self, file: &mut File, key: PassageKey, place: RecordSpan) -> Result<Vec<Triple>, IndexError> {
        let mut bytes = vec![0; place.length];
        let read = file.seek(SeekFrom::Start(place.offset)).and_then(|_| file.read_exact(&mut bytes));
        // Another record at this place means that the file was written anew.
        let record = read.ok().and_then(|()| ParsedRecord::parse(&bytes).ok()).filter(|record| record.key == key);
        record.map(|record| record.triples).ok_or_else(|| {
            let message = "the file was changed while it was being imported: import it again";
            self.bad(place.line, message.to_owned())
        })
    }

    fn bad(&self, line: u64, message: String) -> IndexError {
        IndexError::BadTriples { location: Location { file: self.path.as_path().into(), line }, message }
    }

    fn nothing_matches(&self, passages: &dyn Passages) -> Result<IndexError, IndexError> {
        let example = passages.passage(0)?;
        let message = format!(
            "none of the {} records is about a passage of the corpus, whose first has the id {:?} and the title {:?}: \
             records are matched by `id`, or by `passage` = title, line break, text",
            self.places.len(),
            example.id,
            example.title
        );
        Ok(self.bad(1, message))
    }
}

impl Extract for Imported {
    fn id(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        format!("import {}", name.to_string_lossy())
    }

    fn reads_corpus(&self) -> bool {
        false
    }

    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError> {
        let mut file = File::open(&self.path).map_err(IndexError::io("open", &self.path))?;
        let mut found = false;
        for &number in numbers {
            let place = self.find(&passages.passage(number)?);
            let triples = match place {
                Some((key, place)) => self.read(&mut file, key, place)?,
                None => Vec::new(),
            };
            found |= place.is_some();
            // Unlocked before the sink runs, which may write to a slow disk.
            {
                let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
                counts.report.passages += 1;
                match place {
                    None => counts.report.missing += 1,
                    Some((_, place)) => {
                        counts.matched[place.number] = true;
                        counts.report.empty += u64::from(triples.is_empty());
                    }
                }
            }
            sink(number, triples)?;
        }
        // A change to a few passages may match nothing; a whole corpus without a match means the wrong file.
        if !found && !numbers.is_empty() && numbers.len() == passages.len() {
            return Err(self.nothing_matches(passages)?);
        }
        Ok(())
    }
}

/// Parsed record.
struct ParsedRecord {
    key: PassageKey,
    triples: Vec<Triple>,
    dropped: u64,
}

impl ParsedRecord {
    fn parse(bytes: &[u8]) -> Result<ParsedRecord, String> {
        let fields: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| {
            let message = error.to_string();
            // The parser counts lines within the record, and the caller names those of the file.
            let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(head, _)| head);
            format!("broken JSON: {message}")
        })?;
        let (key, name) = match (fields.get("id"), fields.get("passage")) {
            (Some(Value::String(id)), _) => (key(KeyKind::Id, id), "triples"),
            (Some(Value::Number(id)), _) => (key(KeyKind::Id, &id.to_string()), "triples"),
            (None | Some(Value::Null), Some(Value::String(text))) => (key(KeyKind::Text, text), "extracted_triples"),
            (None | Some(Value::Null), Some(_)) => return Err("field `passage` is not a string".to_owned()),
            (Some(_), _) => return Err("field `id` is neither a string nor a number".to_owned()),
            (None, None) => {
                return Err("there is neither `id` (with `triples`) nor `passage` (with `extracted_triples`), \
                            so the record matches no passage"
                    .to_owned());
            }
        };
        let other = if name == "triples" { "extracted_triples" } else { "triples" };
        match fields.get(name).or_else(|| fields.get(other)) {
            Some(Value::Array(found)) => {
                let triples = valid_triples(found);
                let dropped = (found.len() - triples.len()) as u64;
                Ok(ParsedRecord { key, triples, dropped })
            }
            Some(_) => Err(format!("field `{name}` is not a list of [subject, relation, object]")),
            None => Err(format!("field `{name}` is missing: give an empty list where a passage states nothing")),
        }
    }
}

#[derive(Clone, Copy)]
enum KeyKind {
    Id,
    Text,
}

/// Hashes an ID or a text. White space around texts is ignored, because programs differ in keeping the line break
/// before a passage without a title.
fn key(kind: KeyKind, text: &str) -> PassageKey {
    // The prefixes keep an ID from being taken for an equal text.
    let mut hash = Sha256::new();
    match kind {
        KeyKind::Id => hash.update(b"id\0"),
        KeyKind::Text => hash.update(b"text\0"),
    }
    hash.update(if matches!(kind, KeyKind::Text) { text.trim() } else { text });
    let mut key = PassageKey::default();
    key.copy_from_slice(&hash.finalize()[..16]);
    key
}

#[cfg(test)]
mod tests;
