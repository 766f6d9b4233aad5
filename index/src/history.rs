//! Kept earlier snapshots. Their manifests are in the folder `history` of the index; the files that these name stay in
//! place.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::IndexError;
use crate::folder::{self, LockedFolder};
use crate::layout::{HISTORY, MANIFEST, delta_name};
use crate::manifest::{DeltaInfo, FORMAT, Manifest, Verification};

/// Kept or current snapshot of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Number of the snapshot.
    pub number: u64,
    /// Number of passages.
    pub passages: u64,
    /// Time at which the snapshot was published. `None` if the file system does not tell.
    pub published: Option<SystemTime>,
    /// If `true`, searches use this snapshot.
    pub current: bool,
}

/// Manifests of the kept snapshots.
#[derive(Debug, Default)]
pub(crate) struct KeptManifests {
    /// Manifests that could be read.
    pub(crate) readable: Vec<Manifest>,
    /// If `true`, there is a manifest that could not be read, so the files that it names are not known.
    pub(crate) incomplete: bool,
}

/// Lists the current and the kept snapshots of the index in `dir`, newest first.
///
/// # Errors
/// If there is no index, or its folder cannot be read.
pub fn snapshots(dir: &Path) -> Result<Vec<SnapshotSummary>, IndexError> {
    let current = Manifest::read(dir)?;
    let summary = |manifest: &Manifest, current| SnapshotSummary {
        number: manifest.snapshot,
        passages: manifest.passages,
        published: published(dir, manifest.snapshot),
        current,
    };
    let mut all = vec![summary(&current, true)];
    for manifest in manifests(dir)?.readable.iter().filter(|manifest| manifest.snapshot != current.snapshot) {
        all.push(summary(manifest, false));
    }
    all.sort_by_key(|snapshot| Reverse(snapshot.number));
    Ok(all)
}

/// Publishes the documents of a kept snapshot again, as a new snapshot. Returns its manifest.
///
/// # Errors
/// If the snapshot is not kept, another process is writing, a file is damaged, or the disk fails. The index is
/// unchanged then.
pub fn restore_snapshot(dir: &Path, number: u64, keep: usize) -> Result<Manifest, IndexError> {
    Manifest::read(dir)?;
    let writing = LockedFolder::lock(dir)?;
    let current = Manifest::read(dir)?;
    let old = find(dir, number)?;
    old.verify(dir, Verification::Checksums)?;
    let snapshot = writing.next_snapshot(Some(current.snapshot))?;
    let delta = match &old.delta {
        Some(delta) => Some(forked(dir, delta, &old, snapshot)?),
        // The base snapshot keeps its folder, so the manifest names an empty log.
        None => Some(DeltaInfo {
            base: old.snapshot,
            passages: old.passages,
            graph: old.graph.clone(),
            log: delta_name(snapshot),
            bytes: 0,
            commits: 0,
            changes: 0,
        }),
    };
    let manifest = Manifest { format: FORMAT, snapshot, delta, ..old }.seal();
    // Keeps at least the snapshot that is being replaced, so that a restore can be undone.
    writing.publish(&manifest, keep.max(1))?;
    writing.sweep(Some(&manifest))?;
    Ok(manifest)
}

/// Copies the part of a log that belongs to a snapshot, so that later commits do not overwrite what newer snapshots
/// need.
fn forked(dir: &Path, delta: &DeltaInfo, old: &Manifest, snapshot: u64) -> Result<DeltaInfo, IndexError> {
    // An empty log has no file: nothing was committed since the snapshot was restored.
    if delta.bytes == 0 {
        return Ok(DeltaInfo { log: delta_name(snapshot), ..delta.clone() });
    }
    let from = dir.join(&delta.log);
    // Reads every record as a check.
    crate::delta::log::read(&from, delta.bytes, old.embedder.dims)?;
    let log = delta_name(snapshot);
    let to = dir.join(&log);
    let copy = || {
        let mut part = io::Read::take(File::open(&from)?, delta.bytes);
        let mut file = File::create(&to)?;
        io::copy(&mut part, &mut file)?;
        file.sync_all()
    };
    copy().map_err(IndexError::io("copy", &from))?;
    folder::sync_folder(dir)?;
    Ok(DeltaInfo { log, ..delta.clone() })
}

