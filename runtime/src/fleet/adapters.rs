//! Adapters of policies on engines elsewhere: each under a name and a path that are never used for other weights.
//!
//! vLLM's cache of a prefix depends on the adapter's name and path alone: weights replaced in place would be served
//! with cached keys and values of the old ones.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::json;
use tokio::task::spawn_blocking;
use waymark_engine::{EngineError, Lease, LoadedAdapter};
use waymark_models::AdapterSlot;

use super::FleetShared;
use super::engine::RemoteEngine;
use super::fault::{Fault, FaultKind};
use super::fingerprints::PolicyFingerprint;
use crate::config::EngineKind;

/// Files of an adapter.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// A published adapter.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RemoteAdapter {
    /// Name at the engines. It ends in the hash of the weights.
    pub(super) name: String,
    /// Directory, under the same path on this machine and at the engines.
    path: PathBuf,
    /// Fingerprint of the policy, if it has one.
    fingerprint: Option<PolicyFingerprint>,
}

/// Published adapters by generation.
#[derive(Debug, Default)]
pub(super) struct AdapterDirectory(Mutex<Published>);

#[derive(Debug, Default)]
struct Published {
    /// Generation of the last published adapter; 0 before the first.
    last: u64,
    adapters: HashMap<u64, RemoteAdapter>,
}

impl AdapterDirectory {
    fn insert(&self, adapter: RemoteAdapter) -> LoadedAdapter {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.last += 1;
        let generation = all.last;
        all.adapters.insert(generation, adapter);
        // Slots belong to the engine of this process. For engines elsewhere, the generation alone identifies an
        // adapter.
        LoadedAdapter { slot: AdapterSlot(u32::try_from(generation).unwrap_or(u32::MAX)), generation }
    }

    /// Removes a generation. Returns its adapter if no other generation has the same weights.
    fn remove(&self, generation: u64) -> Option<RemoteAdapter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let adapter = all.adapters.remove(&generation)?;
        let shared = all.adapters.values().any(|other| other.name == adapter.name);
        (!shared).then_some(adapter)
    }

    /// Returns a published adapter. `None` if it is no longer leased.
    pub(super) fn get(&self, adapter: LoadedAdapter) -> Option<RemoteAdapter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).adapters.get(&adapter.generation).cloned()
    }

    /// Sets the fingerprint of a leased adapter.
    pub(super) fn set_fingerprint(&self, adapter: LoadedAdapter, fingerprint: PolicyFingerprint) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(published) = all.adapters.get_mut(&adapter.generation) {
            published.fingerprint = Some(fingerprint);
        }
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).adapters.len()
    }
}

impl FleetShared {
    /// Publishes the adapter in `dir`, and loads it into every engine that takes requests. The others, and those that
    /// do not answer, load it before their next request that needs it.
    pub(super) async fn lease_adapter(self: &Arc<Self>, dir: PathBuf) -> Result<Lease, EngineError> {
        let refuse = |reason: String| EngineError::Adapter(reason);
        if let Some(engine) = self.engines.iter().find(|engine| engine.endpoint.address.kind == EngineKind::Waymark) {
            let url = engine.endpoint.url();
            return Err(refuse(format!("{}: engines of the kind `waymark` ({url}) load no adapters", dir.display())));
        }
        let Some(root) = self.adapter_root.clone() else {
            let message = "set --engine-adapters to a folder that the engines see under the same path";
            return Err(refuse(format!("{}: {message}", dir.display())));
        };
        let published = spawn_blocking(move || publish(&dir, &root)).await;
        let published = published.map_err(|error| refuse(error.to_string()))?;
        let adapter = published.map_err(|(path, error)| refuse(format!("{}: {error}", path.display())))?;
        let loaded = self.adapters.insert(adapter.clone());
        self.counters.adapters.set(self.adapters.len());
        // From here on, dropping the lease unloads the adapter, even if loading fails at one of the engines.
        let shared = Arc::clone(self);
        let lease = Lease::new(loaded, move |adapter| unload(&shared, adapter));
        for engine in self.engines.iter().filter(|engine| engine.is_usable()) {
            let Err(fault) = engine.load_adapter(&adapter).await else { continue };
            // Waiting does not help the engine to load it.
            if fault.kind == FaultKind::OtherAdapter {
                return Err(refuse(fault.to_string()));
            }
            tracing::warn!(error = %fault, adapter = adapter.name, "the adapter is loaded before the next request");
            self.note(engine, &fault);
        }
        Ok(lease)
    }
}

