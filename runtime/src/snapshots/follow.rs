//! Replicas of a server: the directory of an index whose snapshots are published elsewhere, kept up to date.

use std::path::{Path, PathBuf};
use std::time::Duration;

use waymark_index::MANIFEST;

use super::remote::RemoteIndex;
use super::replica::Replica;
use super::{SnapshotError, SnapshotLocation};

/// Maximum pause between two checks after failures.
const SELDOM: Duration = Duration::from_secs(30);

/// Pause between two checks for the first snapshot that another process fetches.
const FIRST: Duration = Duration::from_millis(200);

/// Folder of the replicas in the cache.
const REPLICAS: &str = "replicas";

/// Fetches the newest snapshot from `location` into the folder `cache`, and follows it as long as the async runtime
/// runs. Returns the directory of the index. If the object store cannot be reached, an earlier snapshot is served.
/// While another process fetches the first snapshot into the same cache, waits for that snapshot.
///
/// # Errors
/// If neither the object store nor the cache has a snapshot, or if the folder cannot be used.
pub async fn local_copy(
    location: &SnapshotLocation,
    cache: &Path,
    interval: Duration,
) -> Result<PathBuf, SnapshotError> {
    let dir = replica_dir(location, cache);
    let remote = RemoteIndex::open(location)?;
    let mut replica = open_or_share(&dir, &remote).await?;
    if let Some(replica) = &mut replica {
        match replica.refresh().await {
            Ok(report) => tracing::info!(place = %location, ?report, "fetched the newest snapshot"),
            Err(error) if replica.holds_index() => {
                tracing::warn!(place = %location, %error, "cannot fetch the newest snapshot: serving an earlier one");
            }
            Err(error) => return Err(error),
        }
    }
    tokio::spawn(follow(replica, dir.clone(), remote, interval));
    Ok(dir)
}

/// Returns the directory of the replica of `location` in the folder `cache`.
pub(super) fn replica_dir(location: &SnapshotLocation, cache: &Path) -> PathBuf {
    let hash = blake3::hash(location.to_string().as_bytes()).to_hex();
    cache.join(REPLICAS).join(format!("{}-{}", location.name(), &hash[..12]))
}

/// Opens a replica in the cache. `None` if another process fetches into the directory, for this one too: this one takes
/// over when the other ends. Waits until the directory holds a snapshot then.
async fn open_or_share(dir: &Path, remote: &RemoteIndex) -> Result<Option<Replica>, SnapshotError> {
    let mut has_told = false;
    loop {
        match open(dir, remote) {
            Err(SnapshotError::InUse(_)) if dir.join(MANIFEST).exists() => return Ok(None),
            Err(SnapshotError::InUse(_)) => {}
            opened => return opened.map(Some),
        }
        if !has_told {
            tracing::info!(dir = %dir.display(), "another process fetches the first snapshot: waiting for it");
            has_told = true;
        }
        tokio::time::sleep(FIRST).await;
    }
}

/// Opens a replica in the cache. An index in the cache is never changed locally, so that one that differs from its
/// record is left from a failure.
fn open(dir: &Path, remote: &RemoteIndex) -> Result<Replica, SnapshotError> {
    Replica::open(dir, remote.clone()).map(|replica| replica.replacing(true))
}

/// Checks for new snapshots forever.
async fn follow(mut replica: Option<Replica>, dir: PathBuf, remote: RemoteIndex, interval: Duration) {
    let mut wait = interval;
    // The last logged error: the same failure is not logged at every attempt.
    let mut told = None;
    loop {
        tokio::time::sleep(wait).await;
        if replica.is_none() {
            replica = open(&dir, &remote).ok();
        }
        let Some(replica) = &mut replica else { continue };
        match replica.refresh().await {
            Ok(report) => {
                wait = interval;
                told = None;
                if let Some(report) = report {
                    let super::PullReport { number, snapshot, parts, bytes } = report;
                    tracing::info!(number, snapshot, parts, bytes, "fetched a new snapshot");
                }
            }
            Err(error) => {
                wait = wait.saturating_mul(2).min(SELDOM.max(interval));
                let message = error.to_string();
                if told.as_ref() != Some(&message) {
                    tracing::warn!(%error, "cannot fetch the newest snapshot: still searching the previous one");
                    told = Some(message);
                }
            }
        }
    }
}
