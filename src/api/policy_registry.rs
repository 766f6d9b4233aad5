//! Registry of the served policies, and the directory from which policies are loaded at run time.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use waymark_agent::{AgentError, LoadedBase, Policy, Verbatim};
use waymark_engine::EngineError;
use waymark_runtime::fleet::TokenSource;

use super::error::{ApiError, Code};
use super::records::{Records, Unwritten};
use super::state::now;
use crate::store::{RecordKey, RecordKind, RecordOrder, RecordRange};

/// Maximum number of recorded policies.
const MAX_RECORDED: usize = 1000;

/// Served policy and its metadata.
#[derive(Debug)]
pub struct ServedPolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Same weights without the protocol, for verbatim completions.
    pub verbatim: Arc<Policy>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Directory below the root, if the policy was loaded from there at run time.
    pub directory: Option<String>,
    /// Directory that a reload reads: that of the policy, or that of a family which recommends the policy. `None` for
    /// policies without a directory.
    given: Option<PathBuf>,
}

impl ServedPolicy {
    fn new(policy: Policy, directory: Option<String>, given: Option<PathBuf>) -> Arc<ServedPolicy> {
        let verbatim = Arc::new(Verbatim::over(&policy));
        Arc::new(ServedPolicy { policy: Arc::new(policy), verbatim, created: now(), directory, given })
    }
}

/// Served policies in the order they were configured and loaded; the first one is the default. Requests keep the policy
/// they looked up, even if it is replaced.
#[derive(Debug)]
pub struct PolicyRegistry(RwLock<Vec<Arc<ServedPolicy>>>);

impl PolicyRegistry {
    /// Creates a registry of policies loaded at startup.
    pub fn new(policies: Vec<Policy>) -> Self {
        Self::given_in(policies, &[])
    }

    /// Creates a registry of policies loaded at startup from the directories `dirs`, some of which may be families.
    pub fn given_in(policies: Vec<Policy>, dirs: &[PathBuf]) -> Self {
        let served = policies.into_iter().map(|policy| {
            let given = policy.dir.as_deref().map(|dir| given_dir(dir, dirs).to_owned());
            ServedPolicy::new(policy, None, given)
        });
        Self(RwLock::new(served.collect()))
    }

    /// Returns all policies.
    pub fn all(&self) -> Vec<Arc<ServedPolicy>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the policy `name`.
    ///
    /// # Errors
    /// 404 with the names of the known policies.
    pub fn get(&self, name: &str) -> Result<Arc<ServedPolicy>, ApiError> {
        let policies = self.0.read().unwrap_or_else(PoisonError::into_inner);
        policies.iter().find(|served| served.policy.name == name).cloned().ok_or_else(|| {
            let known: Vec<_> = policies.iter().map(|served| served.policy.name.as_str()).collect();
            let message = format!("the model `{name}` does not exist: expected one of {}", known.join(", "));
            ApiError::new(Code::ModelNotFound, message).with_param("model")
        })
    }

    /// Returns the first policy.
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn first(&self) -> Result<Arc<ServedPolicy>, ApiError> {
        let none = || ApiError::new(Code::ModelNotFound, "no model is served").with_param("model");
        self.all().into_iter().next().ok_or_else(none)
    }

    /// Adds a policy, or replaces the one with the same name. Returns `true` if one was replaced.
    fn put(&self, served: Arc<ServedPolicy>) -> bool {
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match policies.iter_mut().find(|other| other.policy.name == served.policy.name) {
            Some(place) => {
                *place = served;
                true
            }
            None => {
                policies.push(served);
                false
            }
        }
    }

