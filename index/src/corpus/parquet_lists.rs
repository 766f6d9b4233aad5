//! Counts the values of long lists in a Parquet file before the library reads them. The library reads all values of a
//! batch of rows at once, and a few bytes stand for any number of them. The repetition levels of a column tell where its
//! rows begin: a value of level 0 is the first one of a row.
//!
//! Levels stand at the beginning of a page, in runs: a number of equal levels, or packed ones, a few bits for each.

use std::fs::File;

use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::parquet::guarded;
use super::parquet_footer::Thrift;

/// Number of rows that the library reads at once.
const BATCH: u64 = 1024;

/// Maximum number of values of a column that the library may read at once. All of them may belong to one row.
pub(super) const MOST_LISTED: u64 = 16_000_000;

/// A column with lists in a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListColumn {
    /// Number of the row group.
    pub(super) group: usize,
    /// Number of the column.
    pub(super) column: usize,
}

/// Checks columns with lists. Their pages must have a bound, because they are read one by one.
///
/// # Errors
/// The reason, if a page cannot be read, or the library would read too many values at once.
pub(super) fn check(reader: &SerializedFileReader<File>, columns: &[ListColumn]) -> Result<(), String> {
    for &ListColumn { group, column } in columns {
        let most = guarded(|| most_at_once(reader, group, column))?;
        if most > MOST_LISTED {
            let path = reader.metadata().row_group(group).column(column).column_path();
            return Err(format!(
                "the lists of column {path} in row group {group} hold {most} values in at most {BATCH} rows, more than \
                 {MOST_LISTED}: write the file with fewer rows in a row group, or with shorter lists"
            ));
        }
    }
    Ok(())
}

/// Returns the largest number of values that the library reads at once from a column.
fn most_at_once(reader: &SerializedFileReader<File>, group: usize, column: usize) -> parquet::errors::Result<u64> {
    let levels = reader.metadata().row_group(group).column(column).column_descr().max_rep_level();
    let width = (i16::BITS - levels.leading_zeros()) as usize;
    let group = reader.get_row_group(group)?;
    let mut pages = group.get_column_page_reader(column)?;
    let mut counter = BatchCounter::default();
    while let Some(page) = pages.get_next_page()? {
        if page.is_data_page() {
            counter.add_page(repetition_levels(&page), width, u64::from(page.num_values()));
        }
    }
    Ok(counter.most)
}

/// Returns the runs of the repetition levels of a page with data. Empty for an encoding that no writer uses any more.
fn repetition_levels(page: &Page) -> &[u8] {
    match page {
        Page::DataPage { buf, rep_level_encoding: Encoding::RLE, .. } => {
            let Some((length, rest)) = buf.split_first_chunk::<4>() else { return &[] };
            let length = u32::from_le_bytes(*length) as usize;
            rest.get(..length).unwrap_or_default()
        }
        Page::DataPageV2 { buf, rep_levels_byte_len, .. } => {
            buf.get(..*rep_levels_byte_len as usize).unwrap_or_default()
        }
        _ => &[],
    }
}

/// Repetition levels that stand one after another.
enum LevelRun<'a> {
    /// The same level, a number of times.
    Repeated { level: u8, count: u64 },
    /// Levels of a few bits each, from the lowest bit of the first byte on.
    Packed(&'a [u8]),
}

/// Reads the next run of levels of `width` bits. `None` at the end, and for bytes that do not follow the format.
fn next_run<'a>(levels: &mut Thrift<'a>, width: usize) -> Option<LevelRun<'a>> {
    // Numbers have the form that they have in Thrift.
    let header = levels.varint()?;
    if header & 1 == 0 {
        return Some(LevelRun::Repeated { level: levels.byte()?, count: header >> 1 });
    }
    // The levels come in groups of eight, which take as many bytes as a level has bits.
    let length = usize::try_from(header >> 1).ok()?.checked_mul(width)?;
    let (packed, rest) = levels.rest.split_at(length.min(levels.rest.len()));
    levels.rest = rest;
    Some(LevelRun::Packed(packed))
}

/// Returns `true` if the packed level at `place` is 0.
fn is_zero(packed: &[u8], width: usize, place: usize) -> bool {
    (place * width..(place + 1) * width).all(|bit| packed[bit / 8] >> (bit % 8) & 1 == 0)
}

/// Counter of the values in each batch of rows.
#[derive(Debug, Default, PartialEq)]
struct BatchCounter {
    /// Number of rows of the last batch so far.
    rows: u64,
    /// Number of values of the last batch so far.
    values: u64,
    /// Number of values of the largest batch.
    most: u64,
}

