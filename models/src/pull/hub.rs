//! Downloads from the model hub, which the `hf-hub` crate asks for the files of a repository and their metadata.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo, Metadata};
use hf_hub::{Cache, Repo, RepoType};
use sha2::{Digest, Sha256};

use super::download::Downloader;
use super::store::{Store, digest};
use super::{Progress, PullError, PullOptions};
use crate::catalog::{self, is_plain};
use crate::layout::gguf_parts::{self, first_part};
use crate::weights::ShardIndex;

/// Timeout for connecting to the hub: a machine without access should try the next source soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);

/// A repository, with an optional file in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepoId {
    repo: String,
    file: Option<String>,
}

impl RepoId {
    /// Parses `org/name` or `org/name:file`.
    pub(super) fn parse(spec: &str) -> Option<Self> {
        let (repo, file) = match spec.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (spec, None),
        };
        let sound = repo.matches('/').count() == 1 && is_plain(repo) && file.is_none_or(is_plain);
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
        (sound && repo.chars().all(allowed)).then(|| Self { repo: repo.to_owned(), file: file.map(str::to_owned) })
    }

    /// Refuses one of several parts of a file.
    fn check(&self) -> Result<(), PullError> {
        let Some((file, first)) = self.file.as_deref().and_then(|file| Some((file, first_part(file)?))) else {
            return Ok(());
        };
        let reason = format!("{file} is one part of a gguf file: {}", in_parts(&first));
        Err(PullError::Hub { id: self.repo.clone(), reason })
    }

    fn folder(&self) -> String {
        let repo = self.repo.replace('/', "--");
        self.file.as_ref().map_or(repo.clone(), |file| format!("{repo}--{}", file.replace('/', "--")))
    }
}

/// Remedy for a file in parts.
fn in_parts(first: &str) -> String {
    format!("download all parts with another program and {}", gguf_parts::remedy(first))
}

/// Fetches a repository that is not in the catalog.
pub(super) fn pull(
    id: &RepoId,
    cache: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    id.check()?;
    let store = Store::new(&cache.join("hub"), &id.folder());
    fetch_unknown(id, "main", &store, options, progress)?;
    Ok(id.file.as_ref().map_or_else(|| place(&store), |file| store.path(file)))
}

/// Path of a whole repository: its folder, unless opening the folder would miss a GGUF in a subfolder.
fn place(store: &Store) -> PathBuf {
    match store.recorded().as_slice() {
        [file] if file.path.ends_with(".gguf") && file.path.contains('/') => store.path(&file.path),
        _ => store.folder().to_owned(),
    }
}

/// Fetches a repository of the catalog whose files the catalog does not list.
pub(super) fn pull_unpinned(
    repo: &str,
    revision: &str,
    store: &Store,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    fetch_unknown(&RepoId { repo: repo.to_owned(), file: None }, revision, store, options, progress)?;
    Ok(place(store))
}

/// Fetches files whose hashes are not known beforehand. Large files are checked against the SHA-256 that the hub
/// reports. The first pull of a whole repository pins its commit. Later pulls take files of this commit, and refuse a
/// file whose content differs from the recorded one.
fn fetch_unknown(
    id: &RepoId,
    revision: &str,
    store: &Store,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    if store.is_complete() {
        return Ok(());
    }
    let _lock = store.lock(progress)?;
    if store.is_complete() || adopt_recorded(id, store, progress) {
        return Ok(());
    }
    let pinned = store.commit();
    let hub = Hub::open(&id.repo, pinned.as_deref().unwrap_or(revision), store, options)?;
    let (hub, names, commit) = match &id.file {
        // A single file belongs to one commit, wherever the branch moves.
        Some(file) => (hub, vec![file.clone()], None),
        None => {
            let (hub, all, commit) = hub.pinned()?;
            let names = select_files(&all).map_err(|reason| hub.failed(reason))?;
            remove_stale_files(store, &names)?;
            (hub, names, Some(commit))
        }
    };
    let is_pinned = pinned.is_some();
    let mut files = hub.download_all(&names, is_pinned, store, progress)?;
    if id.file.is_none() && names.iter().any(|name| name == ShardIndex::FILE) {
        let shards = hub.shards(store)?;
        files.extend(hub.download_all(&shards, is_pinned, store, progress)?);
    }
    if let Some(commit) = commit {
        store.pin(&commit)?;
        tracing::info!(repository = id.repo, commit, "pinned");
    }
    store.finish(&files)
}