    /// Replaces `old` with `new`.
    ///
    /// # Errors
    /// If `old` was replaced or unloaded meanwhile, or if another policy has the name of `new`.
    fn swap(&self, old: &Arc<ServedPolicy>, new: Arc<ServedPolicy>) -> Result<(), &'static str> {
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // By identity rather than by name: `old` may have been replaced meanwhile.
        let same = |other: &Arc<ServedPolicy>| Arc::ptr_eq(other, old);
        if policies.iter().any(|other| other.policy.name == new.policy.name && !same(other)) {
            return Err("another policy has its new name");
        }
        match policies.iter_mut().find(|other| same(other)) {
            Some(place) => {
                *place = new;
                Ok(())
            }
            None => Err("it was replaced or unloaded meanwhile"),
        }
    }

    /// Reloads all policies that were read from a directory, including their adapters. Running requests keep their
    /// policy. A policy is not touched if it cannot be read, or if its files have not changed, so its cached
    /// prefixes and the replays of its traces stay valid. The files of a policy that was loaded from `store` must still
    /// be below its root.
    pub(super) async fn reload(&self, engine: &TokenSource, base: &LoadedBase, store: Option<&PolicyStore>) {
        for old in self.all() {
            let Some(dir) = &old.given else { continue };
            let name = &old.policy.name;
            // Policies given at startup may be anywhere.
            let root = store.filter(|_| old.directory.is_some()).map(|store| store.root.as_path());
            match self.renew(&old, dir, root, engine, base).await {
                Ok(true) => tracing::info!(policy = name, "policy reloaded"),
                Ok(false) => tracing::info!(policy = name, "policy has not changed"),
                Err(error) => tracing::error!(policy = name, error, "policy reload failed: keeping the old one"),
            }
        }
    }

    /// Replaces `old` with the policy that `dir` stands for, whose files must be below `root`, unless the files are
    /// identical. Returns `true` if the policy was replaced.
    ///
    /// # Errors
    /// If the policy cannot be loaded.
    async fn renew(
        &self,
        old: &Arc<ServedPolicy>,
        dir: &Path,
        root: Option<&Path>,
        engine: &TokenSource,
        base: &LoadedBase,
    ) -> Result<bool, String> {
        let read = Policy::inspect(dir, root).await.map_err(|error| error.to_string())?;
        // Equal content hashes: replacing the policy would only invalidate its caches.
        if read.content_hash == old.policy.content_hash {
            return Ok(false);
        }
        let new = read.engage(engine, base).await.map_err(|error| error.to_string())?;
        self.swap(old, ServedPolicy::new(new, old.directory.clone(), Some(dir.to_owned())))?;
        Ok(true)
    }

    /// Removes a policy.
    fn remove(&self, name: &str) -> Result<Arc<ServedPolicy>, ApiError> {
        let served = self.get(name)?;
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // By identity rather than by name: the policy may have been replaced since the lookup.
        policies.retain(|other| !Arc::ptr_eq(other, &served));
        Ok(served)
    }
}

/// Returns the directory of `dirs` that stands for the policy in `dir`: `dir` itself, or its family. Without either,
/// returns `dir`.
fn given_dir<'d>(dir: &'d Path, dirs: &'d [PathBuf]) -> &'d Path {
    // A member that is given by itself stays, whatever its family recommends.
    if dirs.iter().any(|given| given == dir) {
        return dir;
    }
    dirs.iter().map(PathBuf::as_path).find(|given| dir.parent() == Some(*given)).unwrap_or(dir)
}

/// Recorded policy, which is loaded again when the server starts.
#[derive(Debug, Serialize, Deserialize)]
struct PolicyRecord {
    /// Directory below the root.
    directory: String,
}

impl PolicyRecord {
    /// Returns the key of the policy `name`. Policies belong to the server, not to the key that loaded them.
    fn key(name: &str) -> RecordKey {
        RecordKey::new(RecordKind::Policy, None, name)
    }

    /// Removes the record of `served`, and those of its directory under names that are served no more: a reload may have
    /// renamed the policy.
    ///
    /// # Errors
    /// 503 if the state cannot be read or written.
    async fn forget(served: &ServedPolicy, records: &Records, policies: &PolicyRegistry) -> Result<(), ApiError> {
        if let Some(directory) = &served.directory {
            let recorded = records.list::<PolicyRecord>(&PolicyRecord::range()).await?;
            for record in recorded.into_iter().filter(|record| record.value.directory == *directory) {
                if policies.get(&record.id).is_err() {
                    records.remove(&PolicyRecord::key(&record.id)).await?;
                }
            }
        }
        records.remove(&PolicyRecord::key(&served.policy.name)).await?;
        Ok(())
    }

    /// Returns the range of all recorded policies.
    fn range() -> RecordRange {
        RecordRange { order: RecordOrder::Ascending, ..RecordRange::youngest(RecordKind::Policy, None, MAX_RECORDED) }
    }
}

/// Result of loading a policy at run time.
#[derive(Debug)]
pub(super) struct LoadedPolicy {
    /// The policy, which is served.
    pub(super) served: Arc<ServedPolicy>,
    /// If `true`, it replaced another policy with the same name.
    pub(super) replaced: bool,
    /// Error if the policy could not be recorded.
    pub(super) recorded: Result<(), Unwritten>,
}

/// Directory of policy directories, from which policies are loaded at run time.
#[derive(Debug)]
pub struct PolicyStore {
    /// Absolute path without symbolic links.
    root: PathBuf,
    /// Held while a policy is loaded or unloaded and its record changed, so of two requests for the same name the
    /// later one wins, and the records are those of the served policies.
    turn: Mutex<()>,
}

impl PolicyStore {
    /// Creates a store of the policies in `root`, an absolute path without symbolic links.
    pub fn new(root: PathBuf) -> PolicyStore {
        PolicyStore { root, turn: Mutex::default() }
    }

