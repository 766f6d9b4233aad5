//! Files of typed columns, the format of every file of the graph.
//!
//! Layout, all integers little-endian: magic · columns, each starting at a multiple of 8 · for each column its type (8
//! bytes), `u64` offset and `u64` length in bytes · `u64` number of columns, magic again. The manifest contains the
//! checksum of the file; bounds are checked here whatever the file says.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::Mmap;

use crate::error::IndexError;

const MAGIC: [u8; 8] = *b"WMCOLUM1";
const ENTRY: usize = 3 * 8;
const TAIL: usize = 8 + MAGIC.len();

/// Number type of a column.
pub(crate) trait Element: Pod {
    /// Name of the type in the file.
    const KIND: [u8; 8];
}

impl Element for u8 {
    const KIND: [u8; 8] = *b"u8      ";
}

impl Element for i8 {
    const KIND: [u8; 8] = *b"i8      ";
}

impl Element for u32 {
    const KIND: [u8; 8] = *b"u32     ";
}

impl Element for u64 {
    const KIND: [u8; 8] = *b"u64     ";
}

impl Element for f32 {
    const KIND: [u8; 8] = *b"f32     ";
}

/// File of columns, memory-mapped. Columns are read in the order in which they were written.
#[derive(Debug)]
pub(crate) struct ColumnFile {
    path: PathBuf,
    map: Arc<Mmap>,
    directory: std::vec::IntoIter<([u8; 8], Range<usize>)>,
}

impl ColumnFile {
    pub(crate) fn open(path: &Path) -> Result<ColumnFile, IndexError> {
        let file = File::open(path).map_err(IndexError::io("open", path))?;
        // SAFETY: files of a snapshot are never written again once they are complete, only unlinked.
        let map = unsafe { Mmap::map(&file) }.map_err(IndexError::io("map", path))?;
        let directory =
            directory(&map).ok_or_else(|| IndexError::corrupt(path, "its columns do not fit its length"))?;
        Ok(ColumnFile { path: path.to_owned(), map: Arc::new(map), directory: directory.into_iter() })
    }

    /// Returns the next column, which must be of this type.
    pub(crate) fn take<T: Element>(&mut self) -> Result<Column<T>, IndexError> {
        match self.directory.next() {
            // A length that is no whole number of elements would make `cast_slice` panic.
            Some((kind, range)) if kind == T::KIND && range.len() % size_of::<T>() == 0 => {
                Ok(Column { map: Arc::clone(&self.map), range, of: PhantomData })
            }
            _ => Err(self.corrupt("a column is missing or of another kind")),
        }
    }

    pub(crate) fn corrupt(&self, message: impl Into<String>) -> IndexError {
        IndexError::corrupt(&self.path, message)
    }
}

/// Parses the type and range of every column. `None` if they do not fit the file.
fn directory(bytes: &[u8]) -> Option<Vec<([u8; 8], Range<usize>)>> {
    let (rest, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
    let (count, magic) = tail.split_first_chunk()?;
    // A file that was cut lacks the magic at its end.
    if !bytes.starts_with(&MAGIC) || *magic != MAGIC {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(ENTRY)?;
    let (data, entries) = rest.split_at_checked(rest.len().checked_sub(table)?)?;
    let place = |entry: &[u8]| {
        let (kind, numbers) = entry.split_first_chunk()?;
        let (offset, length) = numbers.split_first_chunk()?;
        let offset = usize::try_from(u64::from_le_bytes(*offset)).ok()?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let range = offset..offset.checked_add(length)?;
        // Maps start at a page boundary, so a multiple of 8 is aligned for every type in use.
        (range.end <= data.len() && offset % 8 == 0).then_some((*kind, range))
    };
    entries.chunks_exact(ENTRY).map(place).collect()
}

/// Column of a mapped file.
pub(crate) struct Column<T> {
    map: Arc<Mmap>,
    range: Range<usize>,
    of: PhantomData<fn() -> T>,
}

impl<T: Element> Deref for Column<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // Cannot panic: `directory` checked bounds and alignment, and `take` the length.
        bytemuck::cast_slice(&self.map[self.range.clone()])
    }
}

impl<T: Element> std::fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Writer of a file of columns.
#[derive(Debug)]
pub(crate) struct ColumnFileWriter {
    path: PathBuf,
    out: BufWriter<File>,
    position: u64,
    directory: Vec<([u8; 8], u64, u64)>,
}

impl ColumnFileWriter {
    pub(crate) fn create(path: &Path) -> Result<ColumnFileWriter, IndexError> {
        let file = File::create_new(path).map_err(IndexError::io("create", path))?;
        let out = BufWriter::with_capacity(1 << 18, file);
        let mut columns = ColumnFileWriter { path: path.to_owned(), out, position: 0, directory: Vec::new() };
        columns.write(&MAGIC)?;
        Ok(columns)
    }

    /// Starts the next column.
    pub(crate) fn begin<T: Element>(&mut self) -> Result<(), IndexError> {
        self.pad()?;
        self.directory.push((T::KIND, self.position, 0));
        Ok(())
    }

    /// Appends to the current column. Returns the offset of the values in that column, in bytes.
    pub(crate) fn push<T: Element>(&mut self, values: &[T]) -> Result<u64, IndexError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut start = 0;
        if let Some((kind, _, length)) = self.directory.last_mut() {
            debug_assert_eq!(*kind, T::KIND);
            start = *length;
            *length += bytes.len() as u64;
        }
        self.write(bytes)?;
        Ok(start)
    }

    /// Writes a whole column.
    pub(crate) fn column<T: Element>(&mut self, values: &[T]) -> Result<(), IndexError> {
        self.begin::<T>()?;
        self.push(values).map(drop)
    }

    /// Writes the directory of columns. The file is complete but not yet synced.
    pub(crate) fn finish(mut self) -> Result<(), IndexError> {
        self.pad()?;
        let directory = std::mem::take(&mut self.directory);
        for (kind, offset, length) in &directory {
            self.write(kind)?;
            self.write(&offset.to_le_bytes())?;
            self.write(&length.to_le_bytes())?;
        }
        self.write(&(directory.len() as u64).to_le_bytes())?;
        self.write(&MAGIC)?;
        self.out.flush().map_err(IndexError::io("write", &self.path))
    }

    fn pad(&mut self) -> Result<(), IndexError> {
        let gap = self.position.next_multiple_of(8) - self.position;
        self.write(&[0; 8][..gap as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), IndexError> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes).map_err(IndexError::io("write", &self.path))
    }
}
