//! Record of accepted changes that are finished although their files are still there. Making such a change again would
//! undo later ones.
//!
//! A commit writes the IDs of its accepted changes to `pending/finished.json`, with the number and the checksum of its
//! manifest, and then publishes the manifest. The changes are finished if that manifest is the published one. The next
//! commit, build, merge or restore settles this under the lock of the folder before it publishes, so the record is right
//! wherever a process is killed. The ID of a change stays in the record for as long as its file exists.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::IndexError;
use crate::folder;
use crate::layout::{FINISHED, FINISHED_PART, PENDING};
use crate::manifest::Manifest;
use crate::pending::PendingFile;

/// IDs of changes by the names of their files. The ID tells a change from a later one whose file has the same name.
type ChangeIds = BTreeMap<String, String>;

/// Record of finished changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FinishedChanges {
    /// Changes that are finished.
    finished: ChangeIds,
    /// Commit that was about to be published when the record was written. `None` if its changes are settled.
    announced: Option<AnnouncedCommit>,
}

/// Commit that is about to be published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct AnnouncedCommit {
    /// Number of the snapshot.
    snapshot: u64,
    /// Checksum of the manifest.
    checksum: u32,
    /// Changes of the commit.
    changes: ChangeIds,
}

impl FinishedChanges {
    /// Reads the record of the index in `dir`, whose folder must be locked. The changes of an announced commit are
    /// finished if its manifest was published.
    pub(crate) fn read(dir: &Path) -> FinishedChanges {
        FinishedChanges::stored(dir).settled(dir)
    }

    /// Reads the record as it was written. Without a readable record, no change is finished.
    fn stored(dir: &Path) -> FinishedChanges {
        let path = path(dir);
        let json = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return FinishedChanges::default(),
            other => other.map_err(|error| error.to_string()),
        };
        let record = json.and_then(|json| serde_json::from_slice(&json).map_err(|error| error.to_string()));
        record.unwrap_or_else(|error| {
            let path = path.display();
            tracing::error!(%path, error, "cannot read which changes are finished: the next start may make some again");
            FinishedChanges::default()
        })
    }

    fn settled(mut self, dir: &Path) -> FinishedChanges {
        let Some(AnnouncedCommit { snapshot, checksum, changes }) = self.announced.take() else { return self };
        let is_published = |manifest: Manifest| manifest.snapshot == snapshot && manifest.checksum == checksum;
        if Manifest::read(dir).is_ok_and(is_published) {
            self.finished.extend(changes);
        }
        self
    }

    /// Returns `true` if the change in `file` is finished.
    pub(crate) fn contains(&self, file: &PendingFile) -> bool {
        self.finished.get(&file.name()).is_some_and(|id| id == file.id())
    }

    /// Writes the record in place of `stored`, without the changes whose files are gone.
    fn replace(mut self, stored: &FinishedChanges, dir: &Path) -> Result<(), IndexError> {
        let pending = dir.join(PENDING);
        let before = self.finished.len();
        self.finished.retain(|name, _| pending.join(name).try_exists().unwrap_or(true));
        // A crash of the machine must not bring a file back whose change is no longer in the record.
        if self.finished.len() < before {
            folder::sync_folder(&pending)?;
        }
        if self == *stored {
            return Ok(());
        }
        let path = path(dir);
        if self == FinishedChanges::default() {
            return fs::remove_file(&path).map_err(IndexError::io("remove", &path));
        }
        let json =
            serde_json::to_vec(&self).map_err(|error| IndexError::io("write", &path)(io::Error::other(error)))?;
        folder::replace_file(&pending.join(FINISHED_PART), &path, &json)?;
        folder::sync_folder(&pending)
    }
}

/// Records that `manifest`, which is about to be published in `dir`, contains the changes of `files`. Settles the
/// commit that was announced before.
///
/// # Errors
/// If the disk fails. The manifest must then not be published.
pub(crate) fn announce(dir: &Path, manifest: &Manifest, files: &[PendingFile]) -> Result<(), IndexError> {
    let stored = FinishedChanges::stored(dir);
    let mut record = stored.clone().settled(dir);
    let changes = ids(files);
    if !changes.is_empty() {
        let Manifest { snapshot, checksum, .. } = *manifest;
        record.announced = Some(AnnouncedCommit { snapshot, checksum, changes });
    }
    record.replace(&stored, dir)
}

/// Records that the changes of `files` are finished without a commit, because they had no effect on the index in `dir`.
///
/// # Errors
/// If the disk fails.
pub(crate) fn finish(dir: &Path, files: &[PendingFile]) -> Result<(), IndexError> {
    let changes = ids(files);
    if changes.is_empty() {
        return Ok(());
    }
    let stored = FinishedChanges::stored(dir);
    let mut record = stored.clone().settled(dir);
    record.finished.extend(changes);
    record.replace(&stored, dir)
}

/// Returns the IDs of the changes whose files are still there. Nobody makes the others again.
fn ids(files: &[PendingFile]) -> ChangeIds {
    let present = files.iter().filter(|file| file.path().exists());
    present.map(|file| (file.name(), file.id().to_owned())).collect()
}

fn path(dir: &Path) -> PathBuf {
    dir.join(PENDING).join(FINISHED)
}