    /// Loads the policy in `directory` over the base model `base`, adds it to `policies`, and records it in `records`
    /// for the next start.
    pub(super) async fn load(
        &self,
        directory: &str,
        records: &Records,
        policies: &PolicyRegistry,
        engine: &TokenSource,
        base: &LoadedBase,
    ) -> Result<LoadedPolicy, ApiError> {
        let _turn = self.turn.lock().await;
        let (served, replaced) = self.serve(directory, policies, engine, base).await?;
        let record = PolicyRecord { directory: directory.to_owned() };
        // Recorded once it is loaded, so no restart tries a folder that never was a policy.
        let recorded = records.put(PolicyRecord::key(&served.policy.name), record).await;
        Ok(LoadedPolicy { served, replaced, recorded })
    }

    /// Loads the policy in `directory` and adds it to `policies`. Also returns `true` if it replaced another policy.
    /// The caller holds the turn.
    async fn serve(
        &self,
        directory: &str,
        policies: &PolicyRegistry,
        engine: &TokenSource,
        base: &LoadedBase,
    ) -> Result<(Arc<ServedPolicy>, bool), ApiError> {
        let folder = self.folder(directory)?;
        let read = Policy::inspect(&folder, Some(&self.root)).await.map_err(refusal)?;
        let policy = read.engage(engine, base).await.map_err(refusal)?;
        let served = ServedPolicy::new(policy, Some(directory.to_owned()), Some(folder));
        let replaced = policies.put(Arc::clone(&served));
        tracing::info!(policy = served.policy.name, directory, replaced, "policy loaded");
        Ok((served, replaced))
    }

    /// Loads the policies that are recorded in `records`. Those that cannot be loaded are logged, and stay recorded.
    pub(super) async fn restore(
        &self,
        records: &Records,
        policies: &PolicyRegistry,
        engine: &TokenSource,
        base: &LoadedBase,
    ) {
        let recorded = match records.list::<PolicyRecord>(&PolicyRecord::range()).await {
            Ok(recorded) => recorded,
            // Logged where it failed.
            Err(_) => return,
        };
        let _turn = self.turn.lock().await;
        for record in recorded {
            let directory = &record.value.directory;
            if let Err(error) = self.serve(directory, policies, engine, base).await {
                tracing::error!(policy = record.id, directory, error = error.message, "cannot load a recorded policy");
            }
        }
    }

    /// Unloads a policy, and removes its record from `records`. Running requests keep it to their end.
    pub(super) async fn unload(
        &self,
        name: &str,
        records: &Records,
        policies: &PolicyRegistry,
    ) -> Result<Arc<ServedPolicy>, ApiError> {
        let _turn = self.turn.lock().await;
        let served = policies.get(name)?;
        // Removed from the records first, so an unloaded policy does not come back with the next start.
        PolicyRecord::forget(&served, records, policies).await?;
        let served = policies.remove(name)?;
        tracing::info!(policy = name, "policy unloaded");
        Ok(served)
    }

    /// Resolves a directory below the root. Paths that lead out of the root are refused.
    fn folder(&self, directory: &str) -> Result<PathBuf, ApiError> {
        let refuse = |reason: &str| ApiError::invalid("directory", format!("`directory` {directory:?}: {reason}"));
        let path = Path::new(directory);
        if directory.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refuse("give a directory below the server's `--policy-root`, without `..`"));
        }
        // Symbolic links are resolved, so none leads out of the root.
        match self.root.join(path).canonicalize() {
            Ok(folder) if folder.starts_with(&self.root) && folder.is_dir() => Ok(folder),
            Ok(_) => Err(refuse("not a directory below the server's `--policy-root`")),
            Err(error) => Err(refuse(&error.to_string())),
        }
    }
}

/// Converts a load error. Errors in the policy directory are the client's, since its author has to fix them.
fn refusal(error: AgentError) -> ApiError {
    match error {
        AgentError::Policy { .. }
        | AgentError::Option { .. }
        | AgentError::TriplesNotShown { .. }
        | AgentError::Text(_) => ApiError::invalid("directory", error.to_string()),
        AgentError::Engine(EngineError::Adapter(_)) => ApiError::invalid("directory", error.to_string()),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_stands_for_its_member_unless_the_member_is_given() {
        for (dirs, expected) in [
            (vec!["a"], "a"),
            (vec!["a/"], "a"),
            (vec!["a", "a/b"], "a/b"),
            (vec!["c", "a/b/c"], "a/b"),
            (vec![], "a/b"),
        ] {
            let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
            assert_eq!(given_dir(Path::new("a/b"), &dirs), Path::new(expected), "{dirs:?}");
        }
    }
}
