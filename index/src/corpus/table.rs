//! Reads CSV and TSV: one record per row, with the fields that the header names.

use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use super::read_limits::{ReadStop, unread};
use super::record::RecordParser;
use super::source_file::{self, FileReader};
use super::{CorpusRecord, LONGEST_RECORD};
use crate::error::IndexError;
use crate::location::Location;

/// Maximum number of columns. Without this limit, a line of separators would take many times its size in memory.
const MOST_COLUMNS: usize = 4096;

/// Reads a table row by row. Its first line names the fields and determines the separator: a comma, a semicolon or a
/// tab.
///
/// # Errors
/// If the header cannot be read, has too many columns, or names no column for the text.
pub(super) fn read(
    mut reader: FileReader,
    path: &Path,
    parser: RecordParser,
) -> Result<impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send + use<>, IndexError> {
    let start = source_file::peek(&mut reader).map_err(|error| unread(path, error))?;
    let delimiter = delimiter(start);
    let bounded = BoundedRows { inner: reader, left: LONGEST_RECORD };
    let rows = ReaderBuilder::new().delimiter(delimiter).from_reader(bounded);
    let row = ByteRecord::new();
    let mut table = Table { rows, header: Vec::new(), structured: Vec::new(), file: path.into(), row, ended: false };
    table.read_header(&parser, path)?;
    Ok(std::iter::from_fn(move || {
        let (fields, location) = match table.next_row()? {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        Some(parser.record(fields, location))
    }))
}

/// Returns the separator that is most frequent in the first line. With equal counts, a comma wins over a semicolon, and
/// a semicolon over a tab.
fn delimiter(start: &[u8]) -> u8 {
    let first = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let count = |separator: u8| first.iter().filter(|&&byte| byte == separator).count();
    [b'\t', b';', b','].into_iter().max_by_key(|&separator| count(separator)).unwrap_or(b',')
}

/// Fields of a row by column name, and the location of its first line.
type Row = (Map<String, Value>, Location);

struct Table<R: Read> {
    rows: Reader<BoundedRows<R>>,
    header: Vec<String>,
    /// If `true`, the cells of this column are JSON.
    structured: Vec<bool>,
    file: Arc<Path>,
    row: ByteRecord,
    ended: bool,
}

impl<R: BufRead> Table<R> {
    fn read_header(&mut self, parser: &RecordParser, path: &Path) -> Result<(), IndexError> {
        let unsupported = |message| Err(IndexError::UnsupportedFile { path: path.to_owned(), message });
        let header = match self.rows.headers() {
            Ok(header) if header.len() > MOST_COLUMNS => {
                return unsupported(format!("it has {} columns: expected at most {MOST_COLUMNS}", header.len()));
            }
            Ok(header) => header.iter().map(|name| name.trim().to_owned()).collect(),
            Err(error) => return unsupported(format!("its header cannot be read: {error}")),
        };
        self.header = header;
        self.structured = self.header.iter().map(|name| parser.names.is_structured(name)).collect();
        let names = parser.names.text_names();
        // An empty table is an empty corpus, like other empty files.
        if self.header.iter().all(String::is_empty)
            || names.iter().any(|name| self.header.iter().any(|own| own == name))
        {
            return Ok(());
        }
        let shown: String = self.header.join(", ").chars().take(200).collect();
        unsupported(format!(
            "no column `{}` among {shown}: name the column of the text with --field text=NAME",
            names[0]
        ))
    }

    /// Returns the fields of the next row and the location of its first line.
    fn next_row(&mut self) -> Option<Result<Row, IndexError>> {
        if self.ended {
            return None;
        }
        self.rows.get_mut().left = LONGEST_RECORD;
        let read = self.rows.read_byte_record(&mut self.row);
        let line = self.row.position().map_or(1, csv::Position::line);
        let location = Location { file: self.file.clone(), line };
        match read {
            Ok(false) => None,
            Ok(true) => Some(self.fields(location)),
            Err(error) => Some(Err(self.failed(&error, location))),
        }
    }

    fn fields(&self, location: Location) -> Result<Row, IndexError> {
        let mut fields = Map::new();
        for ((name, structured), cell) in self.header.iter().zip(&self.structured).zip(&self.row) {
            let Ok(text) = std::str::from_utf8(cell) else {
                return Err(IndexError::BadRecord { location, message: format!("invalid UTF-8 in column `{name}`") });
            };
            // An empty cell is an absent field, not an empty text.
            if !text.is_empty() {
                fields.insert(name.clone(), value(*structured, text));
            }
        }
        Ok((fields, location))
    }

    fn failed(&mut self, error: &csv::Error, location: Location) -> IndexError {
        if let ErrorKind::UnequalLengths { expected_len, len, .. } = error.kind() {
            let message = format!("the row has {len} cells instead of {expected_len}");
            return IndexError::BadRecord { location, message };
        }
        // After other errors, the start of the next row is unknown.
        self.ended = true;
        if let ErrorKind::Io(source) = error.kind()
            && let Some(stop) = ReadStop::in_error(source)
        {
            return stop.of_file(&self.file);
        }
        IndexError::BadCorpus { location, message: format!("the table cannot be read: {error}") }
    }
}

/// Returns the value of a cell. Invalid JSON stays a string.
fn value(structured: bool, cell: &str) -> Value {
    structured.then(|| serde_json::from_str(cell).ok()).flatten().unwrap_or_else(|| Value::String(cell.to_owned()))
}

/// Reader that fails when one row takes too many bytes: a quotation mark that is not closed would read the rest of the
/// file into memory.
struct BoundedRows<R> {
    inner: R,
    /// Bytes that may still be read before the next row begins.
    left: usize,
}

impl<R: Read> Read for BoundedRows<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.left);
        if most == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!(
                "a row is longer than {LONGEST_RECORD} bytes: is a quotation mark missing?"
            )));
        }
        let read = self.inner.read(&mut buffer[..most])?;
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_row_without_end_is_refused() {
        let mut rows = BoundedRows { inner: &b"abcdef"[..], left: 4 };
        let mut bytes = Vec::new();
        let error = rows.read_to_end(&mut bytes).unwrap_err();
        assert!(bytes == b"abcd" && error.to_string().contains("quotation mark"), "{error}");
    }

    #[test]
    fn the_first_line_tells_the_separator() {
        for (line, expected) in
            [("id,text\n1\t2\t3", b','), ("id;title;text, long\n", b';'), ("id\ttext\n", b'\t'), ("text\n", b',')]
        {
            assert_eq!(delimiter(line.as_bytes()), expected, "{line}");
        }
    }
}
