//! Removal of manifests beyond those that are kept, and of parts that no kept manifest names.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::SnapshotError;
use super::remote::{PARTS, RemoteIndex, manifest_path};

/// Number of publications between two listings of all parts, because there may be thousands of parts.
const BETWEEN_SWEEPS: u64 = 16;

/// Age from which a part may be removed. A younger one may belong to a publication that another writer is preparing.
const AGE: Duration = Duration::from_secs(3600);

/// Removes what is not needed after the publication `number`. A failure is logged: the next sweep tries again.
pub(super) async fn after(remote: &RemoteIndex, number: u64, keep: usize) {
    if let Err(error) = sweep(remote, number, keep, AGE).await {
        tracing::warn!(%error, place = remote.address, "cannot remove earlier snapshots yet");
    }
}

pub(super) async fn sweep(remote: &RemoteIndex, number: u64, keep: usize, age: Duration) -> Result<(), SnapshotError> {
    let numbers = remote.numbers().await?;
    let (gone, kept) = numbers.split_at(numbers.len().saturating_sub(keep.max(1)));
    for &number in gone {
        remote.store.delete(&manifest_path(number)).await?;
    }
    if !number.is_multiple_of(BETWEEN_SWEEPS) {
        return Ok(());
    }
    let mut needed = HashSet::new();
    for &number in kept {
        if let Some(manifest) = remote.read(number).await? {
            needed.extend(manifest.parts().map(|part| part.hash.clone()));
        }
    }
    let now = SystemTime::now();
    let mut parts = remote.store.list(Some(&Path::from(PARTS)));
    let mut surplus = Vec::new();
    while let Some(part) = parts.try_next().await? {
        let is_needed = part.location.filename().is_some_and(|hash| needed.contains(hash));
        let is_old = now.duration_since(SystemTime::from(part.last_modified)).is_ok_and(|since| since >= age);
        if !is_needed && is_old {
            surplus.push(Ok(part.location));
        }
    }
    remote.store.delete_stream(futures::stream::iter(surplus).boxed()).try_collect::<Vec<_>>().await?;
    Ok(())
}
