//! Flat file of vectors of passages, phrases or facts: rows of little-endian `f32`. Row count and length come from the
//! manifest.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::IndexError;

#[cfg(target_endian = "big")]
compile_error!("vectors are mapped as they lie in the file, which is little-endian");

/// Vectors, memory-mapped.
#[derive(Debug)]
pub(crate) struct VectorFile {
    map: Mmap,
    count: usize,
    dims: usize,
}

impl VectorFile {
    /// Opens a file of `count` rows of `dims` numbers.
    pub(crate) fn open(path: &Path, count: usize, dims: usize) -> Result<VectorFile, IndexError> {
        let file = File::open(path).map_err(IndexError::io("open", path))?;
        // SAFETY: files of a snapshot are never written again once they are complete, only unlinked.
        let map = unsafe { Mmap::map(&file) }.map_err(IndexError::io("map", path))?;
        let expected = count.checked_mul(dims).and_then(|n| n.checked_mul(size_of::<f32>()));
        if dims == 0 || expected != Some(map.len()) {
            let message = format!("{} bytes are not {count} vectors of {dims} numbers", map.len());
            return Err(IndexError::corrupt(path, message));
        }
        Ok(VectorFile { map, count, dims })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn dims(&self) -> usize {
        self.dims
    }

    /// Returns the vector with this number. `None` if there is none.
    pub(crate) fn row(&self, number: u32) -> Option<&[f32]> {
        let start = (number as usize).checked_mul(self.dims)?;
        self.flat().get(start..start.checked_add(self.dims)?)
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.flat().chunks_exact(self.dims)
    }

    fn flat(&self) -> &[f32] {
        // Cannot panic: maps start at a page boundary, and the length was checked on opening.
        bytemuck::cast_slice(&self.map)
    }
}

/// Vectors of equal length by number.
pub(crate) trait VectorRows: Sync {
    /// Numbers per vector.
    fn dims(&self) -> usize;

    /// Returns the vector with this number. `None` if there is none.
    fn row(&self, number: u32) -> Option<&[f32]>;
}

impl VectorRows for VectorFile {
    fn dims(&self) -> usize {
        self.dims
    }

    fn row(&self, number: u32) -> Option<&[f32]> {
        VectorFile::row(self, number)
    }
}

/// Writer of a file of vectors.
#[derive(Debug)]
pub(crate) struct VectorWriter {
    path: PathBuf,
    out: BufWriter<File>,
}

impl VectorWriter {
    pub(crate) fn create(path: &Path) -> Result<VectorWriter, IndexError> {
        let file = File::create_new(path).map_err(IndexError::io("create", path))?;
        Ok(VectorWriter { path: path.to_owned(), out: BufWriter::with_capacity(1 << 18, file) })
    }

    pub(crate) fn add(&mut self, vector: &[f32]) -> Result<(), IndexError> {
        self.out.write_all(bytemuck::cast_slice(vector)).map_err(IndexError::io("write", &self.path))
    }

    /// Completes the file, without syncing it.
    pub(crate) fn finish(mut self) -> Result<(), IndexError> {
        self.out.flush().map_err(IndexError::io("write", &self.path))
    }
}
