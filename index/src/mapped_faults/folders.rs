//! Folders whose mapped files are watched, in a form that a signal handler may read.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum length of a file name that is remembered; longer ones are cut.
const LONGEST: usize = 120;

/// Suffix that the system appends to the path of an unlinked file.
#[cfg(target_os = "linux")]
pub(super) const DELETED: &[u8] = b" (deleted)";

/// Folder of an index, as an element of a linked list. Elements are never freed, because a signal may arrive at any
/// time: the list grows by one for every folder that the process opens.
#[derive(Debug)]
pub(super) struct WatchedFolder {
    /// Path without symbolic links, with a slash at the end.
    prefix: Vec<u8>,
    faults: AtomicU64,
    /// Name within the folder of the file of the last fault.
    file: [AtomicU8; LONGEST],
    length: AtomicUsize,
    next: Option<&'static WatchedFolder>,
}

static FIRST: AtomicPtr<WatchedFolder> = AtomicPtr::new(ptr::null_mut());

/// Held while a folder is added.
static ADDING: Mutex<()> = Mutex::new(());

/// Returns the entry of the folder `dir`, adding it if needed.
pub(super) fn watch(dir: &Path) -> &'static WatchedFolder {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mut prefix = whole.into_os_string().into_encoded_bytes();
    prefix.push(b'/');
    let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = folders().find(|folder| folder.prefix == prefix) {
        return known;
    }
    let folder: &'static mut WatchedFolder = Box::leak(Box::new(WatchedFolder {
        prefix,
        faults: AtomicU64::new(0),
        file: [const { AtomicU8::new(0) }; LONGEST],
        length: AtomicUsize::new(0),
        next: first(),
    }));
    FIRST.store(folder, Ordering::Release);
    folder
}

/// Counts a fault in the file at `path`, with or without [`DELETED`]. Returns `false` if no watched folder holds the
/// file. May be called by a signal handler, but only by one thread at a time.
#[cfg(target_os = "linux")]
pub(super) fn count_fault(path: &[u8]) -> bool {
    let Some(folder) = folders().find(|folder| path.starts_with(&folder.prefix)) else { return false };
    let file = path.get(folder.prefix.len()..).unwrap_or_default();
    let file = file.strip_suffix(DELETED).unwrap_or(file);
    folder.length.store(0, Ordering::Relaxed);
    folder.file.iter().zip(file).for_each(|(place, &byte)| place.store(byte, Ordering::Relaxed));
    folder.length.store(file.len().min(LONGEST), Ordering::Relaxed);
    folder.faults.fetch_add(1, Ordering::Release);
    true
}

fn first() -> Option<&'static WatchedFolder> {
    // SAFETY: the pointer is null, or comes from `Box::leak` and is never freed; what it points to is only read.
    unsafe { FIRST.load(Ordering::Acquire).as_ref() }
}

fn folders() -> impl Iterator<Item = &'static WatchedFolder> {
    std::iter::successors(first(), |folder| folder.next)
}

impl WatchedFolder {
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Acquire)
    }

    /// Path of the file of the last fault.
    pub(super) fn last_file(&self) -> PathBuf {
        let length = self.length.load(Ordering::Relaxed).min(LONGEST);
        let file = self.file[..length].iter().map(|byte| byte.load(Ordering::Relaxed));
        let path: Vec<u8> = self.prefix.iter().copied().chain(file).collect();
        PathBuf::from(String::from_utf8_lossy(&path).into_owned())
    }
}
