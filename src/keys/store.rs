//! Set of known API keys.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::Serialize;
use utoipa::ToSchema;

use super::entry::KeyEntry;
use super::file::{self, FileError};
use super::key_id::KeyId;
use super::meter::Meter;
use super::secret::Digest;

/// Error loading the keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file of keys cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two keys have the same name.
    #[error("two keys have the name `{0}`")]
    Name(KeyId),
    /// Two names stand for the same key.
    #[error("`{0}` and `{1}` are the same key")]
    Same(KeyId, KeyId),
}

/// Summary of a reload of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of keys known now.
    pub known: usize,
    /// Number of keys that were not known before.
    pub added: usize,
    /// Number of keys that are no longer known. Requests running with them continue to their end.
    pub removed: usize,
}

/// Keys of a server; clones share them. Without any, every caller may use every route.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys(Option<Arc<SharedKeys>>);

#[derive(Debug)]
struct SharedKeys {
    file: Option<PathBuf>,
    sources: Mutex<KeySources>,
    ring: RwLock<Arc<Vec<Arc<KnownKey>>>>,
}

/// Keys by the place they come from.
#[derive(Debug, Clone, Default)]
struct KeySources {
    listed: Vec<KeyEntry>,
    fixed: Vec<KeyEntry>,
    stored: Vec<KeyEntry>,
}

/// Place that a key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// File of `--api-keys`.
    File,
    /// Flag or variable of `--api-key`.
    Flag,
    /// The server's state: created over HTTP.
    State,
}

/// Known key and its current usage.
#[derive(Debug)]
pub(crate) struct KnownKey {
    pub(crate) entry: KeyEntry,
    pub(crate) meter: Arc<Meter>,
}

impl ApiKeys {
    /// Loads the keys in `file` and adds the `fixed` ones.
    ///
    /// # Errors
    /// If the file cannot be read, or if two keys have the same name or the same digest.
    pub fn open(file: Option<&Path>, fixed: Vec<KeyEntry>) -> Result<Self, KeysError> {
        let listed = file.map(file::read).transpose()?.unwrap_or_default();
        let sources = KeySources { listed, fixed, stored: Vec::new() };
        let ring = RwLock::new(Arc::new(sources.ring(&[])?));
        let file = file.map(Path::to_owned);
        Ok(Self(Some(Arc::new(SharedKeys { file, sources: Mutex::new(sources), ring }))))
    }

    /// Returns `true` if requests need a key.
    pub fn required(&self) -> bool {
        self.0.is_some()
    }

    /// Returns `true` if there is more than one key.
    pub(crate) fn several(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.current().len() > 1)
    }

    /// Reloads the file. A key whose name was known before keeps its usage. If the reload fails, the old keys stay in
    /// place.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn reload(&self) -> Result<Reloaded, KeysError> {
        let Some(shared) = &self.0 else { return Ok(Reloaded { known: 0, added: 0, removed: 0 }) };
        // Read outside the lock, so no request waits for the file.
        let listed = shared.file.as_deref().map(file::read).transpose()?.unwrap_or_default();
        shared.change(|sources| sources.listed = listed)
    }

    /// Replaces the keys that come from the server's state. A key is left out if a key from another source has the same
    /// name or digest.
    ///
    /// # Errors
    /// If two of the keys have the same name or the same digest. The old keys then stay in place.
    pub(crate) fn set_stored(&self, stored: Vec<KeyEntry>) -> Result<(), KeysError> {
        let Some(shared) = &self.0 else { return Ok(()) };
        shared.change(|sources| sources.stored = stored).map(|_| ())
    }

    /// Returns all keys with the places they come from.
    pub(crate) fn list(&self) -> Vec<(KeySource, KeyEntry)> {
        let Some(shared) = &self.0 else { return Vec::new() };
        let sources = shared.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stored = sources.accepted();
        let of = |source: KeySource| move |entry: KeyEntry| (source, entry);
        let own = sources.listed.into_iter().map(of(KeySource::File));
        own.chain(sources.fixed.into_iter().map(of(KeySource::Flag)))
            .chain(stored.into_iter().map(of(KeySource::State)))
            .collect()
    }

    /// Returns the key that a client sent, if it is known. Takes the same time for known and unknown keys.
    pub(crate) fn find(&self, sent: &[u8]) -> Option<Arc<KnownKey>> {
        let digest = Digest::of(sent);
        let ring = self.0.as_ref()?.current();
        // The fold compares all keys instead of stopping at a match, so the time taken reveals nothing.
        ring.iter()
            .fold(None, |found, known| if known.entry.digest == digest { Some(Arc::clone(known)) } else { found })
    }
}

impl SharedKeys {
    /// Changes the sources, and publishes the keys. If they contradict each other, nothing changes.
    fn change(&self, change: impl FnOnce(&mut KeySources)) -> Result<Reloaded, KeysError> {
        // Held until the keys are published, so of two changes the later one is in effect.
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = sources.clone();
        change(&mut changed);
        let before = self.current();
        let now = changed.ring(&before)?;
        *sources = changed;
        let missing = |these: &[Arc<KnownKey>], there: &[Arc<KnownKey>]| {
            these.iter().filter(|key| !there.iter().any(|other| other.entry.digest == key.entry.digest)).count()
        };
        let reloaded = Reloaded { known: now.len(), added: missing(&now, &before), removed: missing(&before, &now) };
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        Ok(reloaded)
    }