/// Returns the manifest of a kept snapshot or of the current one.
pub(crate) fn find(dir: &Path, number: u64) -> Result<Manifest, IndexError> {
    let current = Manifest::read(dir)?;
    if current.snapshot == number {
        return Ok(current);
    }
    let kept = manifests(dir)?.readable.into_iter().find(|manifest| manifest.snapshot == number);
    kept.ok_or_else(|| IndexError::NoSnapshot { dir: dir.to_owned(), number })
}

/// Returns the time at which a kept snapshot or the current one was published. `None` if the file system does not tell.
pub(crate) fn published(dir: &Path, number: u64) -> Option<SystemTime> {
    // The manifest of the current snapshot is not kept yet.
    let manifests = [path(dir, number), dir.join(MANIFEST)];
    manifests.iter().find_map(|manifest| fs::metadata(manifest).and_then(|about| about.modified()).ok())
}

/// Reads the kept manifests. Skips those that cannot be read, with a warning.
pub(crate) fn manifests(dir: &Path) -> Result<KeptManifests, IndexError> {
    let mut kept = KeptManifests::default();
    for number in numbers(dir)? {
        let path = path(dir, number);
        let read = fs::read(&path).map_err(IndexError::io("read", &path));
        match read.and_then(|json| Manifest::parse(dir, &path, &json)) {
            Ok(manifest) => kept.readable.push(manifest),
            Err(error) => {
                kept.incomplete = true;
                tracing::warn!(%error, "cannot read the manifest of a kept snapshot");
            }
        }
    }
    Ok(kept)
}

/// Keeps the current manifest, and returns its number. A link suffices, because the next manifest is a new file. `None`
/// if there is no readable manifest.
pub(crate) fn keep(dir: &Path) -> Result<Option<u64>, IndexError> {
    let Ok(current) = Manifest::read(dir) else { return Ok(None) };
    let folder = dir.join(HISTORY);
    fs::create_dir_all(&folder).map_err(IndexError::io("create", &folder))?;
    let target = path(dir, current.snapshot);
    match fs::hard_link(dir.join(MANIFEST), &target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => keep_own(&dir.join(MANIFEST), &target)?,
        Err(_) => fs::write(&target, current.to_json()).map_err(IndexError::io("write", &target))?,
        Ok(()) => {}
    }
    folder::sync_file(&target)?;
    folder::sync_folder(&folder)?;
    Ok(Some(current.snapshot))
}

/// Replaces a kept manifest with the number of the current one, unless it is the current one. A pull may have put
/// another index into the folder since it was kept.
fn keep_own(manifest: &Path, target: &Path) -> Result<(), IndexError> {
    let json = fs::read(manifest).map_err(IndexError::io("read", manifest))?;
    if fs::read(target).is_ok_and(|kept| kept == json) {
        return Ok(());
    }
    folder::replace_file(&target.with_extension("part"), target, &json)
}

/// Removes all but the last `keep` kept manifests. The last one is that of the `replaced` snapshot, although those of
/// an index that was there before a pull may have larger numbers.
pub(crate) fn prune(dir: &Path, keep: usize, replaced: Option<u64>) -> Result<(), IndexError> {
    let mut numbers = numbers(dir)?;
    numbers.sort_unstable_by_key(|&number| (Some(number) != replaced, Reverse(number)));
    for number in numbers.into_iter().skip(keep) {
        let path = path(dir, number);
        fs::remove_file(&path).map_err(IndexError::io("remove", &path))?;
    }
    Ok(())
}

/// Returns the numbers of the kept snapshots, in no order.
pub(crate) fn numbers(dir: &Path) -> Result<Vec<u64>, IndexError> {
    let folder = dir.join(HISTORY);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let number = |name: &String| name.strip_prefix("manifest-")?.strip_suffix(".json")?.parse().ok();
    Ok(folder::names(&folder)?.iter().filter_map(number).collect())
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(HISTORY).join(format!("manifest-{number}.json"))
}
