//! Keys as the server's state holds them.

use serde::{Deserialize, Serialize};

use super::key_id::KeyId;
use super::meter::KeyLimits;
use super::priority::RequestPriority;
use super::scope::Scope;
use super::secret::SecretError;
use super::store::KeyEntry;

/// Stored form of a key, without its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    hash: String,
    scopes: Vec<Scope>,
    limits: KeyLimits,
    priority: RequestPriority,
    private_cache: bool,
}

impl From<&KeyEntry> for KeyRecord {
    fn from(entry: &KeyEntry) -> Self {
        Self {
            hash: entry.digest.to_string(),
            scopes: entry.scopes.clone(),
            limits: entry.limits,
            priority: entry.priority,
            private_cache: entry.private_cache,
        }
    }
}

impl KeyRecord {
    /// Returns the key called `name`.
    ///
    /// # Errors
    /// If the hash is damaged.
    pub(crate) fn entry(self, name: &str) -> Result<KeyEntry, SecretError> {
        Ok(KeyEntry {
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
        let entry = KeyEntry { limits, private_cache: true, ..KeyEntry::of_environment(&secret) };
        let json = serde_json::to_string(&KeyRecord::from(&entry)).unwrap();
        assert!(!json.contains(&secret.reveal()[3..]), "{json}");
        let read = serde_json::from_str::<KeyRecord>(&json).unwrap().entry("environment").unwrap();
        assert_eq!(read.to_string(), entry.to_string());
    }
}
