//! What a template writes on: it has an end.

use std::io;

/// How often a template may write everything that is said.
const TIMES: usize = 16;

/// What it may write besides, in bytes.
const BESIDES: usize = 1 << 20;

/// Text that grows up to a bound.
#[derive(Debug)]
pub(super) struct Sheet {
    written: Vec<u8>,
    most: usize,
    full: bool,
}

impl Sheet {
    /// Enough for any template that is given so many bytes and means them.
    pub(super) fn for_bytes(said: usize) -> Self {
        let most = said.saturating_mul(TIMES).saturating_add(BESIDES);
        Self { written: Vec::new(), most, full: false }
    }

    /// Whether more was to be written than there is room for.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// The most that can be written, in bytes.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// What was written.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.written
    }
}

impl io::Write for Sheet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.written.len() {
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
