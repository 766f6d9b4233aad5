//! Bounds-checked cursor over untrusted bytes, whose errors name the offset.

use std::ops::Range;

/// Reason why a header could not be read. The caller adds the file's path.
pub(super) type Reason = String;

/// Reads little-endian values from the front of a file.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn skip(&mut self, len: u64, what: &str) -> Result<Range<usize>, Reason> {
        match usize::try_from(len).ok().filter(|&len| len <= self.left()) {
            Some(len) => {
                let start = self.at;
                self.at += len;
                Ok(start..self.at)
            }
            None => Err(format!(
                "truncated or damaged: {what} takes {len} bytes at offset {}, {} are left",
                self.at,
                self.left()
            )),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Reason> {
        let range = self.skip(N as u64, what)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Reason> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Reason> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items of at least `least` bytes each, and refuses one that exceeds the rest of the file.
    pub(super) fn count(&mut self, least: u64, what: &str) -> Result<u64, Reason> {
        let count = self.u64(what)?;
        if count.saturating_mul(least) > self.left() as u64 {
            return Err(format!(
                "truncated or damaged: {count} as the {what} at offset {}, only {} bytes are left",
                self.at - 8,
                self.left()
            ));
        }
        Ok(count)
    }

    pub(super) fn text(&mut self, what: &str) -> Result<Range<usize>, Reason> {
        let len = self.u64(what)?;
        self.skip(len, what)
    }
}
