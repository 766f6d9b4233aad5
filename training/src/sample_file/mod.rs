//! Sample files with one writer at a time. The settings that produced the samples are stored next to the file, and
//! only a process with the same settings may append to it.

mod facts;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use toml::Table;
use waymark_models::file_lock;

use crate::run::RunError;
use crate::sample::Sample;
use crate::sample_lines::{SampleLinesError, SampleWriter};

/// Error returned when a sample file cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum SampleFileError {
    /// The samples cannot be read or written.
    #[error(transparent)]
    Samples(#[from] SampleLinesError),
    /// The lock or the file of facts cannot be read or written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Another process is writing the file.
    #[error("{}: another process is writing this file", path.display())]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file exists without its facts.
    #[error("{} exists, but its facts file is missing: choose another file", path.display())]
    Unknown {
        /// Path of the file.
        path: PathBuf,
    },
    /// The facts cannot be read.
    #[error("{}: {reason}", path.display())]
    Facts {
        /// Path of the facts file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The file was produced with other facts.
    #[error("{} was produced with other settings: {differs}; use the same settings or choose another file", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
        /// Differing fields, with their old and new values.
        differs: String,
    },
}

/// A sample file that this process has locked.
#[derive(Debug)]
pub struct SampleFile {
    writer: SampleWriter,
    /// Closing this file releases the lock, and so does the end of the process, even if it is killed.
    _lock: File,
}

/// Exclusive lock on a path.
#[derive(Debug)]
pub struct SampleFileLock {
    path: PathBuf,
    file: File,
}

impl SampleFileLock {
    /// Locks `path`, whether the file exists or not, and creates its parent directory.
    ///
    /// # Errors
    /// [`SampleFileError::Busy`] if another process holds the lock, and I/O errors.
    pub fn take(path: &Path) -> Result<SampleFileLock, SampleFileError> {
        fs::create_dir_all(folder(path)).map_err(RunError::io("create", folder(path)))?;
        // The lock is a file of its own, because the sample file may not exist yet.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lock_path = path.with_file_name(format!(".{name}.lock"));
        let path = path.to_owned();
        match file_lock::try_take(&lock_path).map_err(RunError::io("lock", &lock_path))? {
            Some(file) => Ok(SampleFileLock { path, file }),
            None => Err(SampleFileError::Busy { path }),
        }
    }

    /// Opens the file for appending. Stores `facts` in a file next to it (`samples.facts.toml` for `samples.jsonl`),
    /// or checks that they are the stored ones.
    ///
    /// # Errors
    /// [`SampleFileError`] if the file is not a sample file or was produced with other facts.
    pub fn open(self, facts: &Table) -> Result<SampleFile, SampleFileError> {
        // Before the first sample, so that a file never exists without the settings that made it.
        facts::check_or_store(&self.path, facts)?;
        Ok(SampleFile { writer: SampleWriter::open(&self.path)?, _lock: self.file })
    }
}

impl SampleFile {
    /// Locks and opens `path`.
    ///
    /// # Errors
    /// Same as [`SampleFileLock::take`] and [`SampleFileLock::open`].
    pub fn open(path: &Path, facts: &Table) -> Result<SampleFile, SampleFileError> {
        SampleFileLock::take(path)?.open(facts)
    }

    /// Checks that existing samples in `path` were produced with `facts`, without changing anything.
    ///
    /// # Errors
    /// [`SampleFileError::Unknown`], [`SampleFileError::Changed`], and I/O errors.
    pub fn check(path: &Path, facts: &Table) -> Result<(), SampleFileError> {
        facts::check(path, facts).map(drop)
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn append(&mut self, sample: &Sample) -> Result<(), SampleLinesError> {
        self.writer.append(sample)
    }

    /// Waits until all samples are on disk.
    ///
    /// # Errors
    /// [`SampleLinesError::Io`].
    pub fn sync(&self) -> Result<(), SampleLinesError> {
        self.writer.sync()
    }
}

/// Parent directory of `path`.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use toml::Value;

    use super::*;
    use crate::sample::{SampleTask, tests::trajectory};
    use crate::sample_lines;

    #[test]
    fn only_one_process_with_equal_facts_can_append() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/samples.jsonl");
        let facts = |seed| Table::from_iter([("seed".to_owned(), Value::Integer(seed))]);
        let sample = Sample::from_trajectory(trajectory(Vec::new(), 0, ""), SampleTask::default());
        SampleFile::check(&path, &facts(1)).unwrap();
        assert!(!path.parent().unwrap().exists(), "nothing was written");
        let mut file = SampleFile::open(&path, &facts(1)).unwrap();
        file.append(&sample).unwrap();
        let busy = SampleFile::open(&path, &facts(1)).unwrap_err();
        assert!(matches!(busy, SampleFileError::Busy { .. }), "{busy}");
        drop(file);
        for error in [SampleFile::open(&path, &facts(2)).unwrap_err(), SampleFile::check(&path, &facts(2)).unwrap_err()]
        {
            assert!(error.to_string().contains("seed was 1, now it is 2"), "{error}");
        }
        SampleFile::check(&path, &facts(1)).unwrap();
        SampleFile::open(&path, &facts(1)).unwrap().append(&sample).unwrap();
        assert_eq!(sample_lines::read(&path).unwrap(), [sample.clone(), sample]);
    }
}
