//! Vector store: its record, its files and its index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::{Map, Value};

use super::own_documents::OwnDocuments;
use super::record::{AttachedFile, BatchRecord, IndexingStatus, StoreRecord};
use super::removed_files::RemovedFiles;
use crate::api::indexes::OtherIndex;
use crate::api::json_file;
use crate::api::record_folder::{self, ABOUT, UNFINISHED};
use crate::keys::KeyOwner;
use crate::store::Owner;

/// Name of the folder of a store's attached files.
const FILES: &str = "files";
/// Name of the folder of a store's batches of files.
const BATCHES: &str = "batches";
/// Name of the folder of a store's index.
const INDEX: &str = "index";

/// Maximum number of batches that a store remembers. The oldest whose files are all indexed makes room for a new one.
const MAX_BATCHES: usize = 1024;

/// Vector store.
#[derive(Debug)]
pub(crate) struct VectorStore {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    dir: PathBuf,
    record: Mutex<StoreRecord>,
    /// Attached files by ID.
    files: Mutex<BTreeMap<String, AttachedFile>>,
    removed: RemovedFiles,
    /// Batches of files by ID.
    batches: Mutex<BTreeMap<String, BatchRecord>>,
    /// Files that are being indexed now, by ID, with the records that were claimed. They cannot be canceled.
    indexing: Mutex<BTreeMap<String, AttachedFile>>,
    /// Held while a record is written, so the files on disk match those in memory.
    saving: Mutex<()>,
    /// Index of the files. `None` as long as the store has no document.
    index: RwLock<Option<Arc<OtherIndex>>>,
    /// Documents that are no chunks of files.
    pub(super) documents: OwnDocuments,
    /// Held while files are added to the index or removed from it.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// If `true`, a task waits to index the files again.
    pub(super) is_pausing: AtomicBool,
    is_deleted: AtomicBool,
}

