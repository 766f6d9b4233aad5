//! `samples.jsonl`: one sample per line, only ever appended to.
//!
//! A writer that is killed leaves at most one unfinished line at the end, without its line break. Readers pass over it,
//! and the next writer cuts it off.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::sample::Sample;

/// Why samples could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A finished line is no sample.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads samples one by one, in their order.
#[derive(Debug)]
pub struct Samples {
    path: PathBuf,
    lines: BufReader<File>,
    line: usize,
}

impl Samples {
    /// Opens a file of samples.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Samples, StoreError> {
        let file = File::open(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        Ok(Samples { path: path.to_owned(), lines: BufReader::new(file), line: 0 })
    }
}

impl Iterator for Samples {
    type Item = Result<Sample, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut text = Vec::new();
            match self.lines.read_until(b'\n', &mut text) {
                Err(source) => return Some(Err(StoreError::Io { path: self.path.clone(), source })),
                // Without its line break it is the end, or a line that was never finished.
                Ok(_) if text.last() != Some(&b'\n') => return None,
                Ok(_) => self.line += 1,
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let refuse = |reason| StoreError::Line { path: self.path.clone(), line: self.line, reason };
            return Some(match serde_json::from_slice::<Sample>(&text) {
                Err(error) => Err(refuse(error.to_string())),
                Ok(sample) => sample.flaw().map_or(Ok(sample), |flaw| Err(refuse(flaw))),
            });
        }
    }
}

/// All samples of a file.
///
/// # Errors
/// [`StoreError`] for a file that cannot be read, or holds a finished line that is no sample.
pub fn read(path: &Path) -> Result<Vec<Sample>, StoreError> {
    Samples::open(path)?.collect()
}

/// Appends samples to a file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Opens a file to append to, and makes it where there is none. An unfinished last line is cut off.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Writer, StoreError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let length = finished(&mut file)?;
            file.set_len(length)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        Ok(Writer { path: path.to_owned(), file })
    }

    /// Appends one. When it returns, the line has left the process: it outlives it, though not the machine.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn append(&mut self, sample: &Sample) -> Result<(), StoreError> {
        let fail = |source| StoreError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_vec(sample).map_err(|error| fail(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(fail)
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|source| StoreError::Io { path: self.path.clone(), source })
    }
}

/// The length up to and including the last line break, found from the end.
fn finished(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 1 << 16;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        let mut block = Vec::new();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::sample::tests::samples;

    proptest! {
        #[test]
        fn a_torn_last_line_costs_that_line_alone(kept in proptest::collection::vec(samples(), 0..4), torn in samples(),
            share in 0.0f64..1.0, next in samples())
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            let mut writer = Writer::open(&path).unwrap();
            for sample in &kept {
                writer.append(sample).unwrap();
            }
            let whole = serde_json::to_vec(&torn).unwrap();
            let part = &whole[..(whole.len() as f64 * share) as usize];
            writer.file.write_all(part).unwrap();
            prop_assert_eq!(&read(&path).unwrap(), &kept);

            Writer::open(&path).unwrap().append(&next).unwrap();
            let all: Vec<Sample> = kept.into_iter().chain([next]).collect();
            prop_assert_eq!(read(&path).unwrap(), all);
        }
    }

    #[test]
    fn a_finished_line_that_is_no_sample_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.jsonl");
        std::fs::write(&path, "\n{\"id\": 3}\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("samples.jsonl, line 2: "), "{error}");
    }

    #[test]
    fn line_breaks_are_found_beyond_one_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (content, length) in
            [(vec![], 0), (vec![b'x'; 200_000], 0), ([vec![b'\n'], vec![b'x'; 200_000]].concat(), 1)]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(finished(&mut File::open(&path).unwrap()).unwrap(), length);
        }
    }
}
