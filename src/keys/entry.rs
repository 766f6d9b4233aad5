//! Entries of the set of keys.

use super::index_scope::IndexScope;
use super::key_id::KeyId;
use super::meter::KeyLimits;
use super::priority::RequestPriority;
use super::scope::Scope;
use super::secret::{Digest, Secret};

/// Stored form of an API key.
#[derive(Debug, Clone)]
pub struct KeyEntry {
    /// Name of the key.
    pub id: KeyId,
    /// Digest that identifies the key.
    pub digest: Digest,
    /// Scopes granted to the key.
    pub scopes: Vec<Scope>,
    /// Limits on requests made with the key.
    pub limits: KeyLimits,
    /// Priority of the key's requests, and the highest one that they may ask for.
    pub priority: RequestPriority,
    /// If `true`, the key shares no cached prefixes and no cached vectors of search queries with other keys.
    pub private_cache: bool,
    /// Indexes that the key may use.
    pub indexes: IndexScope,
}

/// Name of the key that comes from the environment.
const ENVIRONMENT: &str = "environment";

impl KeyEntry {
    /// Creates the key that comes from the environment. It has all scopes.
    pub fn of_environment(secret: &Secret) -> Self {
        Self {
            id: KeyId::new(ENVIRONMENT),
            digest: secret.digest(),
            scopes: Scope::ALL.to_vec(),
            limits: KeyLimits::default(),
            priority: RequestPriority::default(),
            private_cache: false,
            indexes: IndexScope::default(),
        }
    }
}