impl VectorStore {
    /// Creates the folder of a new store in `folder`.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn create(folder: &Path, id: String, record: StoreRecord) -> io::Result<VectorStore> {
        let part = folder.join(format!("{UNFINISHED}{id}"));
        let dir = folder.join(&id);
        fs::create_dir_all(part.join(FILES))?;
        record_folder::publish(&part, &dir, &record)?;
        Ok(VectorStore::over(dir, id, record, BTreeMap::new(), BTreeMap::new()))
    }

    /// Reads the store in `dir`, and removes what a killed process left of its earlier indexes. `None` if the folder
    /// holds no store.
    ///
    /// # Errors
    /// If a record cannot be read, or a folder cannot be removed.
    pub(super) fn read(dir: PathBuf, id: String) -> io::Result<Option<VectorStore>> {
        let Some(record) = json_file::read::<StoreRecord>(&dir.join(ABOUT))? else { return Ok(None) };
        record_folder::remove_unfinished(&dir)?;
        let files = record_folder::read_all(&dir.join(FILES))?;
        let batches = dir.join(BATCHES);
        let batches = if batches.is_dir() { record_folder::read_all(&batches)? } else { BTreeMap::new() };
        Ok(Some(VectorStore::over(dir, id, record, files, batches)))
    }

    fn over(
        dir: PathBuf,
        id: String,
        record: StoreRecord,
        files: BTreeMap<String, AttachedFile>,
        batches: BTreeMap<String, BatchRecord>,
    ) -> VectorStore {
        let owner = record.owner.as_deref().and_then(KeyOwner::parse);
        VectorStore {
            id,
            owner,
            dir,
            record: Mutex::new(record),
            files: Mutex::new(files),
            removed: RemovedFiles::default(),
            batches: Mutex::new(batches),
            indexing: Mutex::default(),
            saving: Mutex::default(),
            index: RwLock::default(),
            documents: OwnDocuments::default(),
            turn: tokio::sync::Mutex::default(),
            is_pausing: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
        }
    }

    /// Directory of the index.
    pub(super) fn index_dir(&self) -> PathBuf {
        self.dir.join(INDEX)
    }

    /// Returns the record.
    pub(crate) fn record(&self) -> StoreRecord {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the record durably.
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be written. The record is then unchanged.
    pub(super) fn update(&self, change: impl FnOnce(&mut StoreRecord)) -> io::Result<StoreRecord> {
        let _saving = self.begin_saving()?;
        let mut record = self.record();
        change(&mut record);
        json_file::write(&self.dir.join(ABOUT), &record)?;
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record.clone();
        Ok(record)
    }

    /// Returns all attached files, oldest first.
    pub(crate) fn files(&self) -> Vec<(String, AttachedFile)> {
        self.files_where(|_| true)
    }

    /// Returns the attached file `id`.
    pub(crate) fn file(&self, id: &str) -> Option<AttachedFile> {
        self.lock_files().get(id).cloned()
    }

    /// Returns the time at which the file `id` was added, also if it has been removed. `None` if it is not known.
    pub(super) fn added_at(&self, id: &str) -> Option<u64> {
        self.file(id).map(|file| file.created_at).or_else(|| self.removed.created_at(id))
    }

    /// Returns the size of the texts in the index with their metadata, in bytes. May read the index.
    pub(super) fn text_bytes(&self) -> u64 {
        let sum = |(bytes, chunks): (u64, u64), file: &AttachedFile| (bytes + file.bytes, chunks + file.chunks);
        let (bytes, chunks) = self.lock_files().values().fold((0, 0), sum);
        let documents = self.index().map_or(0, |index| self.documents.measure(&index.live().current(), chunks));
        documents.max(bytes)
    }

    /// Returns the room that the texts of the store take: those in the index, and documents that wait for their commit.
    /// May read the index.
    pub(super) fn usage_bytes(&self) -> u64 {
        self.text_bytes() + self.documents.pending()
    }

    /// Returns the files that wait to be indexed, oldest first, without those that are being removed. A deleted store has
    /// none.
    pub(super) fn waiting(&self) -> Vec<(String, AttachedFile)> {
        if self.is_deleted() {
            return Vec::new();
        }
        self.files_where(|file| file.status == IndexingStatus::InProgress && !file.removing)
    }

    /// Returns `true` if the store has the file `id`, and neither the file nor the store is being removed.
    pub(super) fn keeps_file(&self, id: &str) -> bool {
        let is_kept = |file: &AttachedFile| !file.removing;
        !self.is_deleted() && self.lock_files().get(id).is_some_and(is_kept)
    }

    /// Returns `true` if the store was deleted, or is being deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::SeqCst)
    }

    /// Returns some of the files in the order in which they were added. IDs decide between those of one second.
    fn files_where(&self, wanted: impl Fn(&AttachedFile) -> bool) -> Vec<(String, AttachedFile)> {
        let files = self.lock_files();
        let wanted = files.iter().filter(|(_, file)| wanted(file));
        let mut wanted: Vec<_> = wanted.map(|(id, file)| (id.clone(), file.clone())).collect();
        drop(files);
        // The map has them in the order of their IDs, which a stable sort keeps.
        wanted.sort_by_key(|(_, file)| file.created_at);
        wanted
    }

    /// Marks a file as being indexed, so it cannot be canceled until [`end_indexing`](Self::end_indexing), and
    /// writes its record with one more attempt, which is returned. `None` if its record is not `seen` any more, or if
    /// the store was deleted.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn claim(&self, id: &str, seen: &AttachedFile) -> io::Result<Option<AttachedFile>> {
        // A file is either canceled before it is claimed, or not at all.
        let Ok(saving) = self.begin_saving() else { return Ok(None) };
        if self.file(id).as_ref() != Some(seen) {
            return Ok(None);
        }
        let claimed = AttachedFile { attempts: seen.attempts.saturating_add(1), ..seen.clone() };
        // Before the file is read: if that ends the process, the next one must know which file it was.
        self.write_file(&saving, id, claimed.clone())?;
        self.lock_indexing().insert(id.to_owned(), claimed.clone());
        Ok(Some(claimed))
    }

    /// Takes back all marks of [`claim`](Self::claim). Files that were not finished, because the server stops or a
    /// record cannot be written, lose the attempt as well.
    pub(super) fn end_indexing(&self) {
        let claimed = std::mem::take(&mut *self.lock_indexing());
        let Ok(saving) = self.begin_saving() else { return };
        for (id, file) in claimed {
            if self.file(&id).as_ref() != Some(&file) {
                continue;
            }
            let attempts = file.attempts.saturating_sub(1);
            if let Err(error) = self.write_file(&saving, &id, AttachedFile { attempts, ..file }) {
                tracing::warn!(store = self.id, file = id, %error, "cannot write the record of a file");
            }
        }
    }

    /// Writes that the first `indexed` chunks of a claimed file are in the index, and returns its record. The file takes
    /// its whole room of `bytes` from now on. `None` if its record is not `seen` any more, so the file is indexed from its
    /// first chunk on, or if the store was deleted.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn advance(
        &self,
        id: &str,
        seen: &AttachedFile,
        indexed: u64,
        bytes: u64,
    ) -> io::Result<Option<AttachedFile>> {
        let Ok(saving) = self.begin_saving() else { return Ok(None) };
        let Some(current) = self.file(id) else { return Ok(None) };
        let is_seen = current == *seen;
        let sized = AttachedFile { chunks: current.chunks.max(indexed), bytes: current.bytes.max(bytes), ..current };
        if !is_seen {
            self.write_file(&saving, id, sized)?;
            return Ok(None);
        }
        // Attempts that ended with their process did not come as far.
        let advanced = AttachedFile { indexed, attempts: 1, ..sized };
        self.write_file(&saving, id, advanced.clone())?;
        self.lock_indexing().insert(id.to_owned(), advanced.clone());
        Ok(Some(advanced))
    }

    fn lock_indexing(&self) -> MutexGuard<'_, BTreeMap<String, AttachedFile>> {
        self.indexing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the batch `id`.
    pub(super) fn batch(&self, id: &str) -> Option<BatchRecord> {
        self.lock_batches().get(id).cloned()
    }

    /// Returns the files of the batch `id`, oldest first.
    pub(super) fn batch_files(&self, id: &str) -> Vec<(String, AttachedFile)> {
        self.files_where(|file| file.batch.as_deref() == Some(id))
    }

    /// Adds a batch, whose files are added next.
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be written.
    pub(super) fn add_batch(&self, id: &str, record: BatchRecord) -> io::Result<()> {
        let _saving = self.begin_saving()?;
        let running: BTreeSet<String> = self.waiting().into_iter().filter_map(|(_, file)| file.batch).collect();
        let mut known: Vec<String> = self.lock_batches().keys().cloned().collect();
        known.retain(|known| !running.contains(known));
        let surplus = (self.lock_batches().len() + 1).saturating_sub(MAX_BATCHES);
        // IDs begin with the time of their creation.
        for oldest in known.into_iter().take(surplus) {
            json_file::remove(&self.batch_path(&oldest))?;
            self.lock_batches().remove(&oldest);
        }
        fs::create_dir_all(self.dir.join(BATCHES))?;
        self.write_batch(id, record)
    }

    /// Cancels the files of the batch `id` that wait and are not being indexed. They keep the chunks that they had
    /// before. Returns the batch. `None` if there is no such batch.
    ///
    /// # Errors
    /// If the store was deleted or a record cannot be written.
    pub(super) fn cancel_batch(&self, id: &str) -> io::Result<Option<BatchRecord>> {
        let saving = self.begin_saving()?;
        let Some(mut record) = self.batch(id) else { return Ok(None) };
        let indexing = self.lock_indexing().clone();
        for (file, attached) in self.batch_files(id) {
            let is_waiting = attached.status_in_batch() == IndexingStatus::InProgress;
            if is_waiting && indexing.get(&file) != Some(&attached) {
                record.cancelled = true;
                self.write_file(&saving, &file, AttachedFile { status: IndexingStatus::Cancelled, ..attached })?;
            }
        }
        self.write_batch(id, record.clone())?;
        Ok(Some(record))
    }

    fn write_batch(&self, id: &str, record: BatchRecord) -> io::Result<()> {
        json_file::write(&self.batch_path(id), &record)?;
        self.lock_batches().insert(id.to_owned(), record);
        Ok(())
    }

    fn batch_path(&self, id: &str) -> PathBuf {
        self.dir.join(BATCHES).join(format!("{id}.json"))
    }

    fn lock_batches(&self) -> MutexGuard<'_, BTreeMap<String, BatchRecord>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record of a file that is to be indexed. The sizes of an earlier record of the file stay, because its
    /// chunks stay in the index until they are replaced.
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be written.
    pub(super) fn attach_file(&self, id: &str, file: AttachedFile) -> io::Result<()> {
        let saving = self.begin_saving()?;
        let (chunks, bytes) = self.file(id).map_or((0, 0), |earlier| (earlier.chunks, earlier.bytes));
        self.write_file(&saving, id, AttachedFile { chunks, bytes, ..file })
    }

    /// Replaces the attributes of a file; see [`AttachedFile::with_attributes`].
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be written.
    pub(super) fn update_attributes(&self, id: &str, attributes: Map<String, Value>) -> io::Result<()> {
        let saving = self.begin_saving()?;
        match self.file(id) {
            Some(file) => self.write_file(&saving, id, file.with_attributes(attributes)),
            None => Ok(()),
        }
    }

    /// Writes the record `done` of a file that was indexed, or could not be. If the record is not `seen` any more, it
    /// stays and takes over only the sizes of `done`: the file was changed meanwhile and is indexed again. A deleted store
    /// has no records.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn finish_file(&self, id: &str, seen: &AttachedFile, done: AttachedFile) -> io::Result<()> {
        let Ok(saving) = self.begin_saving() else { return Ok(()) };
        let Some(current) = self.file(id) else { return Ok(()) };
        let file = match current == *seen {
            true => done,
            false => AttachedFile { chunks: done.chunks, bytes: done.bytes, ..current },
        };
        self.write_file(&saving, id, file)
    }

    fn write_file(&self, _saving: &MutexGuard<'_, ()>, id: &str, file: AttachedFile) -> io::Result<()> {
        json_file::write(&self.file_path(id), &file)?;
        self.lock_files().insert(id.to_owned(), file);
        Ok(())
    }

    /// Marks a file as being removed, or takes the mark back. Returns its record. `None` if there is no such file. A
    /// mark that cannot be written is logged, and known only to this process.
    ///
    /// # Errors
    /// If the store was deleted.
    pub(super) fn mark_removal(&self, id: &str, removing: bool) -> io::Result<Option<AttachedFile>> {
        let saving = self.begin_saving()?;
        let Some(file) = self.file(id) else { return Ok(None) };
        // If the removal fails, its chunks are indexed from the first on.
        let file = AttachedFile { removing, indexed: 0, ..file };
        // Before it is written: the mark ends a reading of the file, which need not wait for the disk, and a full disk must
        // not keep files from being removed.
        self.lock_files().insert(id.to_owned(), file.clone());
        if let Err(error) = self.write_file(&saving, id, file.clone()) {
            tracing::warn!(store = self.id, file = id, %error, "cannot write the record of a file");
        }
        Ok(Some(file))
    }

    /// Removes the record of a file that is marked as being removed. A file that was added again meanwhile has no mark,
    /// and stays.
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be removed.
    pub(super) fn remove_file(&self, id: &str) -> io::Result<()> {
        let _saving = self.begin_saving()?;
        if let Some(file) = self.file(id).filter(|file| file.removing) {
            json_file::remove(&self.file_path(id))?;
            self.lock_files().remove(id);
            self.removed.add(id, file.created_at);
        }
        Ok(())
    }

    fn file_path(&self, id: &str) -> PathBuf {
        self.dir.join(FILES).join(format!("{id}.json"))
    }

    fn lock_files(&self) -> MutexGuard<'_, BTreeMap<String, AttachedFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_saving(&self) -> io::Result<MutexGuard<'_, ()>> {
        let saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        // The folder of a deleted store has been renamed, and a write must not create it again.
        match self.is_deleted() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the vector store was deleted")),
            false => Ok(saving),
        }
    }

    /// Returns the open index. `None` without documents.
    pub(crate) fn index(&self) -> Option<Arc<OtherIndex>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the open index. A deleted store has none.
    pub(super) fn set_index(&self, index: Arc<OtherIndex>) {
        let mut own = self.index.write().unwrap_or_else(PoisonError::into_inner);
        // Asked under the lock, because a deletion closes the index only once.
        if !self.is_deleted() {
            *own = Some(index);
        }
    }

    /// Ends the building of an index. If the store was deleted meanwhile, removes the folder that the build has created
    /// again.
    pub(super) fn end_build(&self) {
        // Held by a deletion until the folder is gone.
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_deleted()
            && self.dir.exists()
            && let Err(error) = record_folder::discard(&self.dir)
        {
            tracing::error!(store = self.id, %error, "the index of a deleted vector store was not removed");
        }
    }

    /// Closes the index and removes its files. Searches that run keep what they have open.
    ///
    /// # Errors
    /// If the files cannot be removed.
    pub(super) fn remove_index(&self) -> io::Result<()> {
        self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        record_folder::discard(&self.index_dir())
    }

    /// Deletes the store with its index. Returns `false` if it was deleted before.
    ///
    /// # Errors
    /// If the folder cannot be renamed. The store then stays.
    pub(super) fn delete(&self) -> io::Result<bool> {
        let Ok(_saving) = self.begin_saving() else { return Ok(false) };
        self.is_deleted.store(true, Ordering::SeqCst);
        self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        record_folder::discard(&self.dir).inspect_err(|_| self.is_deleted.store(false, Ordering::SeqCst))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Creates the store `vs_1` in `folder`.
    fn store_in(folder: &Path) -> VectorStore {
        let record =
            StoreRecord { owner: None, created_at: 1, name: None, description: None, metadata: BTreeMap::new() };
        VectorStore::create(folder, "vs_1".to_owned(), record).unwrap()
    }

    /// File that waits to be indexed.
    fn waiting_file() -> AttachedFile {
        AttachedFile {
            created_at: 1,
            status: IndexingStatus::InProgress,
            error: None,
            attributes: Map::new(),
            sizes: None,
            chunks: 0,
            bytes: 0,
            indexed: 0,
            batch: None,
            attempts: 0,
            removing: false,
            earlier_status: None,
        }
    }

    #[test]
    fn a_file_that_is_added_again_while_it_is_removed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path());
        store.attach_file("file-1", waiting_file()).unwrap();
        store.remove_file("file-1").unwrap();
        assert!(store.file("file-1").is_some(), "not marked");
        assert!(store.mark_removal("file-1", true).unwrap().unwrap().removing);
        store.attach_file("file-1", waiting_file()).unwrap();
        store.remove_file("file-1").unwrap();
        assert_eq!(store.file("file-1"), Some(waiting_file()));
        store.mark_removal("file-1", true).unwrap();
        store.remove_file("file-1").unwrap();
        assert_eq!(store.file("file-1"), None);
        assert_eq!(store.mark_removal("file-1", true).unwrap(), None);
    }

    #[test]
    fn indexes_that_a_killed_process_was_removing_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path());
        let dir = folder.path().join("vs_1");
        fs::create_dir_all(store.index_dir()).unwrap();
        fs::create_dir_all(dir.join(".0193/1")).unwrap();
        fs::write(dir.join(".0193/1/manifest.json"), "{}").unwrap();
        VectorStore::read(dir.clone(), "vs_1".to_owned()).unwrap().unwrap();
        assert!(!dir.join(".0193").exists() && store.index_dir().exists());
    }

    #[test]
    fn an_index_that_is_built_while_its_store_is_deleted_goes_too() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path());
        let dir = folder.path().join("vs_1");
        store.end_build();
        assert!(dir.exists());
        store.attach_file("file-1", waiting_file()).unwrap();
        let claimed = store.claim("file-1", &waiting_file()).unwrap().unwrap();
        assert!(store.delete().unwrap() && !dir.exists());
        fs::create_dir_all(store.index_dir()).unwrap();
        store.end_build();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        store.finish_file("file-1", &claimed, claimed.clone()).unwrap();
        assert!(!store.delete().unwrap() && !dir.exists());
    }

    #[test]
    fn a_file_goes_on_behind_the_chunks_that_are_indexed() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path());
        store.attach_file("file-1", waiting_file()).unwrap();
        let claimed = store.claim("file-1", &waiting_file()).unwrap().unwrap();
        let advanced = store.advance("file-1", &claimed, 3, 50).unwrap().unwrap();
        assert_eq!((advanced.indexed, advanced.chunks, advanced.bytes), (3, 3, 50));
        store.end_indexing();
        let waiting = store.file("file-1").unwrap();
        assert_eq!((waiting.indexed, waiting.attempts), (3, 0));
        // A file that is added again begins anew.
        store.attach_file("file-1", waiting_file()).unwrap();
        assert_eq!(store.advance("file-1", &waiting, 5, 60).unwrap(), None);
        let again = store.file("file-1").unwrap();
        assert_eq!((again.indexed, again.chunks, again.bytes), (0, 5, 60));
    }

    #[test]
    fn only_attempts_that_ended_with_their_process_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path());
        let file = waiting_file();
        store.attach_file("file-1", file.clone()).unwrap();
        let claim = |store: &VectorStore| store.claim("file-1", &store.file("file-1").unwrap()).unwrap().unwrap();
        assert_eq!(claim(&store).attempts, 1);
        assert_eq!(store.claim("file-1", &file).unwrap(), None, "another record");
        store.end_indexing();
        assert_eq!(store.file("file-1"), Some(file));
        assert_eq!(claim(&store).attempts, 1);
        // The next process reads what the first one left.
        let next = VectorStore::read(folder.path().join("vs_1"), "vs_1".to_owned()).unwrap().unwrap();
        let claimed = claim(&next);
        assert_eq!(claimed.attempts, 2);
        let done = AttachedFile { status: IndexingStatus::Completed, attempts: 0, ..claimed.clone() };
        next.finish_file("file-1", &claimed, done.clone()).unwrap();
        next.end_indexing();
        assert_eq!(next.file("file-1"), Some(done));
    }
}
