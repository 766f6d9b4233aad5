//! Checks the page headers of a Parquet file before the library reads the pages. The library makes room for as many
//! bytes and dictionary values as a header claims, before it looks at the page. It reads all values of a list at once,
//! and a few bytes stand for any number of them, so columns with lists of many values have to be
//! [counted](super::parquet_lists).
//!
//! A header is a `PageHeader` of `parquet.thrift` in Thrift's compact protocol. Headers with fields that the format
//! does not know, or with fields of other types, are refused: the library reads known fields without a look at their
//! types, and so would read other sizes than those checked here.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use parquet::data_type::ByteArray;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::parquet_footer::{BINARY, FALSE, I32, I64, STRUCT, TRUE, Thrift};
use super::parquet_lists::{ListColumn, MOST_LISTED};

/// Maximum bytes that the library holds at the same time for the pages of a row group, decompressed.
const LARGEST_PAGES: u64 = 1 << 30;

/// Bytes read for a header at first. Most headers have less than 100.
const USUAL_HEADER: u64 = 1 << 10;

/// Maximum bytes of a header. It may hold the first and the last text of its page.
const LARGEST_HEADER: u64 = 16 << 20;

/// Bytes that a value of a dictionary takes beside its text.
const DICTIONARY_VALUE: u64 = size_of::<ByteArray>() as u64;

/// Number of the type of a page that holds a dictionary.
const DICTIONARY: i32 = 2;

/// Types of the fields of a `PageHeader`, from number 1.
const HEADER_TYPES: [u8; 8] = [I32, I32, I32, I32, STRUCT, STRUCT, STRUCT, STRUCT];

/// Types of the fields of a `DataPageHeader`. The last one holds statistics.
const DATA_TYPES: [u8; 5] = [I32, I32, I32, I32, STRUCT];

/// Types of the fields of a `DictionaryPageHeader`.
const DICTIONARY_TYPES: [u8; 3] = [I32, I32, TRUE];

/// Types of the fields of a `DataPageHeaderV2`. The last one holds statistics.
const DATA_V2_TYPES: [u8; 8] = [I32, I32, I32, I32, I32, I32, TRUE, STRUCT];

/// Header of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct PageHeader {
    /// Length of the header in bytes.
    length: u64,
    /// Number of the type of the page.
    kind: i32,
    /// Bytes of the page in the file.
    compressed: u64,
    /// Bytes of the page, decompressed.
    uncompressed: u64,
    /// Number of values, if the page holds a dictionary.
    values: u64,
    /// Number of values and nulls, if the page holds data.
    listed: u64,
}

/// Sizes of the pages of a column in a row group.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ColumnPages {
    /// Bytes that the library holds at the same time: a dictionary, and the largest page.
    held: u64,
    /// Number of values and nulls.
    listed: u64,
}

/// Checks the pages of all columns. Returns the columns with lists that hold more values in a row group than the library
/// may read at once.
///
/// # Errors
/// The reason, if a header is damaged, or the library would take too much memory for the pages of a row group.
pub(super) fn check(file: &mut File, metadata: &ParquetMetaData) -> Result<Vec<ListColumn>, String> {
    // Each byte belongs to one column of one row group. Otherwise a small file could claim to hold any number of pages.
    let mut unclaimed = file.metadata().map_err(|error| unreadable(&error))?.len();
    let mut lists = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let mut held = 0_u64;
        for (place, column) in group.columns().iter().enumerate() {
            let (start, length) = range(column).ok_or_else(damaged)?;
            unclaimed = unclaimed.checked_sub(length).ok_or_else(damaged)?;
            let pages = column_pages(file, start, length)?;
            held = held.saturating_add(pages.held);
            if column.column_descr().max_rep_level() > 0 && pages.listed > MOST_LISTED {
                lists.push(ListColumn { group: number, column: place });
            }
        }
        if held > LARGEST_PAGES {
            return Err(format!(
                "the pages of row group {number} take {held} bytes at the same time, more than {LARGEST_PAGES}: write \
                 the file with smaller pages, of 1 MiB for example"
            ));
        }
    }
    Ok(lists)
}

