//! Weights from the model hub, by the `hf-hub` crate, which resumes broken downloads.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::store::{Store, digest};
use super::{Progress, PullError, PullOptions};
use crate::catalog::{self, is_plain};

/// How long the hub may take to be reached at all: a machine without access should go on to the next source soon.
const PATIENCE: Duration = Duration::from_secs(6);

/// A repository, and perhaps one file of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Id {
    repo: String,
    file: Option<String>,
}

impl Id {
    /// Reads `org/name` or `org/name:file`.
    pub(super) fn parse(spec: &str) -> Option<Self> {
        let (repo, file) = match spec.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (spec, None),
        };
        let sound = repo.matches('/').count() == 1 && is_plain(repo) && file.is_none_or(is_plain);
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
        (sound && repo.chars().all(allowed)).then(|| Self { repo: repo.to_owned(), file: file.map(str::to_owned) })
    }

    fn folder(&self) -> String {
        let repo = self.repo.replace('/', "--");
        self.file.as_ref().map_or(repo.clone(), |file| format!("{repo}--{}", file.replace('/', "--")))
    }
}

/// Fetches a repository that no catalog knows. Its large files are checked against the SHA-256 that the hub states.
pub(super) fn pull(
    id: &Id,
    cache: &Path,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    let store = Store::new(&cache.join("hub"), &id.folder());
    let place = |store: &Store| id.file.as_ref().map_or(store.folder().to_owned(), |file| store.path(file));
    if store.is_complete() {
        return Ok(place(&store));
    }
    let _lock = store.lock(progress)?;
    if store.is_complete() {
        return Ok(place(&store));
    }
    let hub = Hub::open(&id.repo, "main", &store, options)?;
    let (hub, names) = match &id.file {
        // One file is of one commit whatever the branch does.
        Some(file) => (hub, vec![file.clone()]),
        None => {
            let (hub, all) = hub.pinned()?;
            let names = choose(&all).map_err(|reason| hub.failed(reason))?;
            clear(&store, &names)?;
            (hub, names)
        }
    };
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return Err(hub.failed(format!("{name:?} is not a path that can be stored")));
    }
    let mut files = Vec::new();
    for name in &names {
        files.push(hub.download_unknown(name, &store, progress)?);
    }
    store.finish(&files)?;
    Ok(place(&store))
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

/// Small files that belong to weights, where a repository has them.
const SMALL: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "modules.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "policy.toml",
];
/// The weights in one piece.
const WHOLE: &str = "model.safetensors";
/// What says in which piece each tensor is.
const PIECES: &str = "model.safetensors.index.json";

