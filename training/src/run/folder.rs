//! Paths within the directory of a run, and the lock that keeps a second trainer out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use waymark_models::durable_file::is_part;
use waymark_models::file_lock;

use super::{RunError, durable};

const FACTS: &str = "run.toml";
const LOCK: &str = ".lock";

/// Directory of a run. [`RunFolder::create`] and [`RunFolder::resume`] hold the write lock until the value is dropped;
/// [`RunFolder::open`] takes no lock and is for reading only.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    /// Closing this file releases the lock, and so does the end of the process, even if it is killed.
    _lock: Option<File>,
}

impl RunFolder {
    /// Starts a run in a directory that is missing or empty, and writes `facts` to `run.toml`. The presence of
    /// `run.toml` marks a directory as a run.
    ///
    /// # Errors
    /// If the directory is not empty, if another trainer starts there, or on an I/O error.
    pub fn create(dir: &Path, facts: &str) -> Result<RunFolder, RunError> {
        create(dir)?;
        // Checked before the lock file is created, and again under the lock, because another trainer may have started
        // in between.
        RunFolder::refuse_taken(dir)?;
        let lock = lock(dir)?;
        RunFolder::refuse_taken(dir)?;
        durable::sweep(dir)?;
        durable::write(&dir.join(FACTS), facts.as_bytes())?;
        Ok(RunFolder { dir: dir.to_owned(), _lock: Some(lock) })
    }

    /// Opens an existing run for training.
    ///
    /// # Errors
    /// If the directory holds no run, if another trainer has locked it, or on an I/O error.
    pub fn resume(dir: &Path) -> Result<RunFolder, RunError> {
        let RunFolder { dir, .. } = RunFolder::open(dir)?;
        let folder = RunFolder { _lock: Some(lock(&dir)?), dir };
        durable::sweep(&folder.dir)?;
        durable::sweep(&folder.checkpoints())?;
        Ok(folder)
    }

    /// Opens a run for reading, even while a trainer is writing it.
    ///
    /// # Errors
    /// If the directory holds no run.
    pub fn open(dir: &Path) -> Result<RunFolder, RunError> {
        if !RunFolder::is_run(dir) {
            return Err(RunError::Missing { dir: dir.to_owned() });
        }
        Ok(RunFolder { dir: dir.to_owned(), _lock: None })
    }

    /// Returns `true` if a directory holds a run.
    pub fn is_run(dir: &Path) -> bool {
        dir.join(FACTS).is_file()
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Path of `run.toml`: the settings of the run.
    pub fn facts(&self) -> PathBuf {
        self.dir.join(FACTS)
    }

    /// Path of `metrics.jsonl`: see [`super::MetricsFile`].
    pub fn metrics(&self) -> PathBuf {
        self.dir.join("metrics.jsonl")
    }

    /// Path of `samples.jsonl`: the trajectories.
    pub fn samples(&self) -> PathBuf {
        self.dir.join("samples.jsonl")
    }

    /// Path of `events/`: the TensorBoard events.
    pub fn events(&self) -> PathBuf {
        self.dir.join("events")
    }

    /// Path of `checkpoints/`: the state to resume from.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// Path of `policy/`: the policy for serving.
    pub fn policy(&self) -> PathBuf {
        self.dir.join("policy")
    }

    /// Path of `ranker.safetensors`: the trained preference model.
    pub fn ranker(&self) -> PathBuf {
        self.dir.join("ranker.safetensors")
    }

    /// Path of `report.html`: the curves.
    pub fn report(&self) -> PathBuf {
        self.dir.join("report.html")
    }

    fn refuse_taken(dir: &Path) -> Result<(), RunError> {
        let mut foreign = false;
        for entry in fs::read_dir(dir).map_err(RunError::io("read", dir))? {
            let name = entry.map_err(RunError::io("read", dir))?.file_name();
            if name == FACTS {
                return Err(RunError::Exists { dir: dir.to_owned() });
            }
            // A process killed between taking the lock and writing `run.toml` leaves only these files.
            foreign |= name != LOCK && !is_part(&name.to_string_lossy());
        }
        if foreign { Err(RunError::Foreign { dir: dir.to_owned() }) } else { Ok(()) }
    }
}

/// Locks a directory. The lock ends when the returned file is dropped, or with the process.
pub(crate) fn lock(dir: &Path) -> Result<File, RunError> {
    let path = dir.join(LOCK);
    let lock = file_lock::try_take(&path).map_err(RunError::io("lock", &path))?;
    lock.ok_or_else(|| RunError::Locked { dir: dir.to_owned() })
}

/// Creates a directory with its parents, and syncs the entries of the new ones so that they survive a crash.
fn create(dir: &Path) -> Result<(), RunError> {
    // Only directories created here need their entries synced.
    let missing = dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).count();
    fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
    dir.ancestors().take(missing).try_for_each(durable::sync_parent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn runs_are_created_once_and_locked_by_one_trainer() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("runs/first");
        let error = RunFolder::resume(&dir).unwrap_err();
        assert!(matches!(error, RunError::Missing { .. }), "{error}");

        let run = RunFolder::create(&dir, "seed = 7\n").unwrap();
        assert_eq!(fs::read_to_string(run.facts()).unwrap(), "seed = 7\n");
        let error = RunFolder::create(&dir, "").unwrap_err();
        assert!(matches!(error, RunError::Exists { .. }), "{error}");
        assert!(error.to_string().contains("resume"), "{error}");
        let error = RunFolder::resume(&dir).unwrap_err();
        assert!(matches!(error, RunError::Locked { .. }), "{error}");
        // The run can be read while it is locked.
        assert_eq!(RunFolder::open(&dir).unwrap().path(), dir);
        drop(run);

        let run = RunFolder::resume(&dir).unwrap();
        assert_eq!(fs::read_to_string(run.facts()).unwrap(), "seed = 7\n");
        assert!(matches!(RunFolder::resume(&dir), Err(RunError::Locked { .. })));
    }

    #[test]
    fn foreign_directories_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("thesis.tex"), "years of work").unwrap();
        let error = RunFolder::create(temp.path(), "").unwrap_err();
        assert!(matches!(error, RunError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("empty directory"), "{error}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_of_a_killed_start_can_be_reused() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(LOCK), "").unwrap();
        fs::write(temp.path().join(".run.toml.7.part"), "se").unwrap();
        RunFolder::create(temp.path(), "seed = 1").unwrap();
        assert!(RunFolder::is_run(temp.path()));
        assert!(!temp.path().join(".run.toml.7.part").exists());
    }
}
