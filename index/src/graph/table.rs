//! Sorted table of texts, searchable by number and by text.

use std::path::Path;

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use crate::error::IndexError;
use crate::partition_point::partition_point;

/// Distinct texts in code point order, memory-mapped.
#[derive(Debug)]
pub(crate) struct StringTable {
    /// Start of each text, and the end of the last.
    offsets: Column<u64>,
    text: Column<u8>,
}

impl StringTable {
    pub(crate) fn open(path: &Path) -> Result<StringTable, IndexError> {
        let mut columns = ColumnFile::open(path)?;
        let table = StringTable { offsets: columns.take()?, text: columns.take()? };
        if !starts(&table.offsets, table.text.len()) || table.offsets.len() > u32::MAX as usize {
            return Err(columns.corrupt("the places of its texts do not fit"));
        }
        let text = std::str::from_utf8(&table.text).map_err(|_| columns.corrupt("its texts are not UTF-8"))?;
        let bounds = table.offsets.windows(2).map(|pair| (pair[0] as usize, pair[1] as usize));
        // `get` also refuses a text that would begin within a character.
        let mut texts = bounds.map(|(start, end)| text.get(start..end));
        let mut last = None;
        if !texts.all(|text| text.is_some() && last.replace(text) < Some(text)) {
            return Err(columns.corrupt("its texts are not in order"));
        }
        Ok(table)
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the text with this number. Empty for an unknown number.
    pub(crate) fn get(&self, number: u32) -> &str {
        let number = number as usize;
        let bytes = self.offsets.get(number..number + 2).and_then(|at| self.text.get(at[0] as usize..at[1] as usize));
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// Returns the number of a text.
    pub(crate) fn find(&self, text: &str) -> Option<u32> {
        let count = u32::try_from(self.len()).ok()?;
        let number = partition_point(count, |number| self.get(number) < text);
        (number < count && self.get(number) == text).then_some(number)
    }

    /// Writes a table of `texts`, which must be sorted.
    pub(crate) fn write<'a>(path: &Path, texts: impl Iterator<Item = &'a str> + Clone) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        columns.begin::<u64>()?;
        columns.push(&[0_u64])?;
        let mut end = 0;
        // Two passes, so that the texts need not be held in memory.
        for text in texts.clone() {
            end += text.len() as u64;
            columns.push(&[end])?;
        }
        columns.begin::<u8>()?;
        for text in texts {
            columns.push(text.as_bytes())?;
        }
        columns.finish()
    }
}

/// Returns `true` if `offsets` split a column of `length` into rows: they start at 0, never decrease, and end at
/// `length`.
pub(super) fn starts(offsets: &[u64], length: usize) -> bool {
    offsets.first() == Some(&0)
        && offsets.last() == Some(&(length as u64))
        && offsets.windows(2).all(|pair| pair[0] <= pair[1])
}
