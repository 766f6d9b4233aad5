//! Memory-mapped files and their fingerprints.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::ModelError;

/// A read-only memory-mapped file. The file must not be shortened while it is open: weights are replaced by
/// renaming a new file over the old one, which leaves this mapping unchanged.
#[derive(Debug)]
pub(crate) struct Map {
    path: PathBuf,
    memory: Mmap,
}

impl Map {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(ModelError::io("read", path))?;
        let metadata = file.metadata().map_err(ModelError::io("read", path))?;
        if !metadata.is_file() {
            return Err(ModelError::Corrupt { path: path.into(), reason: "not a file".to_owned() });
        }
        if metadata.len() == 0 {
            return Err(ModelError::Corrupt { path: path.into(), reason: "the file is empty".to_owned() });
        }
        // SAFETY: the mapping is private and read-only, and the contract above rules out files that shrink while
        // mapped.
        let memory = unsafe { Mmap::map(&file) }.map_err(ModelError::io("read", path))?;
        Ok(Self { path: path.into(), memory })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Lets the system take back the pages read so far, which are read again from the file on the next access. Without
    /// this, a loaded model would count twice: its repacked weights and the file.
    pub(super) fn release(&self) {
        #[cfg(unix)]
        {
            // SAFETY: the mapping is read-only and backed by the file, so discarded pages come back unchanged.
            let released = unsafe { self.memory.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            if let Err(error) = released {
                tracing::debug!(path = %self.path.display(), %error, "the system keeps the pages of a mapped file");
            }
        }
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Corrupt { path: self.path.clone(), reason: reason.into() }
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> ModelError {
        ModelError::Unsupported { path: self.path.clone(), what: what.into() }
    }

    /// Adds a fingerprint of the file to a hash: its size, its header, and 64 windows of 4 KiB spread over the
    /// rest, so two fine-tuned versions of one model with equal headers differ. Reading everything would cost
    /// seconds at every start.
    pub(super) fn identify(&self, header: usize, hash: &mut Sha256) {
        let bytes = self.bytes();
        hash.update((bytes.len() as u64).to_le_bytes());
        let (header, rest) = bytes.split_at(header.min(bytes.len()));
        hash.update(header);
        sample(rest, hash);
    }
}

/// Adds 64 windows of 4 KiB, spread over `bytes`, to a hash.
pub(super) fn sample(bytes: &[u8], hash: &mut Sha256) {
    const WINDOWS: usize = 64;
    const WINDOW: usize = 4096;
    for window in 0..WINDOWS {
        // The first window starts at the first byte and the last one ends at the last byte.
        let start = bytes.len().saturating_sub(WINDOW) * window / (WINDOWS - 1);
        hash.update(&bytes[start..bytes.len().min(start + WINDOW)]);
    }
}
