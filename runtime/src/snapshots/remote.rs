//! Manifests and parts on an object store.

use std::fmt;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::published::{Part, PublishedIndex};
use super::{SnapshotError, SnapshotLocation};

/// Folder of the manifests.
const MANIFESTS: &str = "manifests";
/// Folder of the parts.
pub(super) const PARTS: &str = "parts";

/// Object store with the snapshots of one index.
#[derive(Clone)]
pub struct RemoteIndex {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Address of the store, for messages and for the record of publications.
    pub(super) address: String,
}

impl fmt::Debug for RemoteIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteIndex").field("address", &self.address).finish_non_exhaustive()
    }
}

impl RemoteIndex {
    /// Opens the object store at `location`.
    ///
    /// # Errors
    /// If its credentials are invalid, or its folder cannot be created.
    pub fn open(location: &SnapshotLocation) -> Result<RemoteIndex, SnapshotError> {
        Ok(RemoteIndex { store: location.open()?, address: location.to_string() })
    }

    /// Returns the numbers of the manifests, in order.
    pub(super) async fn numbers(&self) -> Result<Vec<u64>, SnapshotError> {
        let found: Vec<_> = self.store.list(Some(&Path::from(MANIFESTS))).try_collect().await?;
        let number = |path: &Path| path.filename()?.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u64> = found.iter().filter_map(|object| number(&object.location)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the newest manifest. `None` if nothing was published.
    pub(super) async fn newest(&self) -> Result<Option<PublishedIndex>, SnapshotError> {
        match self.numbers().await?.last() {
            Some(&number) => self.read(number).await,
            None => Ok(None),
        }
    }

    /// Reads the manifest `number`. `None` if there is none.
    pub(super) async fn read(&self, number: u64) -> Result<Option<PublishedIndex>, SnapshotError> {
        let Some(json) = self.manifest(number).await? else { return Ok(None) };
        PublishedIndex::parse(manifest_path(number).as_ref(), &json).map(Some)
    }

    /// Reads the bytes of the manifest `number`. `None` if there is none.
    async fn manifest(&self, number: u64) -> Result<Option<Vec<u8>>, SnapshotError> {
        match self.store.get(&manifest_path(number)).await {
            Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the manifest `number`. Returns `false` if there is another one already.
    pub(super) async fn create(&self, number: u64, json: Vec<u8>) -> Result<bool, SnapshotError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload = PutPayload::from(json.clone());
        match self.store.put_opts(&manifest_path(number), payload, options).await {
            Ok(_) => Ok(true),
            // S3 reports a lost race as a failed precondition. A server error is retried, and the retry fails in the
            // same way if the first request has stored the manifest.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                Ok(self.manifest(number).await?.is_some_and(|stored| stored == json))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a part.
    pub(super) async fn write(&self, part: &Part, bytes: Vec<u8>) -> Result<(), SnapshotError> {
        self.store.put(&part_path(&part.hash), PutPayload::from(bytes)).await?;
        Ok(())
    }

    /// Reads a part and checks its hash.
    pub(super) async fn part(&self, part: &Part) -> Result<Vec<u8>, SnapshotError> {
        let path = part_path(&part.hash);
        let bytes = self.store.get(&path).await?.bytes().await?;
        if Part::of(&bytes) != *part {
            let reason = "its content does not have its hash".to_owned();
            return Err(SnapshotError::Damaged { name: path.to_string(), reason });
        }
        Ok(bytes.to_vec())
    }
}

pub(super) fn manifest_path(number: u64) -> Path {
    // With leading zeros, so that lists of names are in order.
    Path::from(format!("{MANIFESTS}/{number:020}.json"))
}

pub(super) fn part_path(hash: &str) -> Path {
    Path::from(format!("{PARTS}/{hash}"))
}
