//! File of a publication that is being fetched, and its parts that are already on the disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use waymark_models::durable_file;

use super::SnapshotError;
use super::published::{Part, PublishedFile};

/// Ending of the name of a file that is being fetched.
const PARTIAL: &str = ".fetched";

/// File that is being fetched.
#[derive(Debug)]
pub(super) struct FileFetch {
    /// File to write, positioned after the parts that it has already.
    pub(super) output: File,
    /// Path of `output`.
    pub(super) target: PathBuf,
    /// Path of the file in the index.
    path: PathBuf,
    /// Number of parts that `output` has already.
    pub(super) kept: usize,
}

/// File that was fetched whole, and may not have its name yet.
#[derive(Debug)]
pub(super) struct FetchedFile {
    /// Path at which it was written.
    target: PathBuf,
    /// Path of the file in the index.
    path: PathBuf,
}

impl FileFetch {
    /// Opens the file at `path`, which holds `held`, to append the parts that `file` has beyond `held`.
    pub(super) fn append(path: &Path, held: &PublishedFile, file: &PublishedFile) -> io::Result<FileFetch> {
        let mut output = File::options().read(true).write(true).open(path)?;
        // An interrupted fetch may have appended more. Nothing is cut off: the manifest tells how much of a log counts.
        let kept = count_present(&mut output, &file.parts, held.parts.len())?;
        output.seek(SeekFrom::Start(bytes(&file.parts[..kept])))?;
        Ok(FileFetch { output, target: path.to_owned(), path: path.to_owned(), kept })
    }

    /// Opens a file beside `path` that will replace the one at `path`. It begins with the parts that an interrupted
    /// fetch or the file at `path` already has. `None` if the file at `path` is complete.
    pub(super) fn replace(path: &Path, file: &PublishedFile) -> io::Result<Option<FileFetch>> {
        let local = count_local(path, file)?;
        if local == file.parts.len() && fs::metadata(path).is_ok_and(|about| about.len() == file.bytes()) {
            return Ok(None);
        }
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let target = partial(path);
        let mut output = File::options().create(true).truncate(false).read(true).write(true).open(&target)?;
        let mut kept = count_present(&mut output, &file.parts, 0)?;
        if local > kept {
            output.seek(SeekFrom::Start(0))?;
            io::copy(&mut File::open(path)?.take(bytes(&file.parts[..local])), &mut output)?;
            kept = local;
        }
        let position = bytes(&file.parts[..kept]);
        output.set_len(position)?;
        output.seek(SeekFrom::Start(position))?;
        Ok(Some(FileFetch { output, target, path: path.to_owned(), kept }))
    }

    /// Makes the contents of the file durable.
    pub(super) fn finish(self) -> io::Result<FetchedFile> {
        self.output.sync_all()?;
        Ok(FetchedFile { target: self.target, path: self.path })
    }
}

/// Gives `files` their names, which replaces files of the index, and makes the names durable.
pub(super) fn put_in_place(files: &[FetchedFile]) -> Result<(), SnapshotError> {
    for FetchedFile { target, path } in files {
        if target != path {
            fs::rename(target, path).map_err(SnapshotError::file("write", path))?;
        }
    }
    for FetchedFile { path, .. } in files {
        durable_file::sync_parent(path).map_err(SnapshotError::file("write", path))?;
    }
    Ok(())
}

/// Returns `true` if a file still has at least the size that was fetched.
pub(super) fn is_there(path: &Path, held: &PublishedFile) -> bool {
    fs::metadata(path).is_ok_and(|about| about.len() >= held.bytes())
}

/// Returns the path of a file while it is fetched. The extension stays, because some files differ only in it.
fn partial(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(PARTIAL);
    name.into()
}

fn bytes(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

/// Returns the number of parts of `file` with which the file at `path` begins, 0 if there is no such file.
fn count_local(path: &Path, file: &PublishedFile) -> io::Result<usize> {
    match File::open(path) {
        Ok(mut local) => count_present(&mut local, &file.parts, 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns the number of `parts` with which `file` begins. The first `known` parts are taken for present and not read.
fn count_present(file: &mut File, parts: &[Part], known: usize) -> io::Result<usize> {
    file.seek(SeekFrom::Start(bytes(&parts[..known])))?;
    for (count, part) in parts.iter().enumerate().skip(known) {
        let mut content = Vec::new();
        file.by_ref().take(part.bytes).read_to_end(&mut content)?;
        if Part::of(&content) != *part {
            return Ok(count);
        }
    }
    Ok(parts.len())
}
