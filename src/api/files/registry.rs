//! Uploaded files on disk: a folder per file, with its content and its record.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::json_file;
use crate::api::record_folder::{self, ABOUT, UNFINISHED};
use crate::keys::KeyOwner;
use crate::store::Owner;

/// Maximum number of files of all keys together.
pub(super) const MAX_FILES: usize = 10_000;

/// Maximum number of uploads of all keys together that run at once. Each holds memory for what it writes next.
const MAX_UPLOADS: usize = 64;

/// Name of the folder that holds the content of a file, under the file's own name.
const CONTENT: &str = "content";

/// Maximum length of the name of a file on disk, in bytes.
const MAX_NAME_BYTES: usize = 120;

/// Maximum length of an extension in a shortened name, in characters.
const MAX_EXTENSION: usize = 16;

/// Extensions of compressed files. The extension before them tells the format.
const COMPRESSIONS: [&str; 4] = ["gz", "gzip", "zst", "zstd"];

/// Uploaded file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// Identity of the key that uploaded the file. `None` without keys.
    pub(crate) owner: Option<String>,
    /// Time of the upload, in seconds since 1970.
    pub(crate) created_at: u64,
    /// Name that the client gave.
    pub(crate) filename: String,
    pub(crate) purpose: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

impl FileRecord {
    fn owner(&self) -> Owner {
        self.owner.as_deref().and_then(KeyOwner::parse)
    }
}

/// Uploaded files of all keys.
#[derive(Debug)]
pub(crate) struct UploadedFiles {
    folder: PathBuf,
    /// Maximum total size, in bytes.
    storage: u64,
    files: Mutex<BTreeMap<String, Arc<FileRecord>>>,
    /// Room of the files that are being uploaded, by ID. If both are locked, `files` is locked first.
    reserved: Arc<Mutex<BTreeMap<String, ReservedRoom>>>,
}

/// Room of one file that is being uploaded.
#[derive(Debug, Clone, Copy)]
struct ReservedRoom {
    owner: Owner,
    bytes: u64,
}

/// Reservation of room for a file. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct RoomReservation {
    id: String,
    reserved: Arc<Mutex<BTreeMap<String, ReservedRoom>>>,
}

impl Drop for RoomReservation {
    fn drop(&mut self) {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Folder of a file that is being uploaded. Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct PartialFile {
    dir: PathBuf,
    /// Path of the content.
    pub(crate) content: PathBuf,
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // A finished upload was renamed, so nothing is left. The next start removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl UploadedFiles {
    /// Opens the files in `folder`, and removes the remains of killed uploads.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or the record of a file is damaged.
    pub(crate) fn open(folder: PathBuf, storage: u64) -> io::Result<UploadedFiles> {
        fs::create_dir_all(&folder)?;
        record_folder::remove_unfinished(&folder)?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let id = entry.file_name().to_string_lossy().into_owned();
            if let Some(record) = json_file::read::<FileRecord>(&entry.path().join(ABOUT))? {
                files.insert(id, Arc::new(record));
            }
        }
        Ok(UploadedFiles { folder, storage, files: Mutex::new(files), reserved: Arc::default() })
    }

    /// Reserves room for the file `id` of `caller`, which has at most `bytes`. Files that are being uploaded count like
    /// stored ones.
    ///
    /// # Errors
    /// 429 if the caller's key already holds its share, 503 if there is no room or too many uploads run.
    pub(crate) fn reserve(&self, caller: &Caller, id: &str, bytes: u64) -> Result<RoomReservation, ApiError> {
        let files = self.lock();
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let uploads = reserved.values().filter(|room| room.owner == caller.owner).count();
        caller.may_take(uploads, reserved.len(), MAX_UPLOADS, "uploads in progress")?;
        let stored = files.values().map(|file| ReservedRoom { owner: file.owner(), bytes: file.bytes });
        let mut own = (0, bytes);
        let mut all = (0, bytes);
        for room in stored.chain(reserved.values().copied()) {
            all = (all.0 + 1, all.1 + room.bytes);
            if room.owner == caller.owner {
                own = (own.0 + 1, own.1 + room.bytes);
            }
        }
        caller.may_take(own.0, all.0, MAX_FILES, "files").map_err(with_remedy)?;
        may_store(caller, own.1, all.1, self.storage, "KiB of files")?;
        reserved.insert(id.to_owned(), ReservedRoom { owner: caller.owner, bytes });
        Ok(RoomReservation { id: id.to_owned(), reserved: Arc::clone(&self.reserved) })
    }

    /// Creates the folder of a new file.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn begin(&self, id: &str, filename: &str) -> io::Result<PartialFile> {
        let dir = self.folder.join(format!("{UNFINISHED}{id}"));
        fs::create_dir_all(dir.join(CONTENT))?;
        let content = dir.join(CONTENT).join(name_on_disk(filename));
        Ok(PartialFile { dir, content })
    }

