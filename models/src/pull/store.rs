//! One folder of the cache: its contents, how files enter it, and its lock.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Progress, PullError};
use crate::{catalog, durable_file, file_lock};

/// A folder of verified files. A record next to them holds the hashes and modification times, so starting does
/// not have to read hundreds of megabytes again.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

/// Record of a verified file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    path: String,
    size: u64,
    sha256: String,
    /// Modification time, in nanoseconds since 1970.
    modified: u128,
}

const NOTE: &str = ".checked.json";

/// Name of the file with the commit of the hub that the other files come from.
const COMMIT: &str = ".commit";

impl Store {
    pub(super) fn new(parent: &Path, name: &str) -> Self {
        Self { folder: parent.join(name) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Folder of unfinished downloads.
    pub(super) fn partial(&self) -> PathBuf {
        self.sibling("partial")
    }

    fn sibling(&self, end: &str) -> PathBuf {
        let mut name = self.folder.clone().into_os_string();
        name.push(".");
        name.push(end);
        PathBuf::from(name)
    }

    /// Waits for exclusive access to the folder. Dropping the returned file, or the end of the process, releases
    /// the lock.
    pub(super) fn lock(&self, progress: &dyn Progress) -> Result<File, PullError> {
        let path = self.sibling("lock");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(PullError::io(parent))?;
        }
        if let Some(lock) = file_lock::try_take(&path).map_err(PullError::io(&path))? {
            return Ok(lock);
        }
        progress.update("waiting for another pull of the same weights", 0, None);
        file_lock::take(&path).map_err(PullError::io(&path))
    }

    /// Returns `true` if all of these files were verified and no verified file has changed since.
    pub(super) fn holds(&self, files: &[catalog::File]) -> bool {
        let Some(records) = self.records() else { return false };
        let known = |file: &catalog::File| {
            records.iter().any(|record| record.path == file.path && record.sha256 == file.sha256)
        };
        files.iter().all(known) && self.unchanged(&records)
    }

    /// Commit that the files were first taken from. `None` if none was pinned.
    pub(super) fn commit(&self) -> Option<String> {
        let text = fs::read_to_string(self.path(COMMIT)).ok()?;
        let commit = text.trim();
        // The commit becomes part of URLs and paths.
        (!commit.is_empty() && commit.chars().all(|c| c.is_ascii_hexdigit())).then(|| commit.to_owned())
    }

    /// Pins the files to a commit.
    pub(super) fn pin(&self, commit: &str) -> Result<(), PullError> {
        let path = self.path(COMMIT);
        durable_file::replace(&path, commit.as_bytes()).map_err(PullError::io(&path))
    }

    /// Files as they were recorded.
    pub(super) fn recorded(&self) -> Vec<catalog::File> {
        let file = |record: FileRecord| catalog::File { path: record.path, size: record.size, sha256: record.sha256 };
        self.records().unwrap_or_default().into_iter().map(file).collect()
    }

    /// Checks that the hash of a file equals the recorded one, and removes the file if not. Accepts files without a record.
    pub(super) fn check_recorded(&self, file: &catalog::File, origin: &str) -> Result<(), PullError> {
        let records = self.records().unwrap_or_default();
        match records.into_iter().find(|record| record.path == file.path && record.sha256 != file.sha256) {
            Some(record) => {
                // The file has taken the place of the recorded one.
                let _ = fs::remove_file(self.path(&file.path));
                let expected = catalog::File { sha256: record.sha256, ..file.clone() };
                Err(wrong(&expected, origin, file.sha256.clone()))
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if at least one file was verified and every verified file is unchanged.
    pub(super) fn is_complete(&self) -> bool {
        self.records().is_some_and(|records| !records.is_empty() && self.unchanged(&records))
    }

    fn records(&self) -> Option<Vec<FileRecord>> {
        serde_json::from_slice(&fs::read(self.path(NOTE)).ok()?).ok()
    }

    fn unchanged(&self, records: &[FileRecord]) -> bool {
        records.iter().all(|record| self.record(&record.path, &record.sha256).is_ok_and(|now| now == *record))
    }

    fn record(&self, path: &str, sha256: &str) -> io::Result<FileRecord> {
        let metadata = fs::metadata(self.path(path))?;
        let modified = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        Ok(FileRecord { path: path.to_owned(), size: metadata.len(), sha256: sha256.to_owned(), modified })
    }

    /// Returns `true` if the file is in place with the right content, recorded or not. An interrupted pull leaves
    /// its finished files unrecorded.
    pub(super) fn has(&self, file: &catalog::File, progress: &dyn Progress) -> bool {
        let found = File::open(self.path(&file.path)).and_then(|mut reader| check(&mut reader, file, progress));
        found.is_ok_and(|found| found == file.sha256)
    }

    /// Verifies and records files that are already in place. Removes a wrong file.
    pub(super) fn adopt(&self, files: &[catalog::File], progress: &dyn Progress) -> Result<(), PullError> {
        for file in files {
            let path = self.path(&file.path);
            let mut reader = File::open(&path).map_err(|_| PullError::Changed(path.clone()))?;
            let found = check(&mut reader, file, progress).map_err(PullError::io(&path))?;
            if found != file.sha256 {
                fs::remove_file(&path).map_err(PullError::io(&path))?;
                return Err(wrong(file, "the cache", found));
            }
        }
        self.finish(files)
    }

    /// Stores the output of `reader` as `file` if its content matches.
    pub(super) fn take(
        &self,
        file: &catalog::File,
        reader: &mut dyn Read,
        origin: &str,
        progress: &dyn Progress,
    ) -> Result<(), PullError> {
        let partial = self.partial().join("file");
        fs::create_dir_all(self.partial()).map_err(PullError::io(&partial))?;
        let mut writer = File::create(&partial).map_err(PullError::io(&partial))?;
        let heard = |done| progress.update(&format!("unpacking {}", file.path), done, Some(file.size));
        // One byte beyond the expected size suffices to detect a file that is too long.
        let found = copy(&mut reader.take(file.size + 1), &mut writer, heard).map_err(PullError::io(&partial))?;
        if found != file.sha256 {
            fs::remove_file(&partial).map_err(PullError::io(&partial))?;
            return Err(wrong(file, origin, found));
        }
        writer.sync_all().map_err(PullError::io(&partial))?;
        self.place(&partial, &file.path)
    }

    /// Moves a complete file on the same disk into the store if its content matches `file`.
    pub(super) fn take_file(
        &self,
        file: &catalog::File,
        from: &Path,
        origin: &str,
        progress: &dyn Progress,
    ) -> Result<(), PullError> {
        let mut reader = File::open(from).map_err(PullError::io(from))?;
        let found = check(&mut reader, file, progress).map_err(PullError::io(from))?;
        if found != file.sha256 {
            fs::remove_file(from).map_err(PullError::io(from))?;
            return Err(wrong(file, origin, found));
        }
        reader.sync_all().map_err(PullError::io(from))?;
        self.place(from, &file.path)
    }

    fn place(&self, from: &Path, name: &str) -> Result<(), PullError> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).map_err(PullError::io(parent))?;
        fs::rename(from, &path).map_err(PullError::io(&path))?;
        // The new name must be on disk before the record says that the file is there.
        durable_file::sync_parent(&path).map_err(PullError::io(parent))
    }

    /// Records all files as verified and removes the unfinished downloads.
    pub(super) fn finish(&self, files: &[catalog::File]) -> Result<(), PullError> {
        let record =
            |file: &catalog::File| self.record(&file.path, &file.sha256).map_err(PullError::io(&self.path(&file.path)));
        let records = files.iter().map(record).collect::<Result<Vec<_>, _>>()?;
        let note = self.path(NOTE);
        let text = serde_json::to_vec_pretty(&records).map_err(io::Error::from).map_err(PullError::io(&note))?;
        durable_file::replace(&note, &text).map_err(PullError::io(&note))?;
        match fs::remove_dir_all(self.partial()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(PullError::Io { path: self.partial(), source })
            }
            _ => Ok(()),
        }
    }
}

fn wrong(file: &catalog::File, origin: &str, found: String) -> PullError {
    PullError::Checksum { file: file.path.clone(), origin: origin.to_owned(), expected: file.sha256.clone(), found }
}

/// SHA-256 of a file, in hexadecimal.
pub(super) fn digest(path: &Path) -> Result<String, PullError> {
    let mut reader = File::open(path).map_err(PullError::io(path))?;
    copy(&mut reader, &mut io::sink(), |_| ()).map_err(PullError::io(path))
}

/// Reads `file` from `reader` and returns its SHA-256 in hexadecimal.
fn check(reader: &mut dyn Read, file: &catalog::File, progress: &dyn Progress) -> io::Result<String> {
    let heard = |done| progress.update(&format!("checking {}", file.path), done, Some(file.size));
    copy(reader, &mut io::sink(), heard)
}

/// Copies `reader` to `writer` and returns the SHA-256 in hexadecimal.
fn copy(reader: &mut dyn Read, writer: &mut dyn Write, heard: impl Fn(u64)) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => {
                hash.update(&buffer[..count]);
                writer.write_all(&buffer[..count])?;
                done += count as u64;
                heard(done);
            }
        }
    }
}
