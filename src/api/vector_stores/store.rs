//! Vector store: its record, its files and its index.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use uuid::Uuid;
use waymark_runtime::durable_file;

use super::record::{AttachedFile, IndexingStatus, StoreRecord};
use crate::api::indexes::OtherIndex;
use crate::api::json_file;
use crate::keys::KeyOwner;
use crate::store::Owner;

/// Name of the record of a store in its folder.
const ABOUT: &str = "about.json";
/// Name of the folder of a store's attached files.
const FILES: &str = "files";
/// Name of the folder of a store's index.
const INDEX: &str = "index";
/// Beginning of the names of folders that are being created or removed.
pub(super) const UNFINISHED: &str = ".";

/// Vector store.
#[derive(Debug)]
pub(crate) struct VectorStore {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    dir: PathBuf,
    record: Mutex<StoreRecord>,
    /// Attached files by ID.
    files: Mutex<BTreeMap<String, AttachedFile>>,
    /// Held while a record is written, so that the files on disk are those in memory.
    saving: Mutex<()>,
    /// Index of the files. `None` as long as the store has no document.
    index: RwLock<Option<Arc<OtherIndex>>>,
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
        json_file::write(&part.join(ABOUT), &record)?;
        fs::rename(&part, &dir)?;
        durable_file::sync_parent(&dir)?;
        Ok(VectorStore::over(dir, id, record, BTreeMap::new()))
    }

    /// Reads the store in `dir`. `None` if the folder holds none.
    ///
    /// # Errors
    /// If a record cannot be read.
    pub(super) fn read(dir: PathBuf, id: String) -> io::Result<Option<VectorStore>> {
        let Some(record) = json_file::read::<StoreRecord>(&dir.join(ABOUT))? else { return Ok(None) };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(dir.join(FILES))? {
            let path = entry?.path();
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let is_record = path.extension().is_some_and(|extension| extension == "json");
            if let (Some(file), true) = (stem, is_record)
                && let Some(attached) = json_file::read(&path)?
            {
                files.insert(file, attached);
            }
        }
        Ok(Some(VectorStore::over(dir, id, record, files)))
    }

    fn over(dir: PathBuf, id: String, record: StoreRecord, files: BTreeMap<String, AttachedFile>) -> VectorStore {
        let owner = record.owner.as_deref().and_then(KeyOwner::parse);
        VectorStore {
            id,
            owner,
            dir,
            record: Mutex::new(record),
            files: Mutex::new(files),
            saving: Mutex::default(),
            index: RwLock::default(),
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
    /// If the store was deleted or the record cannot be written. It is unchanged then.
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
        self.lock_files().iter().map(|(id, file)| (id.clone(), file.clone())).collect()
    }

    /// Returns the attached file `id`.
    pub(crate) fn file(&self, id: &str) -> Option<AttachedFile> {
        self.lock_files().get(id).cloned()
    }

    /// Returns the size of the texts in the index, in bytes.
    pub(super) fn usage_bytes(&self) -> u64 {
        self.lock_files().values().map(|file| file.bytes).sum()
    }

    /// Returns the files that wait to be indexed, oldest first. A deleted store has none.
    pub(super) fn waiting(&self) -> Vec<(String, AttachedFile)> {
        if self.is_deleted.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut files = self.files();
        files.retain(|(_, file)| file.status == IndexingStatus::InProgress);
        files
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

    /// Writes the record `done` of a file that was indexed, or could not be. If the record is not `seen` any more, it
    /// stays and takes over only the sizes of `done`: the file was changed meanwhile and is indexed again.
    ///
    /// # Errors
    /// If the store was deleted or the record cannot be written.
    pub(super) fn finish_file(&self, id: &str, seen: &AttachedFile, done: AttachedFile) -> io::Result<()> {
        let saving = self.begin_saving()?;
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

    /// Removes the record of an attached file.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(super) fn remove_file(&self, id: &str) -> io::Result<()> {
        let _saving = self.begin_saving()?;
        json_file::remove(&self.file_path(id))?;
        self.lock_files().remove(id);
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
        // Its folder has another name by now, and must not come back.
        match self.is_deleted.load(Ordering::SeqCst) {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the vector store was deleted")),
            false => Ok(saving),
        }
    }

    /// Returns the open index. `None` without documents.
    pub(crate) fn index(&self) -> Option<Arc<OtherIndex>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the open index.
    pub(super) fn set_index(&self, index: Arc<OtherIndex>) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Some(index);
    }

    /// Closes the index and removes its files. Searches that run keep what they have open.
    ///
    /// # Errors
    /// If the files cannot be removed.
    pub(super) fn remove_index(&self) -> io::Result<()> {
        self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        discard(&self.index_dir())
    }

    /// Deletes the store with its index.
    ///
    /// # Errors
    /// If the folder cannot be renamed. The store is there then.
    pub(super) fn delete(&self) -> io::Result<()> {
        let _saving = self.begin_saving()?;
        self.is_deleted.store(true, Ordering::SeqCst);
        self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        discard(&self.dir).inspect_err(|_| self.is_deleted.store(false, Ordering::SeqCst))
    }
}

/// Removes a folder so that a killed process leaves it whole or under a name that the next start removes.
pub(in crate::api) fn discard(dir: &Path) -> io::Result<()> {
    let gone = dir.with_file_name(format!("{UNFINISHED}{}", Uuid::now_v7().simple()));
    fs::rename(dir, &gone)?;
    durable_file::sync_parent(&gone)?;
    if let Err(error) = fs::remove_dir_all(&gone) {
        tracing::warn!(%error, path = %gone.display(), "cannot remove a deleted folder before the next start");
    }
    Ok(())
}
