//! Faults in mapped files: a file is cut off, or its disk fails, while it is mapped.
//!
//! The system answers the access to such a page with the signal SIGBUS, which ends the process. A program that calls
//! [`catch_mapped_faults`] goes on instead: the handler puts zeros in place of the rest of the mapping and counts the
//! fault for the folder of the index. A search that reads the mapping finds zeros, which the readers of this crate can
//! handle, and checks the count afterwards: the search fails, and the index counts as damaged until it is opened again.
//! Faults anywhere else go to the handler that was installed before.
//!
//! The vector graph is read by usearch, which cannot handle zeros. A thread that faults there is stopped for good, like
//! a search that hangs; later searches are refused before they read.

mod folders;
#[cfg(target_os = "linux")]
mod handler;
#[cfg(target_os = "linux")]
mod mapping;

use std::path::{Path, PathBuf};

use self::folders::WatchedFolder;
use crate::error::IndexError;

/// Installs the signal handler that keeps the process alive when a mapped file of an index cannot be read. Call it once
/// in a program, not in a library, since signal handlers belong to the process. The searches of the program must run on
/// threads that it can give up: a search that finds the vector graph cut off never returns. Does nothing on systems
/// other than Linux.
///
/// # Errors
/// If the system refuses the handler.
pub fn catch_mapped_faults() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    handler::install()?;
    Ok(())
}

/// Number of faults in the folder of an index when its files were mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultMark {
    folder: &'static WatchedFolder,
    before: u64,
}

impl FaultMark {
    /// Records the current number of faults in the folder `dir` of an index. Call it before mapping files in the
    /// folder.
    pub(crate) fn now(dir: &Path) -> FaultMark {
        let folder = folders::watch(dir);
        FaultMark { folder, before: folder.faults() }
    }

    /// Fails if a file of the folder could not be read since the mark was made.
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        if self.folder.faults() == self.before {
            return Ok(());
        }
        let file: PathBuf = self.folder.last_file();
        Err(IndexError::corrupt(
            &file,
            "it could not be read where it is mapped, as if it was cut off or its disk failed",
        ))
    }
}