/// Removes what an attempt that broke off has left of another commit and this one does not have: it would be read with the
/// rest. Pieces that no index names are not.
fn clear(store: &Store, names: &[String]) -> Result<(), PullError> {
    for name in SMALL.iter().chain(&[WHOLE, PIECES]).filter(|name| !names.iter().any(|kept| kept == *name)) {
        let path = store.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(PullError::io(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// The files that weights consist of, out of all that a repository has.
fn choose(all: &[String]) -> Result<Vec<String>, String> {
    let has = |name: &str| all.iter().any(|file| file == name);
    let mut files: Vec<String> = SMALL.iter().filter(|name| has(name)).map(|name| (*name).to_owned()).collect();
    let sharded = has(PIECES);
    let is_shard = |file: &str| file.starts_with("model-") && file.ends_with(".safetensors") && !file.contains('/');
    if sharded {
        files.push(PIECES.to_owned());
        files.extend(all.iter().filter(|file| is_shard(file)).cloned());
    } else if has(WHOLE) {
        files.push(WHOLE.to_owned());
    } else if !has("adapter_model.safetensors") {
        let gguf: Vec<String> = all.iter().filter(|file| file.ends_with(".gguf")).cloned().collect();
        return match gguf.as_slice() {
            [] => Err("it has no safetensors and no gguf file".to_owned()),
            [file] => Ok(vec![file.clone()]),
            _ => Err(format!("it has several gguf files; name one as org/name:file, of {}", gguf.join(", "))),
        };
    }
    Ok(files)
}

/// A repository that was reached.
struct Hub {
    id: String,
    api: Api,
    repo: ApiRepo,
    /// Where `hf-hub` keeps this repository's downloads, finished and not.
    blobs: PathBuf,
}

impl Hub {
    fn open(id: &str, revision: &str, store: &Store, options: &PullOptions) -> Result<Self, PullError> {
        let failed = |reason: String| PullError::Hub { id: id.to_owned(), reason };
        // Blobs arrive on the same disk as the cache, so that taking them in is a rename.
        let cache = store.partial().join("hub");
        let mut builder = ApiBuilder::from_cache(Cache::new(cache.clone()))
            .with_progress(false)
            .with_retries(2)
            .with_token(options.token.clone());
        if let Some(endpoint) = &options.hub {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|error| failed(error.to_string()))?;
        let repo = model(id, revision);
        let blobs = cache.join(repo.folder_name()).join("blobs");
        let hub = Self { id: id.to_owned(), repo: api.repo(repo), api, blobs };
        hub.reach()?;
        Ok(hub)
    }

    /// Finds out soon whether the hub can be reached: `hf-hub` itself waits for as long as the system does. Any answer
    /// will do, also a refusal, which the download then reports in its own words.
    fn reach(&self) -> Result<(), PullError> {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(PATIENCE))
            .timeout_global(Some(PATIENCE * 2))
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

    /// The same repository at the commit that it is at now, with the files it has there: a branch may move between one
    /// file and the next.
    fn pinned(self) -> Result<(Self, Vec<String>), PullError> {
        let info = self.repo.info().map_err(|error| self.failed(error.to_string()))?;
        // It becomes a part of addresses and of paths.
        if info.sha.is_empty() || !info.sha.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(self.failed(format!("{:?} is no commit", info.sha)));
        }
        let repo = self.api.repo(model(&self.id, &info.sha));
        Ok((Self { repo, ..self }, info.siblings.into_iter().map(|file| file.rfilename).collect()))
    }

    /// Downloads a file, or the rest of it, and returns where it lies.
    fn download(&self, name: &str, progress: &dyn Progress) -> Result<PathBuf, PullError> {
        let attempt = || {
            let listener = Listener { progress, message: format!("downloading {name}"), done: 0, total: None };
            self.repo.download_with_progress(name, listener)
        };
        let link = match attempt() {
            Err(error) if cannot_resume(&error) => {
                self.forget_parts()?;
                attempt()
            }
            result => result,
        };
        let link = link.map_err(|error| self.failed(error.to_string()))?;
        let blob = fs::canonicalize(&link).map_err(PullError::io(&link))?;
        if blob != link {
            // The link would be in the way of the next attempt once the blob is moved.
            fs::remove_file(&link).map_err(PullError::io(&link))?;
        }
        Ok(blob)
    }

    /// The unfinished files. They come one by one, so that is the one under way, if any.
    fn parts(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(&self.blobs).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.extension().is_some_and(|end| end == "part")).collect()
    }

    fn forget_parts(&self) -> Result<(), PullError> {
        self.parts().iter().try_for_each(|path| fs::remove_file(path).map_err(PullError::io(path)))
    }

    /// Downloads a file and takes it into the store, unless it is there from a pull that broke off. One that was resumed
    /// and is wrong may have been wrong before, so it is downloaded once more from its beginning.
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

    /// Downloads a file whose content nobody has promised, except that the hub names large ones by their SHA-256.
    fn download_unknown(&self, name: &str, store: &Store, progress: &dyn Progress) -> Result<catalog::File, PullError> {
        let metadata = self.api.metadata(&self.repo.url(name)).map_err(|error| self.failed(error.to_string()))?;
        let (path, size) = (name.to_owned(), metadata.size() as u64);
        if metadata.etag().len() == 64 {
            let file = catalog::File { path, size, sha256: metadata.etag().to_owned() };
            self.take(name, &file, store, progress)?;
            return Ok(file);
        }
        // Nothing would tell a damaged beginning, and a small file has soon come again.
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

/// True when the partial file itself is in the way: it is longer than the file, or just as long, so that the hub has no
/// rest to give. After any other error it can be resumed.
fn cannot_resume(error: &ApiError) -> bool {
    match error {
        ApiError::InvalidResume => true,
        ApiError::RequestError(error) => matches!(**error, ureq::Error::StatusCode(416)),
        ApiError::TooManyRetries(error) => cannot_resume(error),
        _ => false,
    }
}

struct Listener<'a> {
    progress: &'a dyn Progress,
    message: String,
    done: u64,
    total: Option<u64>,
}

impl hf_hub::api::Progress for Listener<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.done = 0;
        self.total = Some(size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.progress.update(&self.message, self.done, self.total);
    }

    fn finish(&mut self) {}
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
        assert_eq!(Id::parse("org/name").unwrap(), Id { repo: "org/name".to_owned(), file: None });
        assert_eq!(Id::parse("org/name:a/b.gguf").unwrap().file.as_deref(), Some("a/b.gguf"));
        for spec in ["name", "/org/name", "org/name/more", "../name", "org/name:../x", "org/na me", "org/"] {
            assert_eq!(Id::parse(spec), None, "{spec}");
        }
    }

    #[test]
    fn only_what_weights_consist_of_is_taken() {
        let all = list(&["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"]);
        assert_eq!(choose(&all).unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let all = list(&["model-00001-of-00002.safetensors", "model.safetensors.index.json", "x/model-1.safetensors"]);
        assert_eq!(choose(&all).unwrap(), ["model.safetensors.index.json", "model-00001-of-00002.safetensors"]);
        assert_eq!(choose(&list(&["a.gguf", "README.md"])).unwrap(), ["a.gguf"]);
        assert!(choose(&list(&["a.gguf", "b.gguf"])).unwrap_err().contains("a.gguf, b.gguf"));
        assert!(choose(&list(&["README.md"])).is_err());
    }
}