/// Unloads an adapter in the background, unless another policy has the same weights.
fn unload(fleet: &Arc<FleetShared>, adapter: LoadedAdapter) {
    let removed = fleet.adapters.remove(adapter.generation);
    fleet.counters.adapters.set(fleet.adapters.len());
    let (Some(adapter), Ok(runtime)) = (removed, tokio::runtime::Handle::try_current()) else { return };
    let engines = fleet.engines.clone();
    runtime.spawn(async move {
        for engine in engines {
            engine.unload_adapter(&adapter).await;
        }
    });
}

impl RemoteEngine {
    /// Loads an adapter, unless it is loaded already. Requests that arrive together share one load and its failure.
    pub(super) async fn load_adapter(&self, adapter: &RemoteAdapter) -> Result<(), Fault> {
        let begun = Instant::now();
        let mut state = self.adapters.lock(&adapter.name).await;
        if state.loaded {
            return Ok(());
        }
        // Another load may take as long to fail, and the requests would wait for one load after another.
        if let Some((_, fault)) = state.failed.as_ref().filter(|(failed, _)| *failed > begun) {
            return Err(fault.clone());
        }
        let result = self.load_checked(adapter).await;
        state.loaded = result.is_ok();
        state.failed = result.as_ref().err().map(|fault| (Instant::now(), fault.clone()));
        result
    }

    /// Loads an adapter, and compares its weights with the fingerprint of the policy.
    async fn load_checked(&self, adapter: &RemoteAdapter) -> Result<(), Fault> {
        let body = json!({"lora_name": adapter.name, "lora_path": adapter.path});
        match self.endpoint.tell("/v1/load_lora_adapter", &body).await {
            // Another replica of this server may have loaded the adapter; its name says that the weights are the same.
            Err(fault) if fault.kind == FaultKind::Refused && fault.message.contains("already been loaded") => {}
            // Another engine may see the folder, or be started with other options for adapters.
            result => result.map_err(|fault| fault.refused_as(FaultKind::OtherAdapter))?,
        }
        // A name proves nothing if other programs can load adapters too.
        if let Some(fingerprint) = &adapter.fingerprint
            && let Err(fault) = self.check_fingerprint(&adapter.name, fingerprint, FaultKind::OtherAdapter).await
        {
            self.tell_unload(&adapter.name).await;
            return Err(fault);
        }
        Ok(())
    }

    async fn unload_adapter(&self, adapter: &RemoteAdapter) {
        let mut state = self.adapters.lock(&adapter.name).await;
        // An adapter that was forgotten here may still be loaded at the engine.
        if mem::take(&mut state.loaded) || self.is_usable() {
            self.tell_unload(&adapter.name).await;
        }
        self.adapters.forget(&adapter.name);
    }

    async fn tell_unload(&self, name: &str) {
        match self.endpoint.tell("/v1/unload_lora_adapter", &json!({"lora_name": name})).await {
            Err(fault) if fault.kind != FaultKind::MissingModel => {
                tracing::warn!(error = %fault, adapter = name, "an adapter could not be unloaded");
            }
            _ => {}
        }
    }
}

