//! The policies that are served, and where others come from while the server runs.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Mutex;

use super::error::{ApiError, Code};
use super::state::now;
use crate::agent::{AgentError, Base, Policy, Verbatim};
use crate::engine::{Engine, EngineError};

/// A policy and when it was loaded.
#[derive(Debug)]
pub struct Served {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The same weights without its protocol.
    pub verbatim: Arc<Policy>,
    /// Seconds since 1970.
    pub created: u64,
    /// Its folder under the root, if it was loaded from there while serving.
    pub directory: Option<String>,
}

impl Served {
    fn new(policy: Policy, directory: Option<String>) -> Arc<Served> {
        let verbatim = Arc::new(Verbatim::over(&policy));
        Arc::new(Served { policy: Arc::new(policy), verbatim, created: now(), directory })
    }
}

/// The policies that are served, in the order they were configured and loaded; the first is the default where one is
/// needed. Requests keep the one they have found, whatever takes its place.
#[derive(Debug)]
pub struct Policies(RwLock<Vec<Arc<Served>>>);

impl Policies {
    /// Policies loaded now.
    pub fn new(policies: Vec<Policy>) -> Self {
        Self(RwLock::new(policies.into_iter().map(|policy| Served::new(policy, None)).collect()))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// 404 with what there is.
    pub fn get(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let policies = self.0.read().unwrap_or_else(PoisonError::into_inner);
        policies.iter().find(|served| served.policy.name == name).cloned().ok_or_else(|| {
            let known: Vec<_> = policies.iter().map(|served| served.policy.name.as_str()).collect();
            let message = format!("the model `{name}` does not exist: there is {}", known.join(", "));
            ApiError::new(Code::ModelNotFound, message).with_param("model")
        })
    }

    /// The policy called `name`, or the first one.
    ///
    /// # Errors
    /// 404 when there is no such policy, or none at all.
    pub fn get_or_first(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        match name {
            Some(name) => self.get(name),
            None => self
                .all()
                .into_iter()
                .next()
                .ok_or_else(|| ApiError::new(Code::ModelNotFound, "no model is served").with_param("model")),
        }
    }

    /// Serves a policy, in the place of the one with its name if there is one; whether there was.
    fn put(&self, served: Arc<Served>) -> bool {
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

    /// Serves `new` in the place of `old`.
    ///
    /// # Errors
    /// Why not: another has taken the place of `old`, or has the name of `new`.
    fn swap(&self, old: &Arc<Served>, new: Arc<Served>) -> Result<(), &'static str> {
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let same = |other: &Arc<Served>| Arc::ptr_eq(other, old);
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

    /// Reads every policy again that was read from a directory, its adapter included. Requests that run go on with what
    /// they began with. A policy stays as it was where it cannot be read, and where nothing in its files has changed: its
    /// cached prefixes and the replays of its traces with it.
    pub(super) async fn reload(&self, engine: &Engine, base: &Base) {
        for old in self.all() {
            let Some(dir) = &old.policy.dir else { continue };
            let name = &old.policy.name;
            match self.renew(&old, dir, engine, base).await {
                Ok(true) => tracing::info!(policy = name, "policy read again"),
                Ok(false) => tracing::info!(policy = name, "policy has not changed"),
                Err(error) => tracing::error!(policy = name, error, "policy stays as it was"),
            }
        }
    }

    /// Serves what is in `dir` now in the place of `old`, unless it is the same; whether it did.
    ///
    /// # Errors
    /// Why it cannot be served.
    async fn renew(&self, old: &Arc<Served>, dir: &Path, engine: &Engine, base: &Base) -> Result<bool, String> {
        let read = Policy::inspect(dir).await.map_err(|error| error.to_string())?;
        if read.contents == old.policy.contents {
            return Ok(false);
        }
        let new = read.engage(engine, base).await.map_err(|error| error.to_string())?;
        self.swap(old, Served::new(new, old.directory.clone()))?;
        Ok(true)
    }

    /// Serves a policy no longer.
    fn remove(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let served = self.get(name)?;
        let mut policies = self.0.write().unwrap_or_else(PoisonError::into_inner);
        policies.retain(|other| !Arc::ptr_eq(other, &served));
        Ok(served)
    }
}

/// A folder of policy directories from which policies are loaded while serving.
#[derive(Debug)]
pub struct PolicyStore {
    /// An absolute path without links.
    root: PathBuf,
    /// One policy is loaded at a time, so that of two requests for one name the later one counts.
    turn: Mutex<()>,
}

impl PolicyStore {
    /// Policies of `root`, an absolute path without links.
    pub fn new(root: PathBuf) -> PolicyStore {
        PolicyStore { root, turn: Mutex::default() }
    }

    /// Loads the policy in the folder `directory`, over the base model `base`, and serves it; also
    /// whether it took another's place.
    pub(super) async fn load(
        &self,
        directory: &str,
        policies: &Policies,
        engine: &Engine,
        base: &Base,
    ) -> Result<(Arc<Served>, bool), ApiError> {
        let _turn = self.turn.lock().await;
        let policy = Policy::load(&self.folder(directory)?, engine, base).await.map_err(refusal)?;
        let served = Served::new(policy, Some(directory.to_owned()));
        let replaced = policies.put(Arc::clone(&served));
        tracing::info!(policy = served.policy.name, directory, replaced, "policy loaded");
        Ok((served, replaced))
    }

    /// Serves a policy no longer. Requests that run with it go on to their end.
    pub(super) async fn unload(&self, name: &str, policies: &Policies) -> Result<Arc<Served>, ApiError> {
        let _turn = self.turn.lock().await;
        let served = policies.remove(name)?;
        tracing::info!(policy = name, "policy unloaded");
        Ok(served)
    }

    /// A folder below the root; nothing leads out of it.
    fn folder(&self, directory: &str) -> Result<PathBuf, ApiError> {
        let refuse = |reason: &str| ApiError::invalid("directory", format!("`directory` {directory:?}: {reason}"));
        let path = Path::new(directory);
        if directory.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refuse("name a folder below the server's `--policy-root`, without `..`"));
        }
        match self.root.join(path).canonicalize() {
            Ok(folder) if folder.starts_with(&self.root) && folder.is_dir() => Ok(folder),
            Ok(_) => Err(refuse("it is no folder below the server's `--policy-root`")),
            Err(error) => Err(refuse(&error.to_string())),
        }
    }
}

/// What is wrong with a policy directory is for its author to mend.
fn refusal(error: AgentError) -> ApiError {
    match error {
        AgentError::Policy { .. } | AgentError::Option { .. } | AgentError::Unshown { .. } | AgentError::Text(_) => {
            ApiError::invalid("directory", error.to_string())
        }
        AgentError::Engine(EngineError::Adapter(_)) => ApiError::invalid("directory", error.to_string()),
        error => error.into(),
    }
}
