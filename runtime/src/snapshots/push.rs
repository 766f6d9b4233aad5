//! The writer: publishes the snapshot of a directory.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use waymark_index::{MANIFEST, Manifest};

use super::lineage::Lineage;
use super::published::{PART, Part, PublishedFile, PublishedIndex};
use super::remote::RemoteIndex;
use super::{SnapshotError, blocking, sweep};

/// Number of parts that are read and sent at once.
pub(super) const AT_ONCE: usize = 4;

/// Number of attempts to read a snapshot that commits replace meanwhile.
const ATTEMPTS: usize = 5;

/// Options for [`push`].
#[derive(Debug, Clone, Copy)]
pub struct PushOptions {
    /// Number of publications to keep, the new one included.
    pub keep: usize,
    /// If `true`, replaces the publication of another writer.
    pub replace: bool,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self { keep: 8, replace: false }
    }
}

/// Result of [`push`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReport {
    /// Number of the publication.
    pub number: u64,
    /// Number of the snapshot in its index.
    pub snapshot: u64,
    /// If `false`, the snapshot had been published before.
    pub published: bool,
    /// Number of parts sent.
    pub parts: u64,
    /// Bytes sent: parts and manifest.
    pub bytes: u64,
}

/// Snapshot of a directory, before it is published.
struct LocalSnapshot {
    manifest: Arc<Manifest>,
    json: Vec<u8>,
}

/// Part that was sent, or is there already.
struct SentPart {
    part: Part,
    /// Bytes sent; 0 if the part is there already.
    bytes: u64,
}

/// Publishes the current snapshot of the index in `dir`. Sends only parts that the last publication does not have, after
/// a check of their files.
///
/// # Errors
/// [`SnapshotError::OtherWriter`] if another directory has published meanwhile; and if the index is damaged or cannot
/// be read, or the object store fails. Nothing is published then, unless the error follows the creation of the manifest.
pub async fn push(dir: &Path, remote: &RemoteIndex, options: PushOptions) -> Result<PushReport, SnapshotError> {
    let mut lineage = Lineage::read(dir)?;
    let newest = remote.newest().await?;
    let own = match &newest {
        Some(newest) => lineage.has(&remote.address, newest)?,
        None => true,
    };
    if let (Some(newest), false, false) = (&newest, own, options.replace) {
        return Err(SnapshotError::OtherWriter { number: newest.number, place: remote.address.clone() });
    }
    // Files of another writer may have the same names, but other contents.
    let base = newest.as_ref().filter(|_| own);
    if let Some(base) = base {
        // A process that was killed may not have recorded its publication, and the next attempt replaces the record of
        // the attempt by which it is recognized.
        lineage.know(&remote.address, base)?;
    }
    for _ in 0..ATTEMPTS {
        match attempt(dir, remote, base, newest.as_ref(), &mut lineage).await {
            Ok(report) => {
                if report.published {
                    sweep::after(remote, report.number, options.keep).await;
                }
                return Ok(report);
            }
            // A commit has replaced the snapshot, and removed its files.
            Err(error) if error.is_missing_file() => {}
            Err(error) => return Err(error),
        }
    }
    Err(SnapshotError::Restless(dir.to_owned()))
}

async fn attempt(
    dir: &Path,
    remote: &RemoteIndex,
    base: Option<&PublishedIndex>,
    newest: Option<&PublishedIndex>,
    lineage: &mut Lineage,
) -> Result<PushReport, SnapshotError> {
    let LocalSnapshot { manifest, json } = read(dir.to_owned()).await?;
    let snapshot = manifest.snapshot;
    let own = PublishedFile { parts: vec![Part::of(&json)] };
    if let Some(base) = base.filter(|base| base.files.get(MANIFEST) == Some(&own)) {
        return Ok(PushReport { number: base.number, snapshot, published: false, parts: 0, bytes: 0 });
    }
    let before = match base {
        Some(base) => published_manifest(remote, base).await,
        None => None,
    };
    let there = base.map(PublishedIndex::hashes).unwrap_or_default();
    let mut sent = Vec::new();
    let mut files = BTreeMap::new();
    for (name, bytes) in local_files(&manifest) {
        let is_known = before.as_ref().is_some_and(|before| is_unchanged(&name, &manifest, before));
        let earlier = base.filter(|_| is_known).and_then(|base| base.files.get(&name));
        let kept = kept_parts(&dir.join(&name), bytes, earlier).await?;
        check(dir, &manifest, &name, bytes, &kept).await?;
        let new = send(&dir.join(&name), kept.bytes(), bytes, &there, remote).await?;
        let mut parts = kept.parts;
        parts.extend(new.iter().map(|sent| sent.part.clone()));
        sent.extend(new.into_iter().map(|sent| sent.bytes));
        files.insert(name, PublishedFile { parts });
    }
    sent.push(json.len() as u64);
    if let [part] = own.parts.as_slice() {
        remote.write(part, json).await?;
    }
    files.insert(MANIFEST.to_owned(), own);
    let number = newest.map_or(1, |newest| newest.number + 1);
    let published = PublishedIndex::new(number, snapshot, files);
    let published_json = published.to_json()?;
    let manifest_bytes = published_json.len() as u64;
    // Recorded first: a process that is killed after the next step must recognize its own publication.
    lineage.attempt(&remote.address, &published_json)?;
    if !remote.create(number, published_json).await? {
        return Err(SnapshotError::OtherWriter { number, place: remote.address.clone() });
    }
    lineage.know(&remote.address, &published)?;
    let parts = sent.iter().filter(|bytes| **bytes > 0).count() as u64;
    let bytes = sent.iter().sum::<u64>() + manifest_bytes;
    Ok(PushReport { number, snapshot, published: true, parts, bytes })
}

