//! The reader: a directory that holds the newest published snapshot.
//!
//! New files are fetched beside those that are searched, and the manifest of the index is renamed into place at last, as a
//! commit does; an open index follows it by itself. What the new snapshot does not name stays for one more publication,
//! because searches may not have left the old one yet.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use waymark_index::MANIFEST;

use super::lineage::{Lineage, replace, sync_folder};
use super::published::{PublishedFile, PublishedIndex};
use super::push::AT_ONCE;
use super::remote::RemoteIndex;
use super::{SnapshotError, blocking};

/// Name of the manifest of the publication that a directory holds.
const HELD: &str = ".waymark.replica.json";
/// Name of the lock file.
const LOCK: &str = ".waymark.replica.lock";
/// Extension of a file that is being fetched.
const PARTIAL: &str = "fetched";

/// Directory that holds a published snapshot.
#[derive(Debug)]
pub struct Replica {
    dir: PathBuf,
    remote: RemoteIndex,
    held: Option<PublishedIndex>,
    /// Names of the files of the publication before.
    before: HashSet<String>,
    /// If `true`, the next look lists all manifests instead of asking for the next one.
    is_lost: bool,
    _lock: File,
}

/// Result of [`Replica::refresh`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullReport {
    /// Number of the publication.
    pub number: u64,
    /// Number of the snapshot in its index.
    pub snapshot: u64,
    /// Number of parts fetched.
    pub parts: u64,
    /// Bytes of these parts.
    pub bytes: u64,
}