    /// Keeps a file whose content was written and synced, in the room that was reserved for it.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn finish(&self, room: RoomReservation, part: &PartialFile, record: FileRecord) -> io::Result<()> {
        record_folder::publish(&part.dir, &self.folder.join(&room.id), &record)?;
        let mut files = self.lock();
        files.insert(room.id.clone(), Arc::new(record));
        // Given back under the lock, so no other upload sees the room as free.
        drop(room);
        Ok(())
    }

    /// Returns the caller's files, oldest first.
    pub(crate) fn of(&self, owner: Owner) -> Vec<(String, Arc<FileRecord>)> {
        let files = self.lock();
        let own = files.iter().filter(|(_, file)| file.owner() == owner);
        own.map(|(id, file)| (id.clone(), Arc::clone(file))).collect()
    }

    /// Returns the file `id` of `owner`.
    pub(crate) fn get(&self, owner: Owner, id: &str) -> Option<Arc<FileRecord>> {
        self.lock().get(id).filter(|file| file.owner() == owner).cloned()
    }

    /// Returns the owner of each file.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.lock().values().map(|file| file.owner()).collect()
    }

    /// Returns the path of the content of a file.
    pub(crate) fn content(&self, id: &str, record: &FileRecord) -> PathBuf {
        let folder = self.folder.join(id).join(CONTENT);
        let path = folder.join(name_on_disk(&record.filename));
        let earlier = folder.join(earlier_name_on_disk(&record.filename));
        // Only long names of compressed files differ, so others cost no access to the disk.
        if earlier != path && !path.exists() && earlier.exists() { earlier } else { path }
    }

    /// Removes the file `id`.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let mut files = self.lock();
        // Only IDs that are in the map become paths.
        if files.contains_key(id) {
            record_folder::discard(&self.folder.join(id))?;
            files.remove(id);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<FileRecord>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that `caller`, with `own` of the `used` bytes, stays within its share of `storage` bytes.
///
/// # Errors
/// 429 if the caller's key holds more than its share, 503 if more is used than there is.
pub(crate) fn may_store(caller: &Caller, own: u64, used: u64, storage: u64, what: &str) -> Result<(), ApiError> {
    // In KiB, because a key's share is counted in whole units.
    let kib = |bytes: u64| usize::try_from(bytes.div_ceil(1024)).unwrap_or(usize::MAX);
    caller.may_take(kib(own), kib(used), kib(storage).saturating_add(1), what).map_err(with_remedy)
}

/// Adds to the error of a full server how to make room, because stored objects stay until somebody deletes them.
pub(crate) fn with_remedy(error: ApiError) -> ApiError {
    if error.code != Code::QueueFull {
        return error;
    }
    let message = format!("{}: delete some, or have those of revoked keys removed from the server", error.message);
    ApiError::new(error.code, message)
}

/// Returns the error of a disk that cannot be written.
pub(crate) fn unwritable(error: impl std::fmt::Display) -> ApiError {
    tracing::error!(%error, "the folder of vector stores cannot be read or written");
    // The error itself may name paths.
    ApiError::new(Code::StateUnavailable, "the server's folder of files cannot be read or written")
}

/// Returns the name of a file without anything that has a meaning in paths. The extension stays, because it tells the
/// format; that of a compressed file stays together with the one before it.
fn name_on_disk(filename: &str) -> String {
    let (stem, extension) = parts(&plain(filename));
    let is_compressed = COMPRESSIONS.iter().any(|compression| extension.eq_ignore_ascii_case(compression));
    let (inner_stem, inner) = parts(&stem);
    if is_compressed && !inner.is_empty() && stem.len() + extension.len() > MAX_NAME_BYTES {
        return shortened(inner_stem, &format!("{inner}.{extension}"));
    }
    shortened(stem, &extension)
}

/// Returns the name that earlier versions gave a file. They kept the last extension alone.
fn earlier_name_on_disk(filename: &str) -> String {
    let (stem, extension) = parts(&plain(filename));
    shortened(stem, &extension)
}

/// Replaces the characters of a name that may have a meaning in paths.
fn plain(filename: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || " ._-()".contains(c) { c } else { '_' };
    filename.chars().map(plain).collect()
}

/// Splits a name into its stem and the beginning of its extension.
fn parts(name: &str) -> (String, String) {
    let path = Path::new(name);
    let of = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = of(path.extension()).chars().take(MAX_EXTENSION).collect();
    (of(path.file_stem()), extension)
}

/// Returns a name of at most [`MAX_NAME_BYTES`] and a dot, which ends in the extension.
fn shortened(mut stem: String, extension: &str) -> String {
    while stem.len() + extension.len() > MAX_NAME_BYTES {
        stem.pop();
    }
    // Leading dots would hide the file, and `..` is the folder above.
    let stem = stem.trim_start_matches('.');
    let stem = if stem.is_empty() { "file" } else { stem };
    if extension.is_empty() { stem.to_owned() } else { format!("{stem}.{extension}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::keys::Secret;

    #[test]
    fn uploads_that_run_count_as_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = UploadedFiles::open(folder.path().to_owned(), 10 << 10).unwrap();
        let caller = Caller::default();
        let first = files.reserve(&caller, "a", 6 << 10).unwrap();
        assert_eq!(files.reserve(&caller, "b", 6 << 10).unwrap_err().code, Code::QueueFull);
        let part = files.begin("a", "a.txt").unwrap();
        fs::write(&part.content, "text").unwrap();
        let filename = "a.txt".to_owned();
        let purpose = "assistants".to_owned();
        let record = FileRecord { owner: None, created_at: 0, filename, purpose, bytes: 4 };
        files.finish(first, &part, record).unwrap();
        // The file takes the room of its content, not what was reserved for it.
        let second = files.reserve(&caller, "b", 6 << 10).unwrap();
        assert!(files.reserve(&caller, "c", 6 << 10).is_err());
        drop(second);
        assert!(files.reserve(&caller, "c", 6 << 10).is_ok());
    }

    #[test]
    fn uploads_in_progress_are_bounded_per_key_and_in_all() {
        let folder = tempfile::tempdir().unwrap();
        let files = UploadedFiles::open(folder.path().to_owned(), 1 << 30).unwrap();
        let caller = || Caller { owner: Some(Secret::generate().digest().owner()), shares: true, ..Caller::default() };
        let greedy = caller();
        let mut held: Vec<_> =
            (0..MAX_UPLOADS / 2).map(|number| files.reserve(&greedy, &format!("a{number}"), 1).unwrap()).collect();
        let refused = files.reserve(&greedy, "b", 1).unwrap_err();
        assert_eq!(refused.code, Code::ConcurrencyLimited);
        assert!(refused.message.ends_with("uploads in progress: 32 of 64"), "{}", refused.message);
        held.extend((0..MAX_UPLOADS / 2).map(|number| files.reserve(&caller(), &format!("c{number}"), 1).unwrap()));
        let refused = files.reserve(&caller(), "d", 1).unwrap_err();
        assert_eq!((refused.code, refused.retry_after.is_some()), (Code::QueueFull, true));
        held.pop();
        assert!(files.reserve(&caller(), "d", 1).is_ok());
    }

    #[test]
    fn names_have_no_meaning_in_paths() {
        for (given, expected) in [
            ("report.PDF", "report.PDF"),
            ("../../etc/passwd", "_.._etc_passwd"),
            ("..", "file"),
            (".hidden", "hidden"),
            ("a/b\\c:d.md", "a_b_c_d.md"),
            ("corpus.jsonl.gz", "corpus.jsonl.gz"),
            ("", "file"),
        ] {
            assert_eq!(name_on_disk(given), expected, "{given}");
        }
        for extension in ["txt", "csv.gz", "JSONL.GZIP", "tsv.zst", "md.zstd"] {
            let long = name_on_disk(&format!("{}.{extension}", "ü".repeat(500)));
            assert!(long.len() <= MAX_NAME_BYTES + 1 && long.ends_with(&format!("ü.{extension}")), "{long}");
        }
        let unknown = name_on_disk(&format!("a.{}.gz", "x".repeat(500)));
        assert_eq!(unknown, format!("a.{}.gz", "x".repeat(MAX_EXTENSION)));
    }

    #[test]
    fn a_file_that_an_earlier_version_stored_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let files = UploadedFiles::open(folder.path().to_owned(), 1 << 10).unwrap();
        let filename = format!("{}.csv.gz", "x".repeat(200));
        let purpose = "assistants".to_owned();
        let record = FileRecord { owner: None, created_at: 0, filename, purpose, bytes: 0 };
        let new = files.content("a", &record);
        assert!(new.to_string_lossy().ends_with("x.csv.gz"), "{}", new.display());
        fs::create_dir_all(new.parent().unwrap()).unwrap();
        let earlier = new.with_file_name(format!("{}.gz", "x".repeat(MAX_NAME_BYTES - 2)));
        fs::write(&earlier, "").unwrap();
        assert_eq!(files.content("a", &record), earlier);
        fs::write(&new, "").unwrap();
        assert_eq!(files.content("a", &record), new);
    }
}
