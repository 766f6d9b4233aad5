//! The reader: a directory that holds the newest published snapshot.
//!
//! New files are fetched beside those that are searched, and logs are appended to. Once everything is there, the files
//! get their names, and the manifest of the index last, as by a commit; an open index follows it by itself. What the
//! new snapshot does not name stays for one more publication, because searches may not have left the old one yet.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use waymark_index::MANIFEST;
use waymark_index::layout::DELTA;

use super::file_fetch::{FetchedFile, FileFetch, is_there, put_in_place};
use super::lineage::Lineage;
use super::published::{PublishedFile, PublishedIndex};
use super::push::AT_ONCE;
use super::remote::RemoteIndex;
use super::{SnapshotError, blocking, held};

/// Name of the lock file.
const LOCK: &str = ".waymark.replica.lock";

/// Number of checks without a new publication after which all manifests are listed. The next manifest may have been
/// removed already, if many were published between two checks.
const LIST_AFTER: u32 = 15;

/// Directory that holds a published snapshot.
#[derive(Debug)]
pub struct Replica {
    dir: PathBuf,
    remote: RemoteIndex,
    held: Option<PublishedIndex>,
    /// If `true`, an index that was built or changed in the directory is replaced.
    replaces: bool,
    /// If `true`, the next check compares the contents of all files with the newest publication.
    compares: bool,
    /// If `true`, the next check lists all manifests instead of asking for the next one.
    is_lost: bool,
    /// Number of checks since the last publication.
    quiet: u32,
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
    /// Size of the fetched parts, in bytes.
    pub bytes: u64,
}

impl Replica {
    /// Opens the directory `dir` for snapshots of `remote`, creating it if it is missing. Fetches nothing yet.
    ///
    /// # Errors
    /// [`SnapshotError::InUse`] if another process fetches into it; and if it cannot be read or written.
    pub fn open(dir: &Path, remote: RemoteIndex) -> Result<Replica, SnapshotError> {
        fs::create_dir_all(dir).map_err(SnapshotError::file("write", dir))?;
        let lock = held::lock(&dir.join(LOCK))?.ok_or_else(|| SnapshotError::InUse(dir.to_owned()))?;
        let held = held::read(dir)?;
        Ok(Replica {
            dir: dir.to_owned(),
            remote,
            held,
            replaces: false,
            compares: false,
            is_lost: true,
            quiet: 0,
            _lock: lock,
        })
    }

    /// Sets the handling of an index that was built or changed in the directory: `true` replaces it, and `false` makes
    /// [`refresh`](Self::refresh) fail.
    #[must_use]
    pub fn replacing(self, replaces: bool) -> Replica {
        Replica { replaces, ..self }
    }

    /// Sets the trust in files that were fetched before: `true` makes the next [`refresh`](Self::refresh) compare their
    /// contents with the newest publication, and `false` only their sizes.
    #[must_use]
    pub fn comparing(self, compares: bool) -> Replica {
        Replica { compares, ..self }
    }

    /// Returns `true` if the directory holds a snapshot.
    pub fn holds_index(&self) -> bool {
        self.dir.join(MANIFEST).exists()
    }

    /// Fetches the newest publication, or the files of it that are missing or were cut. `None` if the directory holds
    /// it already.
    ///
    /// # Errors
    /// If nothing was published, the object store or the disk fails, or a part is damaged. The directory still holds
    /// what it held. [`SnapshotError::Changed`] if the index was not fetched, and an error of the index if it is being
    /// changed.
    pub async fn refresh(&mut self) -> Result<Option<PullReport>, SnapshotError> {
        let is_listed = self.is_lost || self.held.is_none();
        let newest = self.newest().await;
        let is_quiet = matches!(newest, Ok(None));
        self.quiet = if is_quiet { self.quiet.wrapping_add(1) } else { 0 };
        // After an error and after a long fetch the next publication may be gone already.
        self.is_lost = !is_quiet || self.quiet.is_multiple_of(LIST_AFTER);
        let Some(newest) = newest? else {
            if let Some(held) = self.held.as_ref().filter(|_| is_listed) {
                // A process may have been killed before it recorded this.
                Lineage::read(&self.dir)?.know(&self.remote.address, held)?;
            }
            return Ok(None);
        };
        let _writing = held::lock_index(&self.dir)?;
        self.compare(&newest)?;
        self.fetch(&newest).await.map(Some)
    }

