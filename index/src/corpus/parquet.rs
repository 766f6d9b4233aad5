//! Reads Parquet: one record per row, with the fields that the columns name.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::Value;

use super::record::RecordParser;
use super::{CorpusRecord, LONGEST_RECORD, parquet_footer, parquet_lists, parquet_pages};
use crate::error::IndexError;
use crate::location::Location;

/// Maximum bytes of a column within a row group, decompressed. A million rows, the default of pyarrow, with passages of
/// a hundred words take about 700 MB.
const LARGEST_COLUMN: i64 = 1 << 30;

/// Reads row by row. The line of a location is the number of the row.
///
/// # Errors
/// If the file is not Parquet, or no column holds the text.
pub(super) fn read(
    path: &Path,
    parser: RecordParser,
) -> Result<impl Iterator<Item = Result<CorpusRecord, IndexError>> + Send + use<>, IndexError> {
    let mut file = File::open(path).map_err(IndexError::io("open", path))?;
    let unsupported = |message| IndexError::UnsupportedFile { path: path.to_owned(), message };
    let bad = |message| IndexError::BadCorpus { location: Location { file: path.into(), line: 1 }, message };
    parquet_footer::check(&mut file).map_err(bad)?;
    let mut pages = file.try_clone().map_err(IndexError::io("open", path))?;
    let opened = guarded(|| SerializedFileReader::new(file)).map_err(bad)?;
    check(&opened, &parser).map_err(unsupported)?;
    let lists = parquet_pages::check(&mut pages, opened.metadata()).map_err(bad)?;
    parquet_lists::check(&opened, &lists).map_err(bad)?;
    let binary = binary_columns(&opened, &parser);
    let mut rows = RowIter::from_file_into(Box::new(opened));
    let file: Arc<Path> = path.into();
    let mut line = 0;
    let mut ended = false;
    Ok(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        line += 1;
        let location = Location { file: file.clone(), line };
        let next = guarded(|| rows.next().transpose());
        let row = match next {
            Ok(None) => return None,
            Ok(Some(row)) => row,
            Err(message) => {
                ended = true;
                return Some(Err(IndexError::BadCorpus { location, message: format!("row {line}: {message}") }));
            }
        };
        Some(record(&row, &binary, &parser, location))
    }))
}

/// Returns the names of the columns of ID, title and text that are byte strings. Impala and older versions of Hive and
/// Spark write texts without marking them as such. Values of a fixed length, such as UUIDs, are none.
fn binary_columns(file: &SerializedFileReader<File>, parser: &RecordParser) -> Vec<String> {
    let fields = file.metadata().file_metadata().schema().get_fields();
    let is_binary = |field: &Type| matches!(field, Type::PrimitiveType { physical_type: PhysicalType::BYTE_ARRAY, .. });
    let columns = fields.iter().filter(|field| is_binary(field) && parser.names.holds_text(field.name()));
    columns.map(|field| field.name().to_owned()).collect()
}

/// Calls the library. A panic in it means that the file is damaged.
pub(super) fn guarded<T>(read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    let outcome = catch_unwind(AssertUnwindSafe(read));
    let outcome = outcome.map_err(|_| "the Parquet file cannot be read: it is damaged".to_owned())?;
    outcome.map_err(|error| format!("the Parquet file cannot be read: {error}"))
}

/// Makes a record from a row. The columns named in `binary` are read as UTF-8; others that are byte strings are Base64.
fn record(row: &Row, binary: &[String], parser: &RecordParser, location: Location) -> Result<CorpusRecord, IndexError> {
    let Value::Object(mut fields) = row.to_json_value() else {
        return Err(IndexError::BadRecord { location, message: "the row is not an object".to_owned() });
    };
    for (name, field) in row.get_column_iter().filter(|(name, _)| binary.contains(name)) {
        let Field::Bytes(bytes) = field else { continue };
        let Ok(text) = std::str::from_utf8(bytes.data()) else {
            return Err(IndexError::BadRecord { location, message: format!("invalid UTF-8 in column `{name}`") });
        };
        fields.insert(name.clone(), text.into());
    }
    let text = fields.values().filter_map(Value::as_str).map(str::len).sum::<usize>();
    if text > LONGEST_RECORD {
        return Err(IndexError::BadRecord {
            location,
            message: format!("the row is longer than {LONGEST_RECORD} bytes"),
        });
    }
    parser.record(fields, location)
}