impl BatchCounter {
    /// Adds a page of `count` values with levels of `width` bits.
    fn add_page(&mut self, levels: &[u8], width: usize, count: u64) {
        let mut levels = Thrift { rest: levels };
        let mut left = count;
        while left > 0
            && let Some(run) = next_run(&mut levels, width)
        {
            match run {
                LevelRun::Repeated { level, count } => {
                    let count = count.min(left);
                    left -= count;
                    if level == 0 { self.begin_rows(count) } else { self.continue_row(count) }
                }
                LevelRun::Packed(packed) => {
                    let count = (packed.len() as u64 * 8 / width as u64).min(left);
                    left -= count;
                    for place in 0..count as usize {
                        if is_zero(packed, width, place) { self.begin_rows(1) } else { self.continue_row(1) }
                    }
                }
            }
        }
        // Values without a level may all belong to the row before them.
        self.continue_row(left);
    }

    /// Adds rows of one value each. The last one may continue.
    fn begin_rows(&mut self, count: u64) {
        let fit = count.min(BATCH - self.rows);
        self.rows += fit;
        self.continue_row(fit);
        let behind = count - fit;
        if behind > 0 {
            self.rows = (behind - 1) % BATCH + 1;
            self.values = self.rows;
            self.most = self.most.max(behind.min(BATCH));
        }
    }

    /// Adds values to the last row.
    fn continue_row(&mut self, count: u64) {
        self.values = self.values.saturating_add(count);
        self.most = self.most.max(self.values);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use parquet::data_type::Int64Type;
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// Writes a column of lists with these lengths, in pages of about a hundred rows.
    fn written(lengths: &[usize], version: WriterVersion) -> SerializedFileReader<File> {
        let schema = parse_message_type("message schema { repeated int64 year; }").unwrap();
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_data_page_row_count_limit(100)
            .set_write_batch_size(64)
            .build();
        let mut file = tempfile::tempfile().unwrap();
        let mut writer = SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        // An empty list has a level and no value.
        let defined = |&length: &usize| vec![i16::from(length > 0); length.max(1)];
        let defined: Vec<i16> = lengths.iter().flat_map(defined).collect();
        let repeated = |&length: &usize| (0..length.max(1)).map(|place| i16::from(place > 0));
        let repeated: Vec<i16> = lengths.iter().flat_map(repeated).collect();
        let values: Vec<i64> = (0..lengths.iter().sum::<usize>() as i64).collect();
        column.typed::<Int64Type>().write_batch(&values, Some(&defined), Some(&repeated)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        SerializedFileReader::new(file).unwrap()
    }

    /// Number of values of the largest batch, computed from the lengths of the lists.
    fn largest(lengths: &[usize]) -> u64 {
        let values = |rows: &[usize]| rows.iter().map(|&length| length.max(1)).sum::<usize>();
        lengths.chunks(BATCH as usize).map(values).max().unwrap_or_default() as u64
    }

    #[test]
    fn values_are_counted_by_batches_of_rows() {
        let alike = vec![3; 5000];
        let single = vec![1; 3000];
        let empty = vec![0; 2500];
        let mixed: Vec<usize> = (0..4000).map(|row| if row % 1500 == 1499 { 2000 } else { row * 7 % 5 }).collect();
        for lengths in [alike, single, empty, mixed, vec![7; 1024], vec![90_000]] {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                let reader = written(&lengths, version);
                assert_eq!(most_at_once(&reader, 0, 0).unwrap(), largest(&lengths), "{} rows", lengths.len());
            }
        }
    }

    #[test]
    fn small_rows_pass_and_a_row_of_too_many_values_does_not() {
        // 10 million rows of two values, whose levels are packed: 250,000 groups of eight in a page.
        let packed = vec![0b1010_1010; 250_000];
        let header = [0xa1_u8, 0xc2, 0x1e];
        let page = [&header[..], &packed].concat();
        let mut counter = BatchCounter::default();
        for _ in 0..10 {
            counter.add_page(&page, 1, 2_000_000);
        }
        assert_eq!(counter.most, 2 * BATCH);
        // A row of 20 million values, in seven bytes: one level is 0, and all others are 1.
        let mut counter = BatchCounter::default();
        counter.add_page(&[0x02, 0, 0xfe, 0xb3, 0x89, 0x13, 1], 1, 20_000_000);
        assert_eq!(counter, BatchCounter { rows: 1, values: 20_000_000, most: 20_000_000 });
    }

    #[test]
    fn values_without_a_level_belong_to_one_row() {
        for levels in [&[][..], &[0x02], &[0xff; 12]] {
            let mut counter = BatchCounter::default();
            counter.add_page(levels, 1, 20_000_000);
            assert!(counter.most > MOST_LISTED, "{levels:?}");
        }
    }
}
