//! Limits on the reading of a corpus: the size of a decompressed file, and the caller's wish to go on.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::error::IndexError;

/// Limits on the reading of a corpus. By default there are none besides those of the formats.
#[derive(Clone, Default)]
pub struct ReadLimits {
    /// Maximum bytes of a file, decompressed. `None` sets no limit.
    pub bytes: Option<u64>,
    /// Function that returns `false` once the reading has to end, which then fails with an error of the kind
    /// [`TimedOut`](io::ErrorKind::TimedOut). Called before each step: a block of a file, a record, a section, and each
    /// object, font and content of a PDF file. `None` reads to the end.
    pub go_on: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl fmt::Debug for ReadLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLimits").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Reason why a file is not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReadStop {
    /// The file has more than this number of bytes, decompressed.
    #[error("the file holds more than {0} bytes, decompressed: split it")]
    TooLarge(u64),
    /// The caller has ended the reading.
    #[error("the reading was ended before the end of the file")]
    Ended,
}

impl ReadStop {
    /// Returns the error for the file at `path`.
    pub(super) fn of_file(self, path: &Path) -> IndexError {
        let path = path.to_owned();
        match self {
            ReadStop::TooLarge(_) => IndexError::UnsupportedFile { path, message: self.to_string() },
            ReadStop::Ended => {
                IndexError::Io { action: "read", path, source: io::Error::new(io::ErrorKind::TimedOut, self) }
            }
        }
    }

    /// Returns the reason if `error` is that of a [`LimitedReader`].
    pub(super) fn in_error(error: &io::Error) -> Option<ReadStop> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Returns the error for a file that cannot be read, or not to its end.
pub(super) fn unread(path: &Path, error: io::Error) -> IndexError {
    match ReadStop::in_error(&error) {
        Some(stop) => stop.of_file(path),
        None => IndexError::Io { action: "read", path: path.to_owned(), source: error },
    }
}

impl ReadLimits {
    /// Checks that the reading goes on.
    ///
    /// # Errors
    /// [`ReadStop::Ended`] once it has to end.
    pub(super) fn check(&self) -> Result<(), ReadStop> {
        match &self.go_on {
            Some(go_on) if !go_on() => Err(ReadStop::Ended),
            _ => Ok(()),
        }
    }

    /// Applies the limits to the content of a file, which is already decompressed.
    pub(super) fn reader<R: Read>(&self, content: R) -> LimitedReader<R> {
        LimitedReader { content, left: self.bytes.unwrap_or(u64::MAX), limits: self.clone() }
    }
}

/// Reader of a file that fails beyond its limits.
pub(super) struct LimitedReader<R> {
    content: R,
    /// Number of bytes that may still be read.
    left: u64,
    limits: ReadLimits,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limits.check().map_err(io::Error::other)?;
        let read = self.content.read(buffer)?;
        let most = self.limits.bytes.unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(ReadStop::TooLarge(most)))?;
        Ok(read)
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Limits that end a reading at the step `most`, counted from 0, and the number of steps so far.
    pub(in crate::corpus) fn steps(most: usize) -> (ReadLimits, Arc<AtomicUsize>) {
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        let go_on = move || counted.fetch_add(1, SeqCst) < most;
        (ReadLimits { bytes: None, go_on: Some(Arc::new(go_on)) }, count)
    }

    #[test]
    fn a_reader_fails_beyond_its_limits() {
        let limits = ReadLimits { bytes: Some(4), go_on: None };
        let mut text = Vec::new();
        limits.reader(&b"four"[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, b"four");
        let error = limits.reader(&b"fours"[..]).read_to_end(&mut text).unwrap_err();
        let refused = unread(Path::new("a.txt"), error);
        assert_eq!(refused.to_string(), "a.txt: the file holds more than 4 bytes, decompressed: split it");
        let (limits, _) = steps(1);
        let mut reader = limits.reader(&b"four"[..]);
        assert_eq!(reader.read(&mut [0; 2]).unwrap(), 2);
        assert_eq!(ReadStop::in_error(&reader.read(&mut [0; 2]).unwrap_err()), Some(ReadStop::Ended));
    }
}
