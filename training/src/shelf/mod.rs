//! A file of samples that one process at a time adds to, and what its samples were made by: only the same goes on there.

mod facts;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use toml::Table;

use crate::run::RunError;
use crate::sample::Sample;
use crate::store::{StoreError, Writer};

/// Why samples cannot be written where they should be.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// The file system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The samples cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file beside them cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Another process writes there.
    #[error("{}: another process is writing it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A file is there, and what made it is not known.
    #[error("{}: it is there, and no facts beside it say what made it: give another file", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// The facts beside a file cannot be read.
    #[error("{}: {reason}", path.display())]
    Facts {
        /// The file of facts.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file was made by something else.
    #[error("{} was made otherwise: {differs}; ask for the same, or give another file", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        differs: String,
    },
}

impl ShelfError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> ShelfError {
        let path = path.to_owned();
        move |source| ShelfError::Io { path, source }
    }
}

/// A file of samples, held by this process alone.
#[derive(Debug)]
pub struct Shelf {
    writer: Writer,
    /// Closing it gives the lock back, and so does the end of the process, whatever ends it.
    _lock: File,
}

/// A file that no other process writes while this is there.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Takes `path`, whether it is there or not, and makes the folder it lies in.
    ///
    /// # Errors
    /// [`ShelfError::Busy`], and what the file system refuses.
    pub fn take(path: &Path) -> Result<Lock, ShelfError> {
        fs::create_dir_all(folder(path)).map_err(ShelfError::io(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!(".{name}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(&beside);
        let file = file.map_err(ShelfError::io(&beside))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { path: path.to_owned(), file }),
            Err(TryLockError::WouldBlock) => Err(ShelfError::Busy { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(ShelfError::io(&beside)(error)),
        }
    }

    /// Opens the file, to go on behind what it holds. What that was made by is kept beside it, in `samples.facts.toml` for
    /// `samples.jsonl`.
    ///
    /// # Errors
    /// [`ShelfError`]: it is foreign, or made by other facts.
    pub fn open(self, facts: &Table) -> Result<Shelf, ShelfError> {
        facts::hold(&self.path, facts)?;
        Ok(Shelf { writer: Writer::open(&self.path)?, _lock: self.file })
    }
}

impl Shelf {
    /// Takes `path` and opens it.
    ///
    /// # Errors
    /// As [`Lock::take`] and [`Lock::open`].
    pub fn open(path: &Path, facts: &Table) -> Result<Shelf, ShelfError> {
        Lock::take(path)?.open(facts)
    }

    /// Checks that what `path` holds, if anything, was made by `facts`, and changes nothing.
    ///
    /// # Errors
    /// [`ShelfError::Unknown`], [`ShelfError::Changed`], and what the file system refuses.
    pub fn check(path: &Path, facts: &Table) -> Result<(), ShelfError> {
        facts::check(path, facts).map(drop)
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn append(&mut self, sample: &Sample) -> Result<(), StoreError> {
        self.writer.append(sample)
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.writer.sync()
    }
}

/// The folder that `path` lies in.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use toml::Value;

    use super::*;
    use crate::sample::{Task, tests::trajectory};
    use crate::store;

    #[test]
    fn one_process_at_a_time_adds_what_is_made_by_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/samples.jsonl");
        let facts = |seed| Table::from_iter([("seed".to_owned(), Value::Integer(seed))]);
        let sample = Sample::from_trajectory(trajectory(Vec::new(), 0, ""), Task::default());
        Shelf::check(&path, &facts(1)).unwrap();
        assert!(!path.parent().unwrap().exists(), "nothing was written");
        let mut shelf = Shelf::open(&path, &facts(1)).unwrap();
        shelf.append(&sample).unwrap();
        let busy = Shelf::open(&path, &facts(1)).unwrap_err();
        assert!(matches!(busy, ShelfError::Busy { .. }), "{busy}");
        drop(shelf);
        for error in [Shelf::open(&path, &facts(2)).unwrap_err(), Shelf::check(&path, &facts(2)).unwrap_err()] {
            assert!(error.to_string().contains("seed was 1, now it is 2"), "{error}");
        }
        Shelf::check(&path, &facts(1)).unwrap();
        Shelf::open(&path, &facts(1)).unwrap().append(&sample).unwrap();
        assert_eq!(store::read(&path).unwrap(), [sample.clone(), sample]);
    }
}
