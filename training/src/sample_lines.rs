//! Reader and writer of `samples.jsonl`: one sample per line, append-only.
//!
//! A writer that is killed leaves at most one unfinished line without a line break at the end. Readers skip such a
//! line and the next writer removes it. A file that does not hold samples is never modified.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::sample::Sample;

/// Error returned when samples cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SampleLinesError {
    /// An I/O operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A finished line is not a sample.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Description of the problem.
        reason: String,
    },
    /// A file to append to ends in something other than samples.
    #[error("{} exists and does not end with samples: choose another file", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
}

impl SampleLinesError {
    /// Returns a function for `map_err` that adds the path.
    fn io(path: &Path) -> impl Fn(io::Error) -> SampleLinesError {
        move |source| SampleLinesError::Io { path: path.to_owned(), source }
    }
}

/// Iterator over the samples of a file, in file order.
#[derive(Debug)]
pub struct SampleReader {
    path: PathBuf,
    lines: BufReader<File>,
    line: usize,
}

impl SampleReader {
    /// Opens a file of samples.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn open(path: &Path) -> Result<SampleReader, SampleLinesError> {
        let file = File::open(path).map_err(SampleLinesError::io(path))?;
        Ok(SampleReader { path: path.to_owned(), lines: BufReader::new(file), line: 0 })
    }

    /// Line number of the sample that was read last, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

impl Iterator for SampleReader {
    type Item = Result<Sample, SampleLinesError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut text = Vec::new();
            match self.lines.read_until(b'\n', &mut text) {
                Err(error) => return Some(Err(SampleLinesError::io(&self.path)(error))),
                Ok(0) => return None,
                Ok(_) => self.line += 1,
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            return match parse(&text) {
                Ok(sample) => Some(Ok(sample)),
                // A killed writer leaves a line that ends early and has no line break. Any other invalid line is an
                // error.
                Err(error) if error.torn && text.last() != Some(&b'\n') => None,
                Err(LineError { reason, .. }) => {
                    Some(Err(SampleLinesError::Line { path: self.path.clone(), line: self.line, reason }))
                }
            };
        }
    }
}

/// Reason why a line is not a sample.
struct LineError {
    reason: String,
    /// If `true`, the line may be the beginning of a sample.
    torn: bool,
}

fn parse(line: &[u8]) -> Result<Sample, LineError> {
    let sample: Sample =
        serde_json::from_slice(line).map_err(|error| LineError { reason: error.to_string(), torn: error.is_eof() })?;
    sample.flaw().map_or(Ok(sample), |reason| Err(LineError { reason, torn: false }))
}

/// Reads all samples of a file.
///
/// # Errors
/// [`SampleLinesError`] if the file cannot be read or a finished line is not a sample.
pub fn read(path: &Path) -> Result<Vec<Sample>, SampleLinesError> {
    SampleReader::open(path)?.collect()
}

/// Appends samples to a file.
#[derive(Debug)]
pub struct SampleWriter {
    path: PathBuf,
    file: File,
}

impl SampleWriter {
    /// Opens a file for appending, and creates it if it does not exist. Removes an unfinished last line after a
    /// sample, and adds the line break that a last sample lacks.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`], or [`SampleLinesError::Foreign`] for a non-empty file that does not end with samples;
    /// such a file is not modified.
    pub fn open(path: &Path) -> Result<SampleWriter, SampleLinesError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let end = end(&mut file)?;
            if let FileEnd::Torn(length) = end {
                file.set_len(length)?;
            }
            file.seek(SeekFrom::End(0))?;
            if end == FileEnd::Open {
                file.write_all(b"\n")?;
            }
            Ok((file, end))
        };
        let (file, end) = open().map_err(SampleLinesError::io(path))?;
        if end == FileEnd::Foreign {
            return Err(SampleLinesError::Foreign { path: path.to_owned() });
        }
        Ok(SampleWriter { path: path.to_owned(), file })
    }

    /// Appends a sample. After the call returns, the line survives the end of this process, though not a crash of the
    /// machine.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn append(&mut self, sample: &Sample) -> Result<(), SampleLinesError> {
        let fail = SampleLinesError::io(&self.path);
        let mut line = serde_json::to_vec(sample).map_err(|error| fail(error.into()))?;
        // One write for the line with its break, so that a kill tears at most the last line.
        line.push(b'\n');
        self.file.write_all(&line).map_err(fail)
    }

    /// Waits until all samples are on disk.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn sync(&self) -> Result<(), SampleLinesError> {
        self.file.sync_data().map_err(SampleLinesError::io(&self.path))
    }
}

