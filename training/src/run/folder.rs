//! The folder of a run: its names, and the lock that keeps a second trainer out.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::{RunError, durable};

const FACTS: &str = "run.toml";
const LOCK: &str = ".lock";

/// The folder of a run. Held for writing by this process alone, until dropped, when it comes from [`Folder::create`] or
/// [`Folder::resume`]; only to be read when it comes from [`Folder::open`].
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    /// Closing it gives the lock back, and so does the end of the process, whatever ends it.
    _lock: Option<File>,
}

impl Folder {
    /// Begins a run in a folder that is missing or empty. `facts` becomes `run.toml`, by which a run is known.
    ///
    /// # Errors
    ///
    /// When the folder holds a run or anything else, when another trainer begins one there, or when the system refuses.
    pub fn create(dir: &Path, facts: &str) -> Result<Folder, RunError> {
        create(dir)?;
        // Looked at before anything is written there, and once more by the one who has the lock.
        Folder::refuse_taken(dir)?;
        let lock = lock(dir)?;
        Folder::refuse_taken(dir)?;
        durable::sweep(dir)?;
        durable::write(&dir.join(FACTS), facts.as_bytes())?;
        Ok(Folder { dir: dir.to_owned(), _lock: Some(lock) })
    }

    /// Takes up a run again.
    ///
    /// # Errors
    ///
    /// When the folder holds no run, when another trainer is at work there, or when the system refuses.
    pub fn resume(dir: &Path) -> Result<Folder, RunError> {
        let Folder { dir, .. } = Folder::open(dir)?;
        let folder = Folder { _lock: Some(lock(&dir)?), dir };
        durable::sweep(&folder.dir)?;
        durable::sweep(&folder.checkpoints())?;
        Ok(folder)
    }

    /// Opens a run to be looked at, also while it goes on.
    ///
    /// # Errors
    ///
    /// When the folder holds no run.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        if !Folder::is_run(dir) {
            return Err(RunError::Missing { dir: dir.to_owned() });
        }
        Ok(Folder { dir: dir.to_owned(), _lock: None })
    }

    /// Whether a folder holds a run, so that it can be resumed.
    pub fn is_run(dir: &Path) -> bool {
        dir.join(FACTS).is_file()
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// `run.toml`: what was asked for.
    pub fn facts(&self) -> PathBuf {
        self.dir.join(FACTS)
    }

    /// `metrics.jsonl`: see [`super::Metrics`].
    pub fn metrics(&self) -> PathBuf {
        self.dir.join("metrics.jsonl")
    }

    /// `samples.jsonl`: trajectories.
    pub fn samples(&self) -> PathBuf {
        self.dir.join("samples.jsonl")
    }

    /// `events/`: what TensorBoard reads.
    pub fn events(&self) -> PathBuf {
        self.dir.join("events")
    }

    /// `checkpoints/`: what a run resumes from.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// `policy/`: what is served.
    pub fn policy(&self) -> PathBuf {
        self.dir.join("policy")
    }

    /// `ranker.safetensors`: what was learnt beside the policy, where something was.
    pub fn ranker(&self) -> PathBuf {
        self.dir.join("ranker.safetensors")
    }

    /// `report.html`: the curves.
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
            // What a process that was killed between lock and `run.toml` leaves is as good as empty.
            foreign |= name != LOCK && !durable::is_part(&name.to_string_lossy());
        }
        if foreign { Err(RunError::Foreign { dir: dir.to_owned() }) } else { Ok(()) }
    }
}

fn lock(dir: &Path) -> Result<File, RunError> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(RunError::io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RunError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(RunError::io("lock", &path)(error)),
    }
}

/// Creates a folder with those above it. The names of the new ones must last as well as what will be in them.
fn create(dir: &Path) -> Result<(), RunError> {
    let new = dir.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).count();
    fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
    dir.ancestors().take(new).try_for_each(durable::sync_parent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_is_begun_once_and_resumed_by_one() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("runs/first");
        let error = Folder::resume(&dir).unwrap_err();
        assert!(matches!(error, RunError::Missing { .. }), "{error}");

        let run = Folder::create(&dir, "seed = 7\n").unwrap();
        assert_eq!(fs::read_to_string(run.facts()).unwrap(), "seed = 7\n");
        let error = Folder::create(&dir, "").unwrap_err();
        assert!(matches!(error, RunError::Exists { .. }), "{error}");
        assert!(error.to_string().contains("resume"), "{error}");
        let error = Folder::resume(&dir).unwrap_err();
        assert!(matches!(error, RunError::Locked { .. }), "{error}");
        // It can be looked at while it goes on.
        assert_eq!(Folder::open(&dir).unwrap().path(), dir);
        drop(run);

        let run = Folder::resume(&dir).unwrap();
        assert_eq!(fs::read_to_string(run.facts()).unwrap(), "seed = 7\n");
        assert!(matches!(Folder::resume(&dir), Err(RunError::Locked { .. })));
    }

    #[test]
    fn other_folders_are_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("thesis.tex"), "years of work").unwrap();
        let error = Folder::create(temp.path(), "").unwrap_err();
        assert!(matches!(error, RunError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("empty folder"), "{error}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_killed_beginning_does_not_take_the_folder() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(LOCK), "").unwrap();
        fs::write(temp.path().join(".run.toml.7.part"), "se").unwrap();
        Folder::create(temp.path(), "seed = 1").unwrap();
        assert!(Folder::is_run(temp.path()));
        assert!(!temp.path().join(".run.toml.7.part").exists());
    }
}
