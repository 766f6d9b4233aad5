//! Checksums of files, whole and by block.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::IndexError;

/// Length of a block in bytes.
pub(crate) const BLOCK: u64 = 1 << 20;

/// Size and checksums of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChecksum {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE).
    pub crc32: u32,
    /// CRC-32 of each block of 1 MiB, as eight hexadecimal digits each. Empty for a file of one block, and in snapshots of
    /// format 2.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blocks: String,
}

impl FileChecksum {
    /// Computes the checksums of a file with these contents.
    pub fn of_bytes(bytes: &[u8]) -> FileChecksum {
        let mut sums = SumWriter::default();
        bytes.chunks(BLOCK as usize).for_each(|block| sums.add(block));
        sums.finish()
    }

    /// Reads a whole file and computes its checksums.
    pub(crate) fn of(path: &Path) -> Result<FileChecksum, IndexError> {
        let mut sums = SumWriter::default();
        each_block(path, |_, block| {
            sums.add(block);
            Ok(())
        })?;
        Ok(sums.finish())
    }

    /// Reads a whole file of a snapshot and compares its checksums with these.
    ///
    /// # Errors
    /// [`IndexError::Corrupt`] with the first damaged block.
    pub(crate) fn check(&self, path: &Path, snapshot: u64) -> Result<(), IndexError> {
        match self.damaged(path, &mut |_| ())?.first() {
            None => Ok(()),
            Some(Range { start, end }) => {
                let block = start / BLOCK;
                let message =
                    format!("block {block} (bytes {start} to {end}) of snapshot {snapshot} has a wrong checksum");
                Err(IndexError::corrupt(path, message))
            }
        }
    }

    /// Reads a whole file and returns the byte ranges of its damaged blocks, all within the recorded length. A block
    /// that is missing or has another length is damaged. Calls `read` with the length of each block. If no block
    /// checksums are known, the file counts as one block.
    pub(crate) fn damaged(&self, path: &Path, read: &mut dyn FnMut(u64)) -> Result<Vec<Range<u64>>, IndexError> {
        let mut whole = SumWriter::default();
        let mut damaged = Vec::new();
        let mut next = 0;
        each_block(path, |place, block| {
            whole.add(block);
            read(block.len() as u64);
            next = place + 1;
            if let Some((range, sum)) = self.expected(place)
                && (block.len() as u64 != range.end - range.start || sum != crc32fast::hash(block))
            {
                damaged.push(range);
            }
            Ok(())
        })?;
        // The blocks behind the end of a file that was cut.
        damaged.extend((next..).map_while(|place| self.expected(place)).map(|(range, _)| range));
        let whole = whole.finish();
        if damaged.is_empty() && (whole.crc32 != self.crc32 || whole.bytes != self.bytes) {
            damaged.push(0..self.bytes);
        }
        Ok(damaged)
    }

    /// Returns the bytes of block number `place` and its checksum. `None` if the checksum is not known.
    fn expected(&self, place: u64) -> Option<(Range<u64>, u32)> {
        let start = place.checked_mul(BLOCK).filter(|start| *start < self.bytes)?;
        let end = self.bytes.min(start.saturating_add(BLOCK));
        Some((start..end, self.block(place)?))
    }

    /// Returns the checksum of block number `place`. `None` if it is not known.
    fn block(&self, place: u64) -> Option<u32> {
        let start = usize::try_from(place).ok()?.checked_mul(8)?;
        u32::from_str_radix(self.blocks.get(start..start.checked_add(8)?)?, 16).ok()
    }
}

/// Checksums of a file that is read block by block.
#[derive(Default)]
struct SumWriter {
    bytes: u64,
    whole: crc32fast::Hasher,
    blocks: Vec<u32>,
}

impl SumWriter {
    fn add(&mut self, block: &[u8]) {
        // The checksum of the whole file is combined from those of the blocks, so each byte is hashed once.
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(block);
        self.whole.combine(&hasher);
        self.blocks.push(hasher.finalize());
        self.bytes += block.len() as u64;
    }

    fn finish(self) -> FileChecksum {
        let blocks = if self.blocks.len() > 1 { &self.blocks[..] } else { &[] };
        FileChecksum {
            bytes: self.bytes,
            crc32: self.whole.finalize(),
            blocks: blocks.iter().map(|sum| format!("{sum:08x}")).collect(),
        }
    }
}

/// Reads a file and calls `visit` with the number and the bytes of each block.
fn each_block(path: &Path, mut visit: impl FnMut(u64, &[u8]) -> Result<(), IndexError>) -> Result<(), IndexError> {
    let mut file = File::open(path).map_err(IndexError::io("open", path))?;
    let mut block = Vec::with_capacity(BLOCK as usize);
    for place in 0.. {
        block.clear();
        (&mut file).take(BLOCK).read_to_end(&mut block).map_err(IndexError::io("read", path))?;
        if block.is_empty() {
            break;
        }
        visit(place, &block)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_damaged_block_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let bytes: Vec<u8> = (0..5 * BLOCK / 2).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let sum = FileChecksum::of(&path).unwrap();
        assert_eq!(sum, FileChecksum::of_bytes(&bytes));
        assert_eq!((sum.crc32, sum.blocks.len()), (crc32fast::hash(&bytes), 24));
        sum.check(&path, 1).unwrap();
        let mut broken = bytes.clone();
        broken[BLOCK as usize + 7] ^= 1;
        broken[2 * BLOCK as usize] ^= 128;
        std::fs::write(&path, &broken).unwrap();
        let error = sum.check(&path, 9).unwrap_err().to_string();
        assert!(error.contains("block 1 (bytes 1048576 to 2097152) of snapshot 9"), "{error}");
        let expected = [BLOCK..2 * BLOCK, 2 * BLOCK..5 * BLOCK / 2];
        assert_eq!(sum.damaged(&path, &mut |_| ()).unwrap(), expected);
        // Without checksums of blocks, as in format 2, the whole file is named.
        let whole = FileChecksum { blocks: String::new(), ..sum.clone() };
        assert_eq!(whole.damaged(&path, &mut |_| ()).unwrap().len(), 1);
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(sum.check(&path, 1).is_err());
    }

    #[test]
    fn blocks_of_a_file_of_another_length_are_named_as_recorded() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let bytes: Vec<u8> = (0..5 * BLOCK / 2).map(|i| (i % 251) as u8).collect();
        let sum = FileChecksum::of_bytes(&bytes);
        let blocks = [0..BLOCK, BLOCK..2 * BLOCK, 2 * BLOCK..5 * BLOCK / 2];
        let block = BLOCK as usize;
        for (found, expected) in [
            (bytes[..0].to_vec(), &blocks[..]),
            (bytes[..block].to_vec(), &blocks[1..]),
            (bytes[..block + 100].to_vec(), &blocks[1..]),
            ([&bytes[..], b"more"].concat(), &blocks[2..]),
            (bytes.repeat(2), &blocks[2..]),
            (bytes.clone(), &blocks[3..]),
        ] {
            std::fs::write(&path, &found).unwrap();
            assert_eq!(sum.damaged(&path, &mut |_| ()).unwrap(), expected, "{} bytes", found.len());
        }
        // Bytes were added behind the last block, and none of the recorded ones is damaged.
        let even = FileChecksum::of_bytes(&bytes[..2 * block]);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(even.damaged(&path, &mut |_| ()).unwrap().first(), Some(&(0..2 * BLOCK)));
    }
}
