//! Vector stores and files of a server: a folder that one server owns.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::Context;
use waymark_agent::{FairPermit, FairSemaphore, Search};
use waymark_models::file_lock;
use waymark_runtime::embedding::TextEmbedder;

use super::ingestion;
use super::own_documents::DocumentRoom;
use super::readings::FileReadings;
use super::record::StoreRecord;
use super::store::VectorStore;
use crate::api::auth::Caller;
use crate::api::blocking::run_blocking;
use crate::api::error::ApiError;
use crate::api::fair_slots::{FairSlot, FairSlots};
use crate::api::files::registry::{UploadedFiles, may_store, unwritable, with_remedy};
use crate::api::library::Library;
use crate::api::record_folder;
use crate::api::state::AppState;
use crate::config::FileLimits;
use crate::keys::KeyOwner;
use crate::store::Owner;

/// Maximum number of vector stores of all keys together. Each open index has threads and mapped files of its own.
const MAX_STORES: usize = 256;

/// Maximum number of files that wait to be indexed.
const MAX_WAITING: usize = 1024;

/// Name of the room for texts, for error messages.
const TEXTS: &str = "KiB of texts in vector stores";

/// Name of the lock file.
const LOCK: &str = ".lock";

/// Opens the indexes of vector stores.
pub trait OpenIndex: std::fmt::Debug + Send + Sync {
    /// Embedder of new indexes.
    fn embedder(&self) -> Arc<dyn TextEmbedder>;

    /// Opens the index in `dir`.
    ///
    /// # Errors
    /// If the index cannot be opened.
    fn open(&self, dir: &Path) -> anyhow::Result<IndexParts>;
}

/// Open index of a vector store.
#[derive(Debug)]
pub struct IndexParts {
    /// Searches in the index.
    pub searcher: Arc<dyn Search>,
    /// Documents of the index.
    pub library: Library,
}

/// Vector stores and uploaded files of a server.
#[derive(Debug)]
pub struct VectorStores {
    pub(crate) files: UploadedFiles,
    pub(crate) limits: FileLimits,
    pub(super) opener: Arc<dyn OpenIndex>,
    /// Places for files that wait to be indexed.
    waiting: FairSlots,
    /// Place for the one store whose files are being indexed. Owners take it in turn.
    indexing: Arc<FairSemaphore>,
    pub(super) readings: FileReadings,
    /// Held while room for texts is checked and taken.
    taking_room: Mutex<()>,
    folder: PathBuf,
    stores: RwLock<BTreeMap<String, Arc<VectorStore>>>,
    /// Held as long as the folder is in use.
    _lock: File,
}

impl VectorStores {
    /// Opens the vector stores in `folder`, creating it if it is missing. Their indexes are opened later.
    ///
    /// # Errors
    /// If another process uses the folder, or it cannot be read or written.
    pub fn open(folder: &Path, limits: FileLimits, opener: Arc<dyn OpenIndex>) -> anyhow::Result<VectorStores> {
        let of_folder = || format!("--vector-stores {}", folder.display());
        let stores_folder = folder.join("stores");
        fs::create_dir_all(&stores_folder).with_context(of_folder)?;
        let lock = file_lock::try_take(&folder.join(LOCK)).with_context(of_folder)?;
        let lock = lock.with_context(|| format!("{}: another process uses this folder", of_folder()))?;
        let files = UploadedFiles::open(folder.join("files"), limits.storage).with_context(of_folder)?;
        record_folder::remove_unfinished(&stores_folder).with_context(of_folder)?;
        let mut stores = BTreeMap::new();
        for entry in fs::read_dir(&stores_folder).with_context(of_folder)? {
            let path = entry.with_context(of_folder)?.path();
            let id = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            match VectorStore::read(path.clone(), id.clone())? {
                Some(store) => drop(stores.insert(id, Arc::new(store))),
                // An index that was built while its store was deleted.
                None => fs::remove_dir_all(&path).with_context(of_folder)?,
            }
        }
        let waiting = FairSlots::new(MAX_WAITING, "files that wait to be indexed");
        let stores = RwLock::new(stores);
        Ok(VectorStores {
            files,
            limits,
            opener,
            waiting,
            // Each task that waits has a place for its files or belongs to a store, and both are bounded.
            indexing: FairSemaphore::new(1, usize::MAX),
            readings: FileReadings::default(),
            taking_room: Mutex::default(),
            folder: stores_folder,
            stores,
            _lock: lock,
        })
    }

