//! Loading of policies into an engine.

use std::path::Path;
use std::sync::Arc;

use super::AgentError;
use super::content_hash::{check_adapter_below, check_below, content_hash};
use super::generator::SessionSource;
use super::loaded_base::LoadedBase;
use super::policy::Policy;
use super::policy_family::{FAMILY, FILE, member_dir};

/// Checks that the policy's file, and the family's file if there is one, are below `root`.
fn check_file_below(root: &Path, dir: &Path) -> Result<(), AgentError> {
    let family = dir.join(FAMILY);
    // `symlink_metadata` also finds a link without a target, which is then refused.
    if family.symlink_metadata().is_ok() {
        check_below(root, &family)?;
    }
    check_below(root, &member_dir(dir)?.join(FILE))
}

impl Policy {
    /// Reads a policy directory and loads its adapter into `engine`, whose base model is `base`.
    ///
    /// # Errors
    /// Same as [`open`](Self::open); [`AgentError::Policy`] when the policy belongs to another base model, or when the
    /// weights of a remote engine do not match the policy's fingerprint; [`AgentError::Engine`] when the adapter does
    /// not fit.
    pub async fn load(dir: &Path, engine: &impl SessionSource, base: &LoadedBase) -> Result<Policy, AgentError> {
        Policy::inspect(dir, None).await?.engage(engine, base).await
    }

    /// Reads a policy directory and hashes its files, without loading the adapter. With a `root`, an absolute path without
    /// symbolic links, every file must be below it.
    ///
    /// # Errors
    /// Same as [`open`](Self::open), when the adapter's files cannot be read, and when a file is not below the root; such
    /// a file is not read.
    pub async fn inspect(dir: &Path, root: Option<&Path>) -> Result<Policy, AgentError> {
        let dir = dir.to_owned();
        let root = root.map(Path::to_owned);
        // An adapter may be large, and its disk slow.
        let read = tokio::task::spawn_blocking(move || -> Result<Policy, AgentError> {
            if let Some(root) = &root {
                check_file_below(root, &dir)?;
            }
            let (policy, text) = Policy::read(&dir)?;
            if let (Some(root), Some(adapter)) = (&root, &policy.adapter_dir) {
                check_adapter_below(root, adapter)?;
            }
            // Hashed before the engine reads the files: if they change in between, the next hash differs.
            let hash = content_hash(&text, policy.adapter_dir.as_deref())?;
            Ok(Policy { content_hash: Some(hash), ..policy })
        });
        read.await.map_err(|_| AgentError::Panicked)?
    }

    /// Loads the adapter of an inspected policy into `engine`.
    ///
    /// # Errors
    /// Same as [`load`](Self::load), except the errors of reading the directory.
    pub async fn engage(mut self, engine: &impl SessionSource, base: &LoadedBase) -> Result<Policy, AgentError> {
        let path = self.dir.as_deref().unwrap_or(Path::new("")).join(FILE);
        // Checked before loading: the shapes of an adapter may fit another base model.
        if let Some(reason) = base.mismatch(&self) {
            return Err(AgentError::Policy { path, reason });
        }
        if let Some(adapter) = self.adapter_dir.clone() {
            self.lease = Some(engine.lease_adapter(adapter).await?);
        }
        if let Some(fingerprint) = &self.fingerprint {
            let checked = engine.check_fingerprint(&self.name, self.adapter(), Arc::clone(fingerprint)).await;
            checked.map_err(|failure| AgentError::Policy { path, reason: failure.to_string() })?;
        }
        Ok(self)
    }
}