/// Verifies files that were recorded and have other modification times, as copies have. Returns `true` if all of them
/// have the recorded hashes, so nothing must be downloaded.
fn adopt_recorded(id: &RepoId, store: &Store, progress: &dyn Progress) -> bool {
    let known = store.recorded();
    if known.is_empty() {
        return false;
    }
    match store.adopt(&known, progress) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(repository = id.repo, %error, "a cached file is missing or wrong: downloading again");
            false
        }
    }
}

/// Fetches the files of a catalog entry.
pub(super) fn fetch(
    id: &str,
    revision: &str,
    folder: &str,
    files: &[catalog::File],
    store: &Store,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let hub = Hub::open(id, revision, store, options)?;
    for file in files {
        let name = if folder.is_empty() { file.path.clone() } else { format!("{folder}/{}", file.path) };
        hub.take(&name, file, store, progress)?;
    }
    Ok(())
}

/// Small files that accompany weights, where a repository has them.
const SMALL_FILES: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "policy.toml",
];
/// Files of a tokenizer, where a repository has no `tokenizer.json`.
const VOCABULARY: [&str; 5] =
    ["vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "special_tokens_map.json"];
/// Name of unsharded weights.
const SINGLE_WEIGHTS: &str = "model.safetensors";

/// Removes files of another commit that an interrupted attempt left and that the current commit does not have:
/// loading would read them. Shards stay, because only those named by the index are loaded.
fn remove_stale_files(store: &Store, names: &[String]) -> Result<(), PullError> {
    let known = SMALL_FILES.iter().chain(&VOCABULARY).chain(&[SINGLE_WEIGHTS, ShardIndex::FILE]);
    for name in known.filter(|name| !names.iter().any(|kept| kept == *name)) {
        let path = store.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(PullError::io(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Selects the files to download from all files of a repository. Shards are not among them: their index names them.
fn select_files(all: &[String]) -> Result<Vec<String>, String> {
    let has = |name: &str| all.iter().any(|file| file == name);
    let mut files: Vec<String> = SMALL_FILES.iter().filter(|name| has(name)).map(|name| (*name).to_owned()).collect();
    if !has("tokenizer.json") {
        files.extend(VOCABULARY.iter().filter(|name| has(name)).map(|name| (*name).to_owned()));
    }
    // Loading prefers the single file too.
    if has(SINGLE_WEIGHTS) {
        files.push(SINGLE_WEIGHTS.to_owned());
    } else if has(ShardIndex::FILE) {
        files.push(ShardIndex::FILE.to_owned());
    } else if !has("adapter_model.safetensors") {
        let gguf = all.iter().filter(|file| file.ends_with(".gguf"));
        let whole: Vec<String> = gguf.filter(|file| first_part(file).is_none()).cloned().collect();
        let first = all.iter().find_map(|file| first_part(file));
        return match (whole.as_slice(), first) {
            ([], None) => Err("the repository has no safetensors and no gguf file".to_owned()),
            ([], Some(first)) => Err(format!("the repository has gguf files in parts alone: {}", in_parts(&first))),
            ([file], _) => Ok(vec![file.clone()]),
            _ => Err(format!(
                "the repository has several gguf files: choose one as org/name:file from {}",
                whole.join(", ")
            )),
        };
    }
    Ok(files)
}

/// A repository on a reachable hub.
struct Hub {
    id: String,
    api: Api,
    repo: ApiRepo,
    downloader: Downloader,
    /// Directory of finished and unfinished downloads.
    parts: PathBuf,
}

impl Hub {
    fn open(id: &str, revision: &str, store: &Store, options: &PullOptions) -> Result<Self, PullError> {
        let failed = |reason: String| PullError::Hub { id: id.to_owned(), reason };
        // On the same disk as the weight cache, so a finished download is moved by a rename.
        let parts = store.partial().join("hub");
        // `hf-hub` itself downloads nothing, so its cache stays empty.
        let mut builder = ApiBuilder::from_cache(Cache::new(parts.clone())).with_token(options.token.clone());
        if let Some(endpoint) = &options.hub {
            // `hf-hub` appends paths that begin with a slash.
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = builder.build().map_err(|error| failed(error.to_string()))?;
        let repo = api.repo(model(id, revision));
        let downloader = Downloader::new(id, options.token.as_deref(), CONNECT_TIMEOUT);
        let hub = Self { id: id.to_owned(), repo, api, downloader, parts };
        hub.reach()?;
        Ok(hub)
    }

    /// Checks with a short timeout that the hub is reachable, because `hf-hub` itself waits as long as the
    /// operating system does. Any HTTP status counts, even a refusal, which the download then reports with its own
    /// message.
    fn reach(&self) -> Result<(), PullError> {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(CONNECT_TIMEOUT * 2))
            .max_redirects(0)
            .http_status_as_error(false)
            .build()
            .new_agent();
        let answer = agent.head(self.repo.url("config.json")).call();
        answer.map(drop).map_err(|error| self.failed(format!("cannot be reached: {error}")))
    }

    fn failed(&self, reason: impl Into<String>) -> PullError {
        PullError::Hub { id: self.id.clone(), reason: reason.into() }
    }

    /// Pins the repository to its current commit, and returns the files there and the commit's hash: a branch may move
    /// between two downloads.
    fn pinned(self) -> Result<(Self, Vec<String>, String), PullError> {
        let info = self.repo.info().map_err(|error| self.failed(error.to_string()))?;
        // The commit becomes part of URLs and paths.
        if info.sha.is_empty() || !info.sha.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(self.failed(format!("{:?} is not a commit hash", info.sha)));
        }
        let repo = self.api.repo(model(&self.id, &info.sha));
        let names = info.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok((Self { repo, ..self }, names, info.sha))
    }

    fn metadata(&self, name: &str) -> Result<Metadata, PullError> {
        self.api.metadata(&self.repo.url(name)).map_err(|error| self.failed(error.to_string()))
    }

    /// Downloads a file, or the rest of it, and returns its path.
    fn download(&self, name: &str, progress: &dyn Progress) -> Result<PathBuf, PullError> {
        let metadata = self.metadata(name)?;
        let size = metadata.size() as u64;
        fs::create_dir_all(&self.parts).map_err(PullError::io(&self.parts))?;
        let part = self.parts.join(part_name(metadata.etag()));
        let message = format!("downloading {name}");
        let heard = |done| progress.update(&message, done, Some(size));
        self.downloader.download(&self.repo.url(name), size, &part, &heard)?;
        Ok(part)
    }

    /// Unfinished downloads. Files are fetched one at a time, so at most one exists.
    fn parts(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(&self.parts).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.extension().is_some_and(|end| end == "part")).collect()
    }

    fn forget_parts(&self) -> Result<(), PullError> {
        self.parts().iter().try_for_each(|path| fs::remove_file(path).map_err(PullError::io(path)))
    }

    /// Downloads a file into the store, unless an interrupted pull already stored it. A resumed file with a wrong
    /// hash may have been wrong before the interruption, so it is downloaded once more from the beginning.
    fn take(&self, name: &str, file: &catalog::File, store: &Store, progress: &dyn Progress) -> Result<(), PullError> {
        if store.has(file, progress) {
            return Ok(());
        }
        let resumed = !self.parts().is_empty();
        let attempt = || {
            let blob = self.download(name, progress)?;
            store.take_file(file, &blob, &format!("hub {}", self.id), progress)
        };
        match attempt() {
            Err(PullError::Checksum { .. }) if resumed => attempt(),
            result => result,
        }
    }

    /// Downloads files without known hashes. If they are `pinned`, a file that differs from its record is refused.
    fn download_all(
        &self,
        names: &[String],
        pinned: bool,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Vec<catalog::File>, PullError> {
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(self.failed(format!("{name:?} is not a path that can be stored")));
        }
        let mut files = Vec::new();
        for name in names {
            let file = self.download_unknown(name, store, progress)?;
            if pinned {
                store.check_recorded(&file, &format!("hub {}", self.id))?;
            }
            files.push(file);
        }
        Ok(files)
    }

    /// Files that the downloaded index of shards names.
    fn shards(&self, store: &Store) -> Result<Vec<String>, PullError> {
        let index = ShardIndex::read(store.folder()).map_err(|error| self.failed(error.to_string()))?;
        let names = index.as_ref().map(ShardIndex::files).unwrap_or_default();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    /// Downloads a file without a known hash. The hub reports the SHA-256 of large files only.
    fn download_unknown(&self, name: &str, store: &Store, progress: &dyn Progress) -> Result<catalog::File, PullError> {
        let metadata = self.metadata(name)?;
        let path = name.to_owned();
        let size = metadata.size() as u64;
        if metadata.etag().len() == 64 {
            let file = catalog::File { path, size, sha256: metadata.etag().to_owned() };
            self.take(name, &file, store, progress)?;
            return Ok(file);
        }
        // A damaged partial file could not be detected, and a small file downloads quickly.
        self.forget_parts()?;
        let blob = self.download(name, progress)?;
        let file = catalog::File { path, size, sha256: digest(&blob)? };
        store.take_file(&file, &blob, &format!("hub {}", self.id), progress)?;
        Ok(file)
    }
}

fn model(id: &str, revision: &str) -> Repo {
    Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned())
}

/// Returns the name of the downloaded part of a file with this ETag: a hash, because the hub could send a path.
fn part_name(etag: &str) -> String {
    let hash: String = Sha256::digest(etag).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hash}.part")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn list(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    #[test]
    fn ids_are_told_from_paths() {
        assert_eq!(RepoId::parse("org/name").unwrap(), RepoId { repo: "org/name".to_owned(), file: None });
        assert_eq!(RepoId::parse("org/name:a/b.gguf").unwrap().file.as_deref(), Some("a/b.gguf"));
        for spec in ["name", "/org/name", "org/name/more", "../name", "org/name:../x", "org/na me", "org/"] {
            assert_eq!(RepoId::parse(spec), None, "{spec}");
        }
    }

    #[test]
    fn only_what_weights_consist_of_is_taken() {
        let all = list(&["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"]);
        assert_eq!(select_files(&all).unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let all = list(&["model-00001-of-00002.safetensors", "model.safetensors.index.json", "x/model-1.safetensors"]);
        assert_eq!(select_files(&all).unwrap(), ["model.safetensors.index.json"]);
        let all = list(&["model-00001-of-00001.safetensors", "model.safetensors", "model.safetensors.index.json"]);
        assert_eq!(select_files(&all).unwrap(), ["model.safetensors"]);
        let all = list(&["config.json", "model.safetensors", "tokenizer.model", "README.md", "added_tokens.json"]);
        let taken = ["config.json", "tokenizer.model", "added_tokens.json", "model.safetensors"];
        assert_eq!(select_files(&all).unwrap(), taken);
        assert_eq!(select_files(&list(&["a.gguf", "README.md"])).unwrap(), ["a.gguf"]);
        assert!(select_files(&list(&["a.gguf", "b.gguf"])).unwrap_err().contains("a.gguf, b.gguf"));
        assert!(select_files(&list(&["README.md"])).is_err());
    }

    #[test]
    fn parts_of_a_file_are_no_choice() {
        let parts = ["BF16/a-00001-of-00002.gguf", "BF16/a-00002-of-00002.gguf"];
        let all = [&parts[..], &["a-Q4_0.gguf", "a-Q8_0.gguf"]].concat();
        let refused = select_files(&list(&all)).unwrap_err();
        assert!(refused.ends_with("from a-Q4_0.gguf, a-Q8_0.gguf"), "{refused}");
        let command = "llama-gguf-split --merge BF16/a-00001-of-00002.gguf";
        let refused = select_files(&list(&parts)).unwrap_err();
        assert!(refused.contains(command), "{refused}");
        for part in parts {
            let refused = RepoId::parse(&format!("org/name:{part}")).unwrap().check().unwrap_err().to_string();
            assert!(refused.contains(part) && refused.contains(command), "{refused}");
        }
        RepoId::parse("org/name:a-Q4_0.gguf").unwrap().check().unwrap();
        RepoId::parse("org/name").unwrap().check().unwrap();
    }
}
