//! Output buffer of a template, with a size limit.

use std::io;

/// Number of times that a template may repeat its whole input.
const MAX_REPEATS: usize = 16;

/// Number of bytes that a template may write in addition to these repeats.
const EXTRA_BYTES: usize = 1 << 20;

/// A text buffer with a maximum size.
#[derive(Debug)]
pub(super) struct BoundedOutput {
    written: Vec<u8>,
    limit: usize,
    full: bool,
}

impl BoundedOutput {
    /// Creates a buffer whose limit suffices for any reasonable template with `said` bytes of input.
    pub(super) fn for_bytes(said: usize) -> Self {
        let limit = said.saturating_mul(MAX_REPEATS).saturating_add(EXTRA_BYTES);
        Self { written: Vec::new(), limit, full: false }
    }

    /// Returns `true` if a write was refused for lack of room.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Maximum number of bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Written bytes.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.written
    }
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.written.len() {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