fn unreadable(error: &io::Error) -> String {
    format!("the Parquet file cannot be read: {error}")
}

fn damaged() -> String {
    "the Parquet file cannot be read: its pages are damaged".to_owned()
}

/// Returns the place and the length of a column in the file. `None` if they are negative.
fn range(column: &ColumnChunkMetaData) -> Option<(u64, u64)> {
    let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    Some((u64::try_from(start).ok()?, u64::try_from(column.compressed_size()).ok()?))
}

/// Reads the headers of a column's pages.
fn column_pages(file: &mut File, start: u64, length: u64) -> Result<ColumnPages, String> {
    let mut dictionary = 0;
    let mut largest = 0;
    let mut listed = 0_u64;
    let mut offset = start;
    let mut left = length;
    while left > 0 {
        let header = read_header(file, offset, left)?;
        if header.kind == DICTIONARY {
            dictionary = header.uncompressed.saturating_add(header.values * DICTIONARY_VALUE).max(dictionary);
        } else {
            largest = header.uncompressed.max(largest);
            listed = listed.saturating_add(header.listed);
        }
        let whole = header.length + header.compressed;
        // A page that ends behind its column is refused by the library before it makes room for the page.
        left = left.saturating_sub(whole);
        offset += whole;
    }
    Ok(ColumnPages { held: dictionary + largest, listed })
}

/// Reads the header of the page at `offset`, which has at most `left` bytes.
fn read_header(file: &mut File, offset: u64, left: u64) -> Result<PageHeader, String> {
    let mut size = USUAL_HEADER;
    loop {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(|error| unreadable(&error))?;
        file.by_ref().take(size.min(left)).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        if let Some(header) = parse(&bytes) {
            return Ok(header);
        }
        if size >= left.min(LARGEST_HEADER) {
            return Err(damaged());
        }
        size = LARGEST_HEADER.min(size * 16);
    }
}

/// Parses the header at the beginning of `bytes`. `None` if it does not follow the format, or is cut off.
fn parse(bytes: &[u8]) -> Option<PageHeader> {
    let mut thrift = Thrift { rest: bytes };
    let mut header = PageHeader::default();
    let mut id = 0;
    // As in the library, the last of several fields with the same number counts.
    while let Some(kind) = thrift.field(&mut id)? {
        expect_type(&HEADER_TYPES, id, kind)?;
        match id {
            1 => header.kind = number(&mut thrift)?,
            2 => header.uncompressed = u64::try_from(number(&mut thrift)?).ok()?,
            3 => header.compressed = u64::try_from(number(&mut thrift)?).ok()?,
            4 => thrift.skip(kind, 0)?,
            5 | 8 => {
                let types: &[u8] = if id == 5 { &DATA_TYPES } else { &DATA_V2_TYPES };
                let listed = u64::try_from(first_number(&mut thrift, types)?).ok()?;
                // The type of the page decides which of both fields counts.
                header.listed = header.listed.max(listed);
            }
            7 => header.values = u64::try_from(first_number(&mut thrift, &DICTIONARY_TYPES)?).ok()?,
            _ => {
                first_number(&mut thrift, &[])?;
            }
        }
    }
    header.length = (bytes.len() - thrift.rest.len()) as u64;
    Some(header)
}

/// Reads a number of 32 bits. Further bits are cut off, as in the library.
fn number(thrift: &mut Thrift<'_>) -> Option<i32> {
    Some(thrift.zig_zag()? as i32)
}

/// Reads a structure whose fields have these types. Returns the number in its first field, or 0.
fn first_number(thrift: &mut Thrift<'_>, types: &[u8]) -> Option<i32> {
    let mut first = 0;
    let mut id = 0;
    while let Some(kind) = thrift.field(&mut id)? {
        expect_type(types, id, kind)?;
        match (id, kind) {
            (1, I32) => first = number(thrift)?,
            (_, STRUCT) => skip_statistics(thrift)?,
            _ => thrift.skip(kind, 0)?,
        }
    }
    Some(first)
}

