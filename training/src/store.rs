//! `samples.jsonl`: one sample per line, only ever appended to.
//!
//! A writer that is killed leaves at most one unfinished line at the end, without its line break. Readers pass over it,
//! and the next writer cuts it off. What is no file of samples is not touched.

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
    /// A file that should be appended to ends in something else than samples.
    #[error("{}: it is there and does not end in samples: give another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
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

    /// The line of the sample that was read last, from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

impl Iterator for Samples {
    type Item = Result<Sample, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut text = Vec::new();
            match self.lines.read_until(b'\n', &mut text) {
                Err(source) => return Some(Err(StoreError::Io { path: self.path.clone(), source })),
                Ok(0) => return None,
                Ok(_) => self.line += 1,
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            return match parse(&text) {
                Ok(sample) => Some(Ok(sample)),
                Err(fault) if fault.torn && text.last() != Some(&b'\n') => None,
                Err(Fault { reason, .. }) => {
                    Some(Err(StoreError::Line { path: self.path.clone(), line: self.line, reason }))
                }
            };
        }
    }
}

/// Why a line is no sample.
struct Fault {
    reason: String,
    /// Whether it may be the beginning of one.
    torn: bool,
}

fn parse(line: &[u8]) -> Result<Sample, Fault> {
    let sample: Sample =
        serde_json::from_slice(line).map_err(|error| Fault { reason: error.to_string(), torn: error.is_eof() })?;
    sample.flaw().map_or(Ok(sample), |reason| Err(Fault { reason, torn: false }))
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
    /// Opens a file to append to, and makes it where there is none. An unfinished last line behind a sample is cut off;
    /// a sample that lacks its line break gets one.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Foreign`] for a file that is not empty and does not end in samples, which is left
    /// as it is.
    pub fn open(path: &Path) -> Result<Writer, StoreError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let end = end(&mut file)?;
            if let End::Torn(length) = end {
                file.set_len(length)?;
            }
            file.seek(SeekFrom::End(0))?;
            if end == End::Open {
                file.write_all(b"\n")?;
            }
            Ok((file, end))
        };
        let (file, end) = open().map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        if end == End::Foreign {
            return Err(StoreError::Foreign { path: path.to_owned() });
        }
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

/// What a file ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing at all, or a line that is a sample.
    Sound,
    /// A sample without its line break.
    Open,
    /// An unfinished line, which begins at this byte.
    Torn(u64),
    /// Something else.
    Foreign,
}

/// How every line begins that a writer wrote: by this a first line that was torn off is told from other texts.
const BEGINNING: &[u8] = b"{\"id\":\"";

fn end(file: &mut File) -> io::Result<End> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(End::Sound);
    }
    let (start, tail) = line(file, length)?;
    let fault = match parse(&tail) {
        Ok(_) => return Ok(End::Open),
        Err(fault) => fault,
    };
    let begun = fault.torn && (tail.starts_with(BEGINNING) || BEGINNING.starts_with(&tail));
    Ok(match sample_before(file, start)? {
        Some(true) if tail.is_empty() => End::Sound,
        Some(true) => End::Torn(start),
        None if begun && !tail.is_empty() => End::Torn(start),
        _ => End::Foreign,
    })
}

/// Whether the last line before `end` that is not blank is a sample; `None` where there is none. `end` is where a line
/// begins.
fn sample_before(file: &mut File, mut end: u64) -> io::Result<Option<bool>> {
    while end > 0 {
        let (start, text) = line(file, end - 1)?;
        if !text.trim_ascii().is_empty() {
            return Ok(Some(parse(&text).is_ok()));
        }
        end = start;
    }
    Ok(None)
}

/// The bytes before `end` back to the line break before them, and where they begin.
fn line(file: &mut File, end: u64) -> io::Result<(u64, Vec<u8>)> {
    const BLOCK: u64 = 1 << 16;
    let mut read = |start: u64, end: u64| {
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        Read::by_ref(file).take(end - start).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let mut start = end;
    while start > 0 {
        let from = start.saturating_sub(BLOCK);
        if let Some(at) = read(from, start)?.iter().rposition(|&byte| byte == b'\n') {
            start = from + at as u64 + 1;
            break;
        }
        start = from;
    }
    Ok((start, read(start, end)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::sample::tests::{hostile, samples};

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

        #[test]
        fn hostile_rows_are_refused_by_file_and_line(sound in samples(), sample in hostile()) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            let line = |sample: &Sample| serde_json::to_string(sample).unwrap() + "\n";
            std::fs::write(&path, line(&sound) + &line(&sample)).unwrap();
            match read(&path) {
                Ok(all) => prop_assert_eq!(all, [sound, sample]),
                Err(error) => {
                    prop_assert!(sample.flaw().is_some());
                    prop_assert!(error.to_string().contains("samples.jsonl, line 2: "), "{}", error);
                }
            }
        }

        #[test]
        fn a_last_line_without_its_break_is_kept(kept in proptest::collection::vec(samples(), 1..4), next in samples()) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            let lines: Vec<String> = kept.iter().map(|sample| serde_json::to_string(sample).unwrap()).collect();
            std::fs::write(&path, lines.join("\n")).unwrap();
            prop_assert_eq!(&read(&path).unwrap(), &kept);
            Writer::open(&path).unwrap().append(&next).unwrap();
            let all: Vec<Sample> = kept.into_iter().chain([next]).collect();
            prop_assert_eq!(read(&path).unwrap(), all);
        }

        #[test]
        fn other_files_are_left_alone(text in "[ -~\n]{1,200}", torn in "[ -~]{0,20}") {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("thesis.tex");
            for text in [format!("years of work {text}"), format!("{{\"id\": \"1\"}}\n{torn}"), "\n\n".to_owned()] {
                std::fs::write(&path, &text).unwrap();
                let error = Writer::open(&path).unwrap_err().to_string();
                prop_assert!(error.contains("thesis.tex"), "{}", error);
                prop_assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            }
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
    fn lines_are_found_beyond_one_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (content, start) in
            [(vec![], 0), (vec![b'x'; 200_000], 0), ([vec![b'\n'], vec![b'x'; 200_000]].concat(), 1)]
        {
            std::fs::write(&path, &content).unwrap();
            let end = content.len() as u64;
            let found = line(&mut File::open(&path).unwrap(), end).unwrap();
            assert_eq!(found, (start, content[start as usize..].to_vec()));
        }
    }
}