    fn current(&self) -> Arc<Vec<Arc<KnownKey>>> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeySources {
    /// Returns the stored keys that contradict no other ones.
    fn accepted(&self) -> Vec<KeyEntry> {
        let others = || self.listed.iter().chain(&self.fixed);
        let fits = |entry: &&KeyEntry| !others().any(|other| other.id == entry.id || other.digest == entry.digest);
        self.stored.iter().filter(fits).cloned().collect()
    }

    /// Collects the keys, reusing the meters that `before` has for the same names.
    fn ring(&self, before: &[Arc<KnownKey>]) -> Result<Vec<Arc<KnownKey>>, KeysError> {
        let mut entries = self.listed.clone();
        entries.extend(self.fixed.iter().cloned());
        entries.extend(self.accepted());
        let mut named: HashMap<KeyId, Digest> = HashMap::new();
        for entry in &entries {
            // One secret under two names would have two sets of limits.
            if let Some((id, _)) = named.iter().find(|(id, digest)| **digest == entry.digest && **id != entry.id) {
                return Err(KeysError::Same(id.clone(), entry.id.clone()));
            }
            if named.insert(entry.id.clone(), entry.digest).is_some() {
                return Err(KeysError::Name(entry.id.clone()));
            }
        }
        // Meters are kept, so a reload does not refill the limits of a key.
        let meter =
            |id: &KeyId| before.iter().find(|known| known.entry.id == *id).map(|known| Arc::clone(&known.meter));
        let known =
            entries.into_iter().map(|entry| Arc::new(KnownKey { meter: meter(&entry.id).unwrap_or_default(), entry }));
        Ok(known.collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::time::Instant;

    use super::super::secret::Secret;
    use super::*;

    fn line(name: &str, secret: &Secret, rest: &str) -> String {
        format!("[[key]]\nid = \"{name}\"\nhash = \"{}\"\nscopes = [\"infer\"]\n{rest}\n", secret.digest())
    }

    #[test]
    fn keys_are_found_and_others_are_not() {
        let one = Secret::generate();
        let other = Secret::generate();
        let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&one)]).unwrap();
        assert_eq!(keys.find(one.reveal().as_bytes()).unwrap().entry.id.as_str(), "environment");
        assert!(keys.find(other.reveal().as_bytes()).is_none());
        assert!(keys.find(b"").is_none());
        assert!(keys.required() && !ApiKeys::default().required());
    }

    #[test]
    fn reading_again_keeps_what_was_used_and_an_error_keeps_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let one = Secret::generate();
        let other = Secret::generate();
        let third = Secret::generate();
        fs::write(&path, line("a", &one, "requests_per_minute = 1") + &line("b", &other, "")).unwrap();
        let keys = ApiKeys::open(Some(&path), Vec::new()).unwrap();
        let now = Instant::now();
        let a = keys.find(one.reveal().as_bytes()).unwrap();
        a.meter.admit(&a.entry.limits, now).unwrap();

        // The key named `a` is replaced, `b` is gone, `c` is new.
        fs::write(&path, line("a", &third, "requests_per_minute = 1") + &line("c", &Secret::generate(), "")).unwrap();
        assert_eq!(keys.reload().unwrap(), Reloaded { known: 2, added: 2, removed: 2 });
        assert!(keys.find(one.reveal().as_bytes()).is_none() && keys.find(other.reveal().as_bytes()).is_none());
        let a = keys.find(third.reveal().as_bytes()).unwrap();
        assert!(a.meter.admit(&a.entry.limits, now).is_err(), "a new key of the same name has the old one's meter");

        fs::write(&path, "nonsense").unwrap();
        assert!(keys.reload().is_err());
        assert!(keys.find(third.reveal().as_bytes()).is_some());
    }

    #[test]
    fn stored_keys_come_and_go_and_give_way_to_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let one = Secret::generate();
        let other = Secret::generate();
        fs::write(&path, line("a", &one, "")).unwrap();
        let keys = ApiKeys::open(Some(&path), Vec::new()).unwrap();
        let stored =
            |name: &str, secret: &Secret| KeyEntry { id: KeyId::new(name), ..KeyEntry::of_environment(secret) };
        keys.set_stored(vec![stored("b", &other), stored("a", &Secret::generate()), stored("c", &one)]).unwrap();
        let names: Vec<_> = keys.list().into_iter().map(|(source, entry)| (source, entry.id.to_string())).collect();
        assert_eq!(names, [(KeySource::File, "a".to_owned()), (KeySource::State, "b".to_owned())]);
        assert_eq!(keys.find(one.reveal().as_bytes()).unwrap().entry.id.as_str(), "a");
        // A broken file keeps no key from being revoked, and reading it again brings none back.
        fs::write(&path, "nonsense").unwrap();
        assert!(keys.find(other.reveal().as_bytes()).is_some());
        keys.set_stored(Vec::new()).unwrap();
        assert!(keys.find(other.reveal().as_bytes()).is_none());
        fs::write(&path, line("a", &one, "")).unwrap();
        keys.reload().unwrap();
        assert!(keys.find(other.reveal().as_bytes()).is_none() && keys.find(one.reveal().as_bytes()).is_some());
    }

    #[test]
    fn a_name_or_a_key_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let one = Secret::generate();
        let other = Secret::generate();
        fs::write(&path, line("a", &one, "") + &line("a", &other, "")).unwrap();
        assert!(matches!(ApiKeys::open(Some(&path), Vec::new()), Err(KeysError::Name(_))));
        fs::write(&path, line("a", &one, "")).unwrap();
        assert!(matches!(ApiKeys::open(Some(&path), vec![KeyEntry::of_environment(&one)]), Err(KeysError::Same(_, _))));
    }
}