/// Skips the statistics of a page, which the library skips as well.
fn skip_statistics(thrift: &mut Thrift<'_>) -> Option<()> {
    let mut id = 0;
    while let Some(kind) = thrift.field(&mut id)? {
        if !matches!(kind, BINARY | FALSE | I32 | I64 | TRUE) {
            return None;
        }
        thrift.skip(kind, 0)?;
    }
    Some(())
}

/// Returns `None` if the field `id` has another type than `types` says. Each value of a boolean is a type of its own.
fn expect_type(types: &[u8], id: i64, kind: u8) -> Option<()> {
    let place = usize::try_from(id - 1).ok()?;
    let expected = *types.get(place)?;
    let kind = if kind == FALSE { TRUE } else { kind };
    (kind == expected).then_some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::super::parquet_footer::STOP;
    use super::*;

    /// Header of a dictionary: 100 bytes that decompress to 1000, with 3 values.
    const OF_DICTIONARY: [u8; 15] =
        [0x15, 0x04, 0x15, 0xd0, 0x0f, 0x15, 0xc8, 0x01, 0x4c, 0x15, 0x06, 0x15, 0x00, 0x11, STOP];

    /// Header of a page of data with statistics: 50 bytes that decompress to 200.
    const OF_DATA: [u8; 28] = [
        0x15, 0x00, 0x15, 0x90, 0x03, 0x15, 0x64, 0x2c, 0x15, 0x06, 0x15, 0x10, 0x15, 0x06, 0x15, 0x06, 0x1c, 0x36,
        0x02, 0x28, 0x01, b'x', 0x18, 0x01, b'a', STOP, STOP, STOP,
    ];

    fn of_dictionary() -> Vec<u8> {
        [&OF_DICTIONARY[..], &[STOP]].concat()
    }

    #[test]
    fn headers_are_read_whole_or_not_at_all() {
        let dictionary = of_dictionary();
        let expected = PageHeader { length: 16, kind: 2, compressed: 100, uncompressed: 1000, values: 3, listed: 0 };
        assert_eq!(parse(&dictionary), Some(expected));
        let expected = PageHeader { length: 28, kind: 0, compressed: 50, uncompressed: 200, values: 0, listed: 3 };
        assert_eq!(parse(&OF_DATA), Some(expected));
        for header in [&dictionary[..], &OF_DATA] {
            assert!((0..header.len()).all(|end| parse(&header[..end]).is_none()));
        }
        // The size as a text, a field that the format does not know, and a negative size.
        assert_eq!(parse(&[0x15, 0x00, 0x18, 0x01, b'x', 0x15, 0x02, STOP]), None);
        assert_eq!(parse(&[0x15, 0x00, 0x15, 0x02, 0x15, 0x02, 0x65, 0x02, STOP]), None);
        assert_eq!(parse(&[0x15, 0x00, 0x15, 0x01, 0x15, 0x02, STOP]), None);
    }

    #[test]
    fn a_size_that_is_told_again_counts() {
        let mut header = OF_DICTIONARY.to_vec();
        // As field 65538, of which the library keeps 16 bits.
        header.extend([0x05, 0x84, 0x80, 0x08, 0x80, 0x80, 0x01, STOP]);
        assert_eq!(parse(&header).unwrap().uncompressed, 8192);
    }

    #[test]
    fn a_dictionary_and_the_largest_page_are_held_at_the_same_time() {
        let mut file = tempfile::tempfile().unwrap();
        let page = |header: &[u8], length: usize| [header, vec![7; length].as_slice()].concat();
        let chunk = [page(&of_dictionary(), 100), page(&OF_DATA, 50), page(&OF_DATA, 50)].concat();
        file.write_all(&[&b"PAR1"[..], &chunk].concat()).unwrap();
        let length = chunk.len() as u64;
        let expected = ColumnPages { held: 1000 + 3 * DICTIONARY_VALUE + 200, listed: 2 * 3 };
        assert_eq!(column_pages(&mut file, 4, length), Ok(expected));
        // A chunk that ends within a page, and one that begins within one.
        assert_eq!(column_pages(&mut file, 4, length - 1), Ok(expected));
        assert!(column_pages(&mut file, 40, length - 36).is_err_and(|error| error.contains("damaged")));
    }
}