/// Refuses files without a text column, and files with a column that is too large or has an unsupported compression.
fn check(file: &SerializedFileReader<File>, parser: &RecordParser) -> Result<(), String> {
    let metadata = file.metadata();
    let fields = metadata.file_metadata().schema().get_fields();
    let columns: Vec<&str> = fields.iter().map(|field| field.name()).collect();
    let names = parser.names.text_names();
    if !names.iter().any(|name| columns.contains(name)) {
        let shown: String = columns.join(", ").chars().take(200).collect();
        return Err(format!(
            "no column `{}` among {shown}: name the column of the text with --field text=NAME",
            names[0]
        ));
    }
    for column in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        if column.uncompressed_size() > LARGEST_COLUMN {
            return Err(format!(
                "column {} takes {} bytes in a row group: write row groups of at most {LARGEST_COLUMN} bytes per column",
                column.column_path(),
                column.uncompressed_size()
            ));
        }
        // The library expands a GZIP page to its end, whatever its header claims: 20 MB may become 20 GB.
        if !matches!(column.compression(), Compression::UNCOMPRESSED | Compression::SNAPPY) {
            return Err(format!(
                "column {} is compressed as {}, which is not read: write the file with Snappy, or without compression",
                column.column_path(),
                column.compression()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use parquet::basic::GzipLevel;
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::{Corpus, CorpusOptions, FieldMap};
    use super::*;

    fn write(path: &Path, compression: Compression) {
        let message = "message schema { required binary body (UTF8); required int64 year; }";
        let schema = Arc::new(parse_message_type(message).unwrap());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let texts = [ByteArray::from("The Seine."), ByteArray::from("The Thames.")];
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[1, 2], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_are_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.parquet");
        write(&path, Compression::SNAPPY);
        let message = Corpus::open(&path, &CorpusOptions::default()).unwrap_err().to_string();
        assert!(message.contains("no column `text` among body, year"), "{message}");
        let fields = FieldMap::parse(["text=body"]).unwrap();
        let corpus = Corpus::open(&path, &CorpusOptions { fields, ..CorpusOptions::default() }).unwrap();
        let documents: Vec<_> = corpus.map(Result::unwrap).collect();
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[1].text, "The Thames.");
        assert!(documents[1].id.starts_with("chunk-"));
        assert_eq!(documents[1].metadata.as_ref().unwrap()["year"], 2);
        std::fs::write(&path, "PAR1 nothing PAR1").unwrap();
        assert!(matches!(Corpus::open(&path, &CorpusOptions::default()), Err(IndexError::BadCorpus { .. })));
    }

    #[test]
    fn byte_strings_that_are_not_marked_as_text_are_read_as_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.parquet");
        let message = "message schema { required binary id; required binary text; required binary digest; }";
        let schema = Arc::new(parse_message_type(message).unwrap());
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let columns: [[&[u8]; 2]; 3] = [[b"a", b"b"], [b"The Seine.", b"\xff"], [b"\xff", b"\xff"]];
        for cells in columns {
            let cells = cells.map(|cell| ByteArray::from(cell.to_vec()));
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&cells, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let mut corpus = Corpus::open(&path, &CorpusOptions::default()).unwrap();
        let document = corpus.next().unwrap().unwrap();
        assert_eq!((document.id.as_str(), document.text.as_str()), ("a", "The Seine."));
        assert_eq!(document.metadata.unwrap()["digest"], "/w==", "other columns stay as they are");
        let error = corpus.next().unwrap().unwrap_err();
        assert!(matches!(error, IndexError::BadRecord { .. }), "{error}");
        assert!(error.to_string().contains("invalid UTF-8 in column `text`"), "{error}");
    }

    fn open(path: &Path) -> Result<Corpus, IndexError> {
        let fields = FieldMap::parse(["text=body"]).unwrap();
        Corpus::open(path, &CorpusOptions { fields, ..CorpusOptions::default() })
    }

    #[test]
    fn a_compression_without_a_bound_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.parquet");
        write(&path, Compression::UNCOMPRESSED);
        assert_eq!(open(&path).unwrap().count(), 2);
        write(&path, Compression::GZIP(GzipLevel::default()));
        let error = open(&path).unwrap_err();
        assert!(matches!(error, IndexError::UnsupportedFile { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("is compressed as GZIP") && message.contains("with Snappy"), "{message}");
    }

    #[test]
    fn a_list_that_claims_to_be_huge_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.parquet");
        let schema =
            parse_message_type("message schema { required binary text (UTF8); repeated int64 year; }").unwrap();
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer =
            SerializedFileWriter::new(File::create(&path).unwrap(), Arc::new(schema), Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("The Seine.")], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[1, 2], Some(&[1, 1]), Some(&[0, 1])).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let open = || Corpus::open(&path, &CorpusOptions::default());
        let documents: Vec<_> = open().unwrap().map(Result::unwrap).collect();
        assert_eq!(serde_json::json!(documents[0].metadata), serde_json::json!({"year": [1, 2]}));
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let column = reader.metadata().row_group(0).column(1);
        let page = column.data_page_offset() as usize;
        let end = page + column.compressed_size() as usize;
        let mut bytes = std::fs::read(&path).unwrap();
        // The header of the page: its type, its two sizes, and the header of its data, which begins with the number of
        // values.
        assert_eq!([bytes[page], bytes[page + 2], bytes[page + 4], bytes[page + 6]], [0x15, 0x15, 0x15, 0x2c]);
        assert_eq!(bytes[page + 7..page + 9], [0x15, 4]);
        // The page loses the three bytes that its header grows by. Sizes are zigzag numbers, so 6 stands for 3.
        bytes.drain(end - 3..end);
        bytes[page + 3] -= 6;
        bytes[page + 5] -= 6;
        // 20,000,000 values.
        bytes.splice(page + 8..page + 9, [0x80, 0xb4, 0x89, 0x13]);
        std::fs::write(&path, bytes).unwrap();
        let message = open().unwrap_err().to_string();
        assert!(message.contains("\"year\" in row group 0 hold 20000000 values"), "{message}");
    }

    #[test]
    fn a_page_that_claims_to_be_huge_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.parquet");
        write(&path, Compression::SNAPPY);
        let mut bytes = std::fs::read(&path).unwrap();
        // Behind `PAR1`, the header of the first page: its type, and its sizes, which take one byte each.
        assert_eq!([bytes[4], bytes[6], bytes[8]], [0x15; 3]);
        assert!(bytes[7] < 0x80 && bytes[9] < 0x80);
        // The page loses the four bytes that its header grows by, so that all others keep their places.
        let nearly_behind_the_header = 10 + bytes[10..].iter().position(|byte| *byte == 0).unwrap();
        bytes.drain(nearly_behind_the_header + 8..nearly_behind_the_header + 12);
        // Sizes are zigzag numbers, so 8 stands for 4.
        bytes[9] -= 8;
        // 2,000,000,000 bytes decompressed.
        bytes.splice(7..8, [0x80, 0xd0, 0xac, 0xf3, 0x0e]);
        std::fs::write(&path, bytes).unwrap();
        let message = open(&path).unwrap_err().to_string();
        assert!(message.contains("row group 0") && message.contains("2000000"), "{message}");
    }
}