async fn read(dir: PathBuf) -> Result<LocalSnapshot, SnapshotError> {
    blocking(move || {
        // Checks the format and the checksum, which the bytes alone do not tell.
        Manifest::read(&dir)?;
        let path = dir.join(MANIFEST);
        let json = fs::read(&path).map_err(SnapshotError::file("read", &path))?;
        let damaged = |error: serde_json::Error| SnapshotError::Damaged {
            name: path.display().to_string(),
            reason: error.to_string(),
        };
        let manifest: Manifest = serde_json::from_slice(&json).map_err(damaged)?;
        Ok(LocalSnapshot { manifest: Arc::new(manifest), json })
    })
    .await
}

/// Reads the manifest of the index that `base` publishes. `None` if it cannot be read; all files are then read again.
async fn published_manifest(remote: &RemoteIndex, base: &PublishedIndex) -> Option<Manifest> {
    let [part] = base.files.get(MANIFEST)?.parts.as_slice() else { return None };
    match remote.part(part).await {
        Ok(json) => serde_json::from_slice(&json).ok(),
        Err(error) => {
            tracing::warn!(%error, place = remote.address, "cannot read the last manifest: comparing all files");
            None
        }
    }
}

/// Returns `true` if the file `name` is that of the manifest `before` or, if it is a log, continues that one. An index
/// that was built anew in the directory may have other files with the same names, sizes and ends.
fn is_unchanged(name: &str, now: &Manifest, before: &Manifest) -> bool {
    match now.files.get(name) {
        Some(sum) => before.files.get(name) == Some(sum),
        // A log has no checksum. It continues the earlier one if both belong to the same base snapshot.
        None => now.files == before.files,
    }
}

/// Lists the files of a snapshot with their sizes, without its manifest.
fn local_files(manifest: &Manifest) -> Vec<(String, u64)> {
    let mut files: Vec<_> = manifest.files.iter().map(|(name, sum)| (name.clone(), sum.bytes)).collect();
    // An empty log has no file.
    files.extend(manifest.delta.iter().filter(|delta| delta.bytes > 0).map(|delta| (delta.log.clone(), delta.bytes)));
    files
}

/// Returns the parts of the earlier file with which the file of `bytes` bytes at `path` begins. `earlier` is `None` for
/// a file that [is not known](is_unchanged) to begin with them. Files are never rewritten; only logs grow.
async fn kept_parts(path: &Path, bytes: u64, earlier: Option<&PublishedFile>) -> Result<PublishedFile, SnapshotError> {
    let Some(earlier) = earlier.filter(|earlier| earlier.bytes() <= bytes && !earlier.is_fragmented()) else {
        return Ok(PublishedFile::default());
    };
    let Some(last) = earlier.parts.last() else { return Ok(PublishedFile::default()) };
    // Only the last part is compared, in case the directory was replaced by hand.
    let found = read_range(path.to_owned(), earlier.bytes() - last.bytes, last.bytes).await?;
    Ok(if Part::of(&found) == *last { earlier.clone() } else { PublishedFile::default() })
}

/// Checks the file `name` of `bytes` bytes by the manifest of the index, unless all its parts are kept. Damaged bytes
/// would get a new hash, and so pass for good ones at every replica.
async fn check(
    dir: &Path,
    manifest: &Arc<Manifest>,
    name: &str,
    bytes: u64,
    kept: &PublishedFile,
) -> Result<(), SnapshotError> {
    let known = kept.bytes();
    if known == bytes {
        return Ok(());
    }
    let dir = dir.to_owned();
    let manifest = Arc::clone(manifest);
    let name = name.to_owned();
    blocking(move || manifest.check_file(&dir, &name, known).map_err(SnapshotError::from)).await
}

/// Sends the bytes `from..to` of a file in parts.
async fn send(
    path: &Path,
    from: u64,
    to: u64,
    there: &HashSet<&str>,
    remote: &RemoteIndex,
) -> Result<Vec<SentPart>, SnapshotError> {
    let ranges = (0..).map(|index| from + index * PART).take_while(|start| *start < to);
    let sending = ranges.map(|start| async move {
        let bytes = read_range(path.to_owned(), start, PART.min(to - start)).await?;
        let part = Part::of(&bytes);
        if there.contains(part.hash.as_str()) {
            return Ok(SentPart { part, bytes: 0 });
        }
        let length = part.bytes;
        remote.write(&part, bytes).await?;
        Ok(SentPart { part, bytes: length })
    });
    stream::iter(sending).buffered(AT_ONCE).try_collect().await
}

async fn read_range(path: PathBuf, from: u64, bytes: u64) -> Result<Vec<u8>, SnapshotError> {
    blocking(move || {
        let read = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(from))?;
            let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
            file.read_exact(&mut content)?;
            Ok(content)
        };
        read().map_err(SnapshotError::file("read", &path))
    })
    .await
}