    /// Returns the newest publication, if the directory does not hold it. A list finds missing files as well.
    async fn newest(&self) -> Result<Option<PublishedIndex>, SnapshotError> {
        let known = self.held.as_ref().filter(|_| !self.is_lost);
        let Some(known) = known else {
            let newest = self.remote.newest().await?;
            let newest = newest.ok_or_else(|| SnapshotError::Empty(self.remote.address.clone()))?;
            return Ok(Some(newest).filter(|newest| !self.holds(newest)));
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

    /// Returns `true` if the directory holds all files of `newest`, as far as the record and their sizes tell.
    fn holds(&self, newest: &PublishedIndex) -> bool {
        let is_here = |(name, file): (&String, &PublishedFile)| is_there(&self.dir.join(name), file);
        !self.compares && self.held.as_ref() == Some(newest) && newest.files.iter().all(is_here)
    }

    /// Checks that `newest` replaces nothing that was not fetched.
    fn compare(&mut self, newest: &PublishedIndex) -> Result<(), SnapshotError> {
        let Some(local) = held::local_manifest(&self.dir)? else {
            self.held = None;
            return Ok(());
        };
        let is_local = |index: &PublishedIndex| index.files.get(MANIFEST) == Some(&local);
        if self.held.as_ref().is_some_and(is_local) {
            return Ok(());
        }
        // Files with the same names may have other contents now.
        self.held = None;
        if self.replaces || is_local(newest) { Ok(()) } else { Err(SnapshotError::Changed(self.dir.clone())) }
    }

    async fn fetch(&mut self, newest: &PublishedIndex) -> Result<PullReport, SnapshotError> {
        let mut report = PullReport { number: newest.number, snapshot: newest.snapshot, parts: 0, bytes: 0 };
        let manifest = newest.files.get(MANIFEST).ok_or_else(|| SnapshotError::Damaged {
            name: format!("manifest {}", newest.number),
            reason: "it has no index".to_owned(),
        })?;
        let mut files: Vec<FetchedFile> = Vec::new();
        for (name, file) in newest.files.iter().filter(|(name, _)| *name != MANIFEST) {
            files.extend(self.write(name, file, &mut report).await?);
        }
        let manifest = self.write(MANIFEST, manifest, &mut report).await?;
        let dir = self.dir.clone();
        let next = newest.clone();
        // Nothing is replaced before everything is there: the files may belong to an index that is searched, or that
        // stays if this fails.
        blocking(move || {
            held::announce(&dir, &next)?;
            put_in_place(&files)?;
            put_in_place(manifest.as_slice())
        })
        .await?;
        self.hold(newest).await?;
        self.compares = false;
        Ok(report)
    }

    /// Writes a file. The missing end of a log is appended; any other file is written beside the old one, to be
    /// renamed. `None` if the directory has the file.
    async fn write(
        &self,
        name: &str,
        file: &PublishedFile,
        report: &mut PullReport,
    ) -> Result<Option<FetchedFile>, SnapshotError> {
        let path = self.dir.join(name);
        let held = self.held.as_ref().and_then(|held| held.files.get(name));
        let held = held.filter(|held| !self.compares && is_there(&path, held));
        if held == Some(file) {
            return Ok(None);
        }
        let begun = held.filter(|held| name.starts_with(DELTA) && !held.parts.is_empty() && held.begins(file));
        let begun = begun.cloned();
        let whole = file.clone();
        let open = move || {
            let opened = match &begun {
                Some(begun) => FileFetch::append(&path, begun, &whole).map(Some),
                None => FileFetch::replace(&path, &whole),
            };
            opened.map_err(SnapshotError::file("write", &path))
        };
        let Some(mut fetch) = blocking(open).await? else { return Ok(None) };
        let missing = file.parts.iter().skip(fetch.kept).cloned().collect::<Vec<_>>();
        let missing = missing.into_iter().map(|part| {
            let remote = self.remote.clone();
            async move { remote.part(&part).await }
        });
        let mut fetched = stream::iter(missing).buffered(AT_ONCE);
        while let Some(bytes) = fetched.try_next().await? {
            report.parts += 1;
            report.bytes += bytes.len() as u64;
            fetch = blocking(move || {
                fetch.output.write_all(&bytes).map_err(SnapshotError::file("write", &fetch.target))?;
                Ok(fetch)
            })
            .await?;
        }
        blocking(move || {
            let target = fetch.target.clone();
            fetch.finish().map(Some).map_err(SnapshotError::file("write", &target))
        })
        .await
    }

    /// Records that the directory holds `newest`, and removes the files that neither `newest` nor the previous
    /// publication names.
    async fn hold(&mut self, newest: &PublishedIndex) -> Result<(), SnapshotError> {
        let address = self.remote.address.clone();
        let dir = self.dir.clone();
        let before = self.held.replace(newest.clone());
        let newest = newest.clone();
        blocking(move || {
            held::record(&dir, &newest)?;
            // A directory that has fetched a publication may continue from it as the writer.
            Lineage::read(&dir)?.know(&address, &newest)?;
            let named = before.iter().chain([&newest]);
            let needed: HashSet<String> = named.flat_map(|index| index.files.keys().cloned()).collect();
            if let Err(error) = held::remove_unneeded(&dir, &needed) {
                tracing::warn!(dir = %dir.display(), %error, "cannot remove files of an earlier snapshot yet");
            }
            Ok(())
        })
        .await
    }
}