impl Replica {
    /// Opens the directory `dir` for snapshots of `remote`, creating it if it is missing. Fetches nothing yet.
    ///
    /// # Errors
    /// [`SnapshotError::InUse`] if another process fetches into it; and if it cannot be read or written.
    pub fn open(dir: &Path, remote: RemoteIndex) -> Result<Replica, SnapshotError> {
        fs::create_dir_all(dir).map_err(SnapshotError::file("write", dir))?;
        let path = dir.join(LOCK);
        let lock = File::create(&path).map_err(SnapshotError::file("write", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SnapshotError::InUse(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(SnapshotError::file("write", &path)(error)),
        }
        let held = match fs::read(dir.join(HELD)) {
            // A manifest that cannot be read costs that everything is fetched again.
            Ok(json) => PublishedIndex::parse(HELD, &json).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(SnapshotError::file("read", &dir.join(HELD))(error)),
        };
        if let Some(held) = &held {
            remove_unnamed(dir, held).map_err(SnapshotError::file("read", dir))?;
        }
        Ok(Replica { dir: dir.to_owned(), remote, held, before: HashSet::new(), is_lost: true, _lock: lock })
    }

    /// Returns `true` if the directory holds a snapshot.
    pub fn holds_index(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

    /// Fetches the newest publication. `None` if the directory holds it already.
    ///
    /// # Errors
    /// If nothing was published, the object store or the disk fails, or a part is damaged. The directory still holds what
    /// it held.
    pub async fn refresh(&mut self) -> Result<Option<PullReport>, SnapshotError> {
        let newest = self.newest().await;
        // Whatever happened, a list of all manifests tells the place again.
        self.is_lost = newest.is_err();
        let Some(newest) = newest? else { return Ok(None) };
        let fetched = self.fetch(&newest).await;
        self.is_lost |= fetched.is_err();
        fetched.map(Some)
    }

    /// Returns the newest publication, if it is not the one that is held.
    async fn newest(&self) -> Result<Option<PublishedIndex>, SnapshotError> {
        let known = self.held.as_ref().filter(|_| !self.is_lost);
        let Some(known) = known else {
            let newest = self.remote.newest().await?;
            let newest = newest.ok_or_else(|| SnapshotError::Empty(self.remote.place.clone()))?;
            return Ok(Some(newest).filter(|newest| self.held.as_ref() != Some(newest)));
        };
        // Asking for the next number costs less than a list.
        let mut newest = None;
        let mut number = known.number + 1;
        while let Some(next) = self.remote.read(number).await? {
            newest = Some(next);
            number += 1;
        }
        Ok(newest)
    }

    async fn fetch(&mut self, newest: &PublishedIndex) -> Result<PullReport, SnapshotError> {
        let mut report = PullReport { number: newest.number, snapshot: newest.snapshot, parts: 0, bytes: 0 };
        for (name, file) in newest.files.iter().filter(|(name, _)| *name != MANIFEST) {
            let held = self.held.as_ref().and_then(|held| held.files.get(name));
            let held = held.filter(|held| is_there(&self.dir.join(name), held));
            let path = self.dir.join(name);
            let kept = match held {
                Some(held) if held == file => continue,
                Some(held) if held.begins(file) => held.clone(),
                _ => PublishedFile::default(),
            };
            self.write(&path, &kept, file, &mut report).await?;
        }
        let manifest = newest.files.get(MANIFEST).ok_or_else(|| SnapshotError::Damaged {
            name: format!("manifest {}", newest.number),
            reason: "it has no index".to_owned(),
        })?;
        let path = self.dir.join(MANIFEST);
        self.write(&path, &PublishedFile::default(), manifest, &mut report).await?;
        self.hold(newest).await?;
        Ok(report)
    }

    /// Writes a file: what is `kept` of it is there already, and the rest is appended; or all of it is written beside and
    /// renamed.
    async fn write(
        &self,
        path: &Path,
        kept: &PublishedFile,
        file: &PublishedFile,
        report: &mut PullReport,
    ) -> Result<(), SnapshotError> {
        let is_new = kept.parts.is_empty();
        let target = if is_new { path.with_extension(PARTIAL) } else { path.to_owned() };
        let position = kept.bytes();
        let opened = {
            let target = target.clone();
            blocking(move || open(&target, is_new, position).map_err(SnapshotError::file("write", &target))).await?
        };
        let mut output = opened;
        let missing = file.parts.iter().skip(kept.parts.len()).cloned().collect::<Vec<_>>();
        let missing = missing.into_iter().map(|part| {
            let remote = self.remote.clone();
            async move { remote.part(&part).await }
        });
        let mut fetched = stream::iter(missing).buffered(AT_ONCE);
        while let Some(bytes) = fetched.try_next().await? {
            report.parts += 1;
            report.bytes += bytes.len() as u64;
            let name = target.clone();
            output = blocking(move || {
                output.write_all(&bytes).map_err(SnapshotError::file("write", &name))?;
                Ok(output)
            })
            .await?;
        }
        let path = path.to_owned();
        blocking(move || {
            let finish = || {
                output.sync_all()?;
                if is_new {
                    fs::rename(&target, &path)?;
                }
                sync_folder(&path)
            };
            finish().map_err(SnapshotError::file("write", &path))
        })
        .await
    }

    /// Records that the directory holds `newest`, and removes what neither it nor the publication before names.
    async fn hold(&mut self, newest: &PublishedIndex) -> Result<(), SnapshotError> {
        let json = newest.to_json()?;
        let path = self.dir.join(HELD);
        let place = self.remote.place.clone();
        let number = newest.number;
        let dir = self.dir.clone();
        let names = |index: &PublishedIndex| index.files.keys().cloned().collect::<HashSet<_>>();
        let held = self.held.replace(newest.clone());
        let before = std::mem::replace(&mut self.before, held.as_ref().map(names).unwrap_or_default());
        let needed: HashSet<String> = names(newest).union(&self.before).cloned().collect();
        let surplus: Vec<PathBuf> = before.difference(&needed).map(|name| self.dir.join(name)).collect();
        blocking(move || {
            replace(&path, &json).map_err(SnapshotError::file("write", &path))?;
            // Whoever has fetched it may go on from here as the writer.
            Lineage::read(&dir)?.know(&place, number)?;
            surplus.iter().for_each(|path| remove(path, &dir));
            Ok(())
        })
        .await
    }
}

/// Removes snapshots and logs that `held` does not name, which an earlier process left behind.
fn remove_unnamed(dir: &Path, held: &PublishedIndex) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_named = held.files.keys().any(|file| file.split('/').next() == Some(name.as_str()));
        if is_named {
            continue;
        }
        if name.starts_with("snapshot-") {
            fs::remove_dir_all(entry.path())?;
        } else if name.starts_with("delta-") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns `true` if a file still has at least the size that was fetched.
fn is_there(path: &Path, held: &PublishedFile) -> bool {
    fs::metadata(path).is_ok_and(|about| about.len() >= held.bytes())
}

/// Opens a file to write from `position` on.
fn open(path: &Path, is_new: bool, position: u64) -> io::Result<File> {
    if is_new {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        return File::create(path);
    }
    let mut file = File::options().write(true).open(path)?;
    // Removes what an interrupted fetch left behind.
    file.set_len(position)?;
    file.seek(SeekFrom::Start(position))?;
    Ok(file)
}

/// Removes a file, and the folders above it that are empty then.
fn remove(path: &Path, dir: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file of an earlier snapshot");
    }
    let above = path.ancestors().skip(1).take_while(|above| *above != dir);
    // Fails at the first folder that still holds files.
    let _ = above.map(fs::remove_dir).take_while(Result::is_ok).count();
}