    /// Opens the indexes of all stores, and continues with the files that wait to be indexed.
    pub(crate) fn resume(&self, state: &AppState) {
        let known: Vec<Owner> = match state.keys.required() {
            true => state.keys.list().iter().map(|(_, entry)| Some(entry.digest.owner())).collect(),
            false => vec![None],
        };
        for (owner, (stores, files)) in self.holdings_of_others(&known) {
            let owner = owner.map_or_else(|| "null".to_owned(), |owner| owner.to_string());
            tracing::warn!(owner, stores, files, "vector stores and files belong to no known API key");
        }
        ingestion::resume(state, self);
    }

    /// Returns the numbers of vector stores and of files of each owner that is not `known`.
    fn holdings_of_others(&self, known: &[Owner]) -> HashMap<Owner, (usize, usize)> {
        let mut holdings = HashMap::<Owner, (usize, usize)>::new();
        for store in self.all() {
            holdings.entry(store.owner).or_default().0 += 1;
        }
        for owner in self.files.owners() {
            holdings.entry(owner).or_default().1 += 1;
        }
        holdings.retain(|owner, _| !known.contains(owner));
        holdings
    }

    /// Returns the stores of all keys.
    pub(super) fn all(&self) -> Vec<Arc<VectorStore>> {
        self.stores.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the stores of `owner`, oldest first.
    pub(crate) fn of(&self, owner: Owner) -> Vec<Arc<VectorStore>> {
        let mut own = self.all();
        own.retain(|store| store.owner == owner);
        own
    }

    /// Returns the store `id` of `owner`.
    pub(crate) fn get(&self, owner: Owner, id: &str) -> Option<Arc<VectorStore>> {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(id).filter(|store| store.owner == owner).cloned()
    }

    /// Waits for the turn of `owner` to index files, which lasts until the permit is dropped.
    ///
    /// # Errors
    /// Never in practice.
    pub(super) async fn indexing_turn(&self, owner: Owner) -> Result<FairPermit, ApiError> {
        let turn = self.indexing.wait(tenant(owner)).ok_or_else(ApiError::bug)?;
        turn.await.map_err(|_| ApiError::bug())
    }

    /// Returns `true` if a key other than `owner` waits for its turn to index files.
    pub(super) fn others_wait(&self, owner: Owner) -> bool {
        self.indexing.others_wait(tenant(owner))
    }

    /// Returns the size of the texts in the indexes of all stores, in bytes. May read the indexes.
    pub(super) fn usage_bytes(&self) -> u64 {
        self.all().iter().map(|store| store.usage_bytes()).sum()
    }

    /// Returns the size of the texts in the indexes of the stores of `owner`, in bytes. May read the indexes.
    pub(super) fn usage_bytes_of(&self, owner: Owner) -> u64 {
        self.of(owner).iter().map(|store| store.usage_bytes()).sum()
    }

    /// Checks that `caller` may fill its stores further.
    ///
    /// # Errors
    /// 429 if the caller's key already holds its share, 503 if there is no room.
    pub(super) async fn check_room(self: &Arc<Self>, caller: &Caller) -> Result<(), ApiError> {
        let stores = Arc::clone(self);
        let caller = caller.clone();
        run_blocking(move || stores.may_add(&caller, 0)).await
    }

    /// Takes room for documents of `bytes` that `caller` adds to the index of its store `id`. `None` if there is no such
    /// store. May read the indexes.
    ///
    /// # Errors
    /// 429 if the caller's key would hold more than its share, 503 if there is no room.
    pub(crate) fn take_room(&self, caller: &Caller, id: &str, bytes: u64) -> Result<Option<DocumentRoom>, ApiError> {
        let Some(store) = self.get(caller.owner, id) else { return Ok(None) };
        // Documents that are added at the same time could take the same room.
        let _taking = self.taking_room.lock().unwrap_or_else(PoisonError::into_inner);
        self.may_add(caller, bytes)?;
        Ok(Some(store.documents.take_room(bytes)))
    }

    /// Checks that `caller` may add texts of `bytes` to its stores.
    fn may_add(&self, caller: &Caller, bytes: u64) -> Result<(), ApiError> {
        let own = self.usage_bytes_of(caller.owner).saturating_add(bytes);
        may_store(caller, own, self.usage_bytes().saturating_add(bytes), self.limits.storage, TEXTS)
    }

    /// Takes places for the files of one request, which wait to be indexed.
    ///
    /// # Errors
    /// 429 if the caller has its maximum of such requests or its share of the places, 503 if too many files wait.
    pub(super) fn take_places(&self, caller: &Caller, files: usize) -> Result<FairSlot, ApiError> {
        self.waiting.take_together(caller, files, "requests whose files wait to be indexed")
    }

    /// Creates a store.
    ///
    /// # Errors
    /// 429 if the caller's key already holds its share, 503 if there is no room or the disk fails.
    pub(super) fn create(
        &self,
        caller: &Caller,
        id: String,
        record: StoreRecord,
    ) -> Result<Arc<VectorStore>, ApiError> {
        // Held until the store is in the list: stores that are created at the same time could share the last place.
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        let own = stores.values().filter(|store| store.owner == caller.owner).count();
        caller.may_take(own, stores.len(), MAX_STORES, "vector stores").map_err(with_remedy)?;
        let store = Arc::new(VectorStore::create(&self.folder, id.clone(), record).map_err(unwritable)?);
        stores.insert(id, Arc::clone(&store));
        Ok(store)
    }

    /// Deletes a store with its index. The files that it was filled from stay. Returns `false` if the store was deleted
    /// before.
    ///
    /// # Errors
    /// 503 if the disk fails.
    pub(super) fn delete(&self, store: &VectorStore) -> Result<bool, ApiError> {
        let is_deleted = store.delete().map_err(unwritable)?;
        self.stores.write().unwrap_or_else(PoisonError::into_inner).remove(&store.id);
        Ok(is_deleted)
    }
}

/// Tenant that an owner counts as when keys take turns to index files.
fn tenant(owner: Owner) -> u64 {
    owner.map_or(0, KeyOwner::tenant)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use anyhow::bail;
    use waymark_runtime::embedding::Embedding;

    use super::*;
    use crate::keys::Secret;

    /// Opener for stores without documents.
    #[derive(Debug)]
    struct NoIndexes;

    impl OpenIndex for NoIndexes {
        fn embedder(&self) -> Arc<dyn TextEmbedder> {
            Arc::new(Embedding::Mock)
        }

        fn open(&self, dir: &Path) -> anyhow::Result<IndexParts> {
            bail!("no index in {}", dir.display())
        }
    }

    #[test]
    fn what_belongs_to_no_known_key_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let stores = VectorStores::open(folder.path(), FileLimits::default(), Arc::new(NoIndexes)).unwrap();
        let owners = [Some(Secret::generate().digest().owner()), Some(Secret::generate().digest().owner()), None];
        for (number, owner) in owners.into_iter().enumerate() {
            let caller = Caller { owner, ..Caller::default() };
            let owner = owner.map(|owner| owner.to_string());
            let metadata = BTreeMap::new();
            let record = StoreRecord { owner, created_at: 1, name: None, description: None, metadata };
            stores.create(&caller, format!("vs_{number}"), record).unwrap();
        }
        let left = HashMap::from([(owners[1], (1, 0)), (None, (1, 0))]);
        assert_eq!(stores.holdings_of_others(&owners[..1]), left);
        assert!(stores.holdings_of_others(&owners).is_empty());
    }
}