/// End of an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileEnd {
    /// The file is empty or ends with a finished sample.
    Sound,
    /// The last line is a sample without its line break.
    Open,
    /// The last line is unfinished and begins at this byte offset.
    Torn(u64),
    /// The file ends with anything else.
    Foreign,
}

/// First bytes of every line that a writer produces. They distinguish an unfinished first line from a foreign file.
const BEGINNING: &[u8] = b"{\"id\":\"";

fn end(file: &mut File) -> io::Result<FileEnd> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(FileEnd::Sound);
    }
    let (start, tail) = line(file, length)?;
    let error = match parse(&tail) {
        Ok(_) => return Ok(FileEnd::Open),
        Err(error) => error,
    };
    // The only line of a file counts as torn if it begins like a sample; otherwise the file is foreign.
    let is_beginning = error.torn && (tail.starts_with(BEGINNING) || BEGINNING.starts_with(&tail));
    Ok(match sample_before(file, start)? {
        Some(true) if tail.is_empty() => FileEnd::Sound,
        Some(true) => FileEnd::Torn(start),
        None if is_beginning && !tail.is_empty() => FileEnd::Torn(start),
        _ => FileEnd::Foreign,
    })
}

/// Returns `true` if the last non-blank line before `end` is a sample, and `None` if there is no such line. `end` is
/// the offset of a line's first byte.
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

/// Returns the bytes between the preceding line break and `end`, with their offset.
fn line(file: &mut File, end: u64) -> io::Result<(u64, Vec<u8>)> {
    // The file is read backwards in blocks: a line may be megabytes long, and the whole file gigabytes.
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
        fn an_unfinished_last_line_loses_only_itself(kept in proptest::collection::vec(samples(), 0..4), torn in samples(),
            share in 0.0f64..1.0, next in samples())
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            let mut writer = SampleWriter::open(&path).unwrap();
            for sample in &kept {
                writer.append(sample).unwrap();
            }
            let whole = serde_json::to_vec(&torn).unwrap();
            let part = &whole[..(whole.len() as f64 * share) as usize];
            writer.file.write_all(part).unwrap();
            prop_assert_eq!(&read(&path).unwrap(), &kept);

            SampleWriter::open(&path).unwrap().append(&next).unwrap();
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
        fn a_last_line_without_its_line_break_is_kept(kept in proptest::collection::vec(samples(), 1..4), next in samples()) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("samples.jsonl");
            let lines: Vec<String> = kept.iter().map(|sample| serde_json::to_string(sample).unwrap()).collect();
            std::fs::write(&path, lines.join("\n")).unwrap();
            prop_assert_eq!(&read(&path).unwrap(), &kept);
            SampleWriter::open(&path).unwrap().append(&next).unwrap();
            let all: Vec<Sample> = kept.into_iter().chain([next]).collect();
            prop_assert_eq!(read(&path).unwrap(), all);
        }

        #[test]
        fn foreign_files_are_not_modified(text in "[ -~\n]{1,200}", torn in "[ -~]{0,20}") {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("thesis.tex");
            for text in [format!("years of work {text}"), format!("{{\"id\": \"1\"}}\n{torn}"), "\n\n".to_owned()] {
                std::fs::write(&path, &text).unwrap();
                let error = SampleWriter::open(&path).unwrap_err().to_string();
                prop_assert!(error.contains("thesis.tex"), "{}", error);
                prop_assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            }
        }
    }

    #[test]
    fn invalid_finished_lines_are_named() {
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
