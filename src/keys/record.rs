//! Keys as the server's state holds them.

use serde::{Deserialize, Serialize};

use super::entry::KeyEntry;
use super::index_scope::{IndexScope, IndexScopeError};
use super::key_id::KeyId;
use super::meter::KeyLimits;
use super::priority::RequestPriority;
use super::scope::Scope;
use super::secret::SecretError;

/// Error reading a stored key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyRecordError {
    /// The hash is damaged.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The names of indexes are damaged.
    #[error(transparent)]
    Indexes(#[from] IndexScopeError),
}

/// Stored form of a key, without its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    hash: String,
    scopes: Vec<Scope>,
    limits: KeyLimits,
    priority: RequestPriority,
    private_cache: bool,
    /// Names of the indexes that the key is limited to. `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    indexes: Option<Vec<String>>,
}

impl From<&KeyEntry> for KeyRecord {
    fn from(entry: &KeyEntry) -> Self {
        Self {
            hash: entry.digest.to_string(),
            scopes: entry.scopes.clone(),
            limits: entry.limits,
            priority: entry.priority,
            private_cache: entry.private_cache,
            indexes: entry.indexes.names().map(<[String]>::to_vec),
        }
    }
}

impl KeyRecord {
    /// Returns the key called `name`.
    ///
    /// # Errors
    /// If the hash or the names of indexes are damaged.
    pub(crate) fn entry(self, name: &str) -> Result<KeyEntry, KeyRecordError> {
        Ok(KeyEntry {
            // A damaged limit must not turn into no limit.
            indexes: IndexScope::new(self.indexes, &self.scopes)?,
            id: KeyId::new(name),
            digest: self.hash.parse()?,
            scopes: self.scopes,
            limits: self.limits,
            priority: self.priority,
            private_cache: self.private_cache,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::secret::Secret;
    use super::*;

    #[test]
    fn what_is_recorded_is_the_key_without_its_secret() {
        let secret = Secret::generate();
        let limits = KeyLimits { concurrent: Some(3), ..KeyLimits::default() };
        let scopes = vec![Scope::Infer];
        let indexes = IndexScope::new(Some(vec!["law".to_owned()]), &scopes).unwrap();
        let entry = KeyEntry { limits, scopes, indexes, private_cache: true, ..KeyEntry::of_environment(&secret) };
        let json = serde_json::to_string(&KeyRecord::from(&entry)).unwrap();
        assert!(!json.contains(&secret.reveal()[3..]), "{json}");
        let read = serde_json::from_str::<KeyRecord>(&json).unwrap().entry("environment").unwrap();
        assert_eq!(read.to_string(), entry.to_string());
    }
}