/// Copies an adapter into a folder named by its hash.
fn publish(dir: &Path, root: &Path) -> Result<RemoteAdapter, (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    let mut hasher = blake3::Hasher::new();
    for name in FILES {
        let path = dir.join(name);
        let file = std::fs::File::open(&path).map_err(at(&path))?;
        let mut content = blake3::Hasher::new();
        content.update_reader(file).map_err(at(&path))?;
        hasher.update(name.as_bytes()).update(content.finalize().as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let stem = dir.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy());
    // The hash alone would be enough; the stem is for people who read the engine's log.
    let name = format!("{stem}@{}", &hash[..32]);
    let path = root.join(&hash[..32]);
    if !path.is_dir() {
        copy(dir, root, &path).map_err(at(&path))?;
    }
    Ok(RemoteAdapter { name, path, fingerprint: None })
}

/// Copies the files of an adapter, and publishes them by one rename.
fn copy(dir: &Path, root: &Path, path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(root)?;
    let unique = uuid::Uuid::now_v7().simple();
    // Unique, because replicas may publish the same adapter at the same time.
    let draft = root.join(format!(".{unique}"));
    std::fs::create_dir(&draft)?;
    let copied = FILES.iter().try_for_each(|name| std::fs::copy(dir.join(name), draft.join(name)).map(drop));
    let published = copied.and_then(|()| std::fs::rename(&draft, path));
    if published.is_err() {
        // Nothing reads the remains of a failed copy, so an error in removing them is ignored.
        let _ = std::fs::remove_dir_all(&draft);
        // Another replica may have published the same weights meanwhile.
        if path.is_dir() {
            return Ok(());
        }
    }
    published
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::super::endpoint::Endpoint;
    use super::*;
    use crate::trusted_roots::TrustedRoots;

    fn adapter(dir: &Path, weights: &str) -> PathBuf {
        let dir = dir.join("policy");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(FILES[0]), "{}").unwrap();
        std::fs::write(dir.join(FILES[1]), weights).unwrap();
        dir
    }

    #[test]
    fn other_weights_have_another_name_and_path() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("published");
        let first = publish(&adapter(temp.path(), "one"), &root).unwrap();
        assert_eq!(publish(&adapter(temp.path(), "one"), &root).unwrap(), first);
        let second = publish(&adapter(temp.path(), "two"), &root).unwrap();
        assert!(second.name != first.name && second.path != first.path);
        assert_eq!(std::fs::read_to_string(first.path.join(FILES[1])).unwrap(), "one", "not replaced in place");
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 2, "no drafts are left");
        assert!(publish(temp.path(), &root).is_err());
    }

    #[tokio::test]
    async fn requests_that_wait_for_a_load_share_its_failure() {
        let address = "vllm=http://127.0.0.1:1".parse().unwrap();
        let endpoint = Endpoint::new(address, None, &TrustedRoots::default(), Duration::from_secs(1)).unwrap();
        let engine = RemoteEngine::new(endpoint);
        let adapter = RemoteAdapter { name: "a".into(), path: PathBuf::new(), fingerprint: None };
        let mut loading = engine.adapters.lock("a").await;
        let mut waiting = std::pin::pin!(engine.load_adapter(&adapter));
        assert!(engine.adapters.is_busy("a") && !engine.adapters.is_busy("b"));
        assert!(futures::poll!(&mut waiting).is_pending());
        let fault = engine.endpoint.fault(FaultKind::Broken, "no reply");
        loading.failed = Some((Instant::now(), fault.clone()));
        drop(loading);
        assert_eq!(waiting.await, Err(fault));
        // A request that comes later tries again.
        assert_eq!(engine.load_adapter(&adapter).await.unwrap_err().kind, FaultKind::Unreachable);
        assert!(!engine.adapters.is_busy("a"));
    }

    #[test]
    fn weights_that_two_policies_share_are_kept_until_the_last_one() {
        let directory = AdapterDirectory::default();
        let adapter = RemoteAdapter { name: "a".into(), path: PathBuf::new(), fingerprint: None };
        let [first, second] = [directory.insert(adapter.clone()), directory.insert(adapter.clone())];
        assert_ne!(first.generation, second.generation);
        assert_eq!(directory.remove(first.generation), None);
        assert_eq!((directory.get(first), directory.get(second)), (None, Some(adapter.clone())));
        assert_eq!((directory.remove(second.generation), directory.len()), (Some(adapter), 0));
    }
}
