//! Reads one file of a corpus with the reader of its format.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::field_map::FieldMap;
use super::format::{Compression, FileFormat, READABLE, extension};
use super::read_limits::{ReadLimits, unread};
use super::record::{IdSource, RecordParser};
use super::source_file::FileReader;
use super::{CorpusItem, CorpusItems, CorpusRecord, array, lines, parquet, prose, source_file, table};
use crate::error::IndexError;

/// File to read.
pub(super) struct CorpusFile<'a> {
    pub(super) path: &'a Path,
    /// Name from which the IDs of its chunks are made.
    pub(super) name: String,
    /// If `true`, the file was found in a folder, where a file of JSON need not hold records.
    pub(super) in_folder: bool,
}

impl CorpusFile<'_> {
    /// Reads the documents of the file.
    ///
    /// # Errors
    /// If the file cannot be opened or its type is not read. Malformed content is reported by the items.
    pub(super) fn read(self, fields: &Arc<FieldMap>, limits: &ReadLimits) -> Result<CorpusItems, IndexError> {
        let CorpusFile { path, name, in_folder } = self;
        let (format, compression) = FileFormat::of(path);
        let parser = |ids| RecordParser { names: fields.clone(), ids };
        match format {
            format if format.is_prose() => {
                let path = path.to_owned();
                let limits = limits.clone();
                Ok(Box::new(std::iter::once_with(move || prose::read(&path, name, &limits).map(CorpusItem::Prose))))
            }
            FileFormat::Lines => {
                let reader = source_file::open(path, compression, limits)?;
                Ok(records(lines::read(reader, path, parser(IdSource::Required))))
            }
            FileFormat::Table => {
                let reader = source_file::open(path, compression, limits)?;
                Ok(records(table::read(reader, path, parser(IdSource::FromContent))?))
            }
            FileFormat::Parquet if compression == Compression::None => {
                Ok(records(parquet::read(path, parser(IdSource::FromContent))?))
            }
            FileFormat::Parquet => Err(unsupported(path, "a compressed Parquet file: decompress it".to_owned())),
            // The reasons of a folder's files are listed one below the other, so each is kept short.
            FileFormat::Unsupported(reason) if in_folder => Err(unsupported(path, reason.to_owned())),
            FileFormat::Unsupported(reason) => Err(unsupported(path, format!("{reason} (files read are {READABLE})"))),
            FileFormat::Unknown if in_folder => Err(unsupported(path, unknown(path))),
            _ => json(path, compression, format, in_folder, fields, limits),
        }
    }
}

/// Reads a JSON list or JSONL, whichever the content is.
fn json(
    path: &Path,
    compression: Compression,
    format: FileFormat,
    in_folder: bool,
    fields: &Arc<FieldMap>,
    limits: &ReadLimits,
) -> Result<CorpusItems, IndexError> {
    let mut reader = source_file::open(path, compression, limits)?;
    let start = source_file::peek(&mut reader).map_err(|error| unread(path, error))?;
    let first = start.first().copied();
    if in_folder && !is_likely_records(start, fields) {
        let name = fields.text_names()[0];
        return Err(unsupported(
            path,
            format!("a JSON file that does not begin with a record that has a field `{name}`"),
        ));
    }
    if format == FileFormat::Unknown && !matches!(first, None | Some(b'[' | b'{')) {
        return Err(unsupported(path, format!("{} (files read are {READABLE})", unknown(path))));
    }
    let parser = |ids| RecordParser { names: fields.clone(), ids };
    // The content decides, not the extension: JSONL is often named `.json`.
    Ok(if first == Some(b'[') {
        records(array::read::<FileReader>(reader, path, parser(IdSource::FromContent)))
    } else {
        records(lines::read(reader, path, parser(IdSource::Required)))
    })
}

/// Returns `true` if a file begins like records: a list of objects, or a line that is an object, with a field of the
/// text. A long first record is recognized by the name of the field alone.
fn is_likely_records(start: &[u8], fields: &FieldMap) -> bool {
    let names = fields.text_names();
    let mut lines = start.splitn(2, |&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    if start.starts_with(b"{") && lines.next().is_some() {
        let record = serde_json::from_slice::<Map<String, Value>>(first);
        return record.is_ok_and(|record| names.iter().any(|name| record.contains_key(*name)));
    }
    let next = start.iter().skip(1).find(|byte| !byte.is_ascii_whitespace());
    let begins = start.starts_with(b"{") || (start.starts_with(b"[") && next == Some(&b'{'));
    let text = String::from_utf8_lossy(start);
    begins && names.iter().any(|name| text.contains(&format!("\"{name}\"")))
}

fn records(found: impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send + 'static) -> CorpusItems {
    Box::new(found.map(|record| record.map(CorpusItem::Record)))
}

fn unsupported(path: &Path, message: String) -> IndexError {
    IndexError::UnsupportedFile { path: path.to_owned(), message }
}

fn unknown(path: &Path) -> String {
    match extension(path).as_str() {
        "" => "a file without a known extension".to_owned(),
        extension => format!("the extension .{extension} is not known"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_told_from_other_json() {
        let likely = |text: &str| is_likely_records(text.as_bytes(), &FieldMap::default());
        for records in [
            "[{\"text\":\"a\"}]",
            "[\n {\"title\":1,\n\"contents\":\"a\"}]",
            "{\"text\":\"a\"}\n{}",
            "{\"id\":1,\"text\":",
        ] {
            assert!(likely(records), "{records}");
        }
        for other in ["{\n\"text\": \"a\"}", "[1, \"text\"]", "[{\"name\":\"a\"}]", "{\"a\":1}\n", "", "{}"] {
            assert!(!likely(other), "{other}");
        }
    }
}
