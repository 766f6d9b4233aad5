//! The keys that are known.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::caller::KeyId;
use super::file::{self, FileError};
use super::meter::{Limits, Meter};
use super::scope::Scope;
use super::secret::{Digest, Secret};

/// A key, as it is stored.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub id: KeyId,
    /// What it is recognised by.
    pub digest: Digest,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// What it may use.
    pub limits: Limits,
    /// Whether its cached prefixes are its own.
    pub private_cache: bool,
}

/// The name of the key that comes from the environment.
const ENVIRONMENT: &str = "environment";

impl Entry {
    /// The key that comes from the environment: it may do everything.
    pub fn of_environment(secret: &Secret) -> Self {
        Self {
            id: KeyId::new(ENVIRONMENT),
            digest: secret.digest(),
            scopes: Scope::ALL.to_vec(),
            limits: Limits::default(),
            private_cache: false,
        }
    }
}

/// Why keys could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Their file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two keys have one name.
    #[error("two keys are called `{0}`")]
    Name(KeyId),
    /// Two names have one key.
    #[error("`{0}` and `{1}` are the same key")]
    Same(KeyId, KeyId),
}

/// What reading the keys again has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys that are known now.
    pub known: usize,
    /// Keys that were not known before.
    pub added: usize,
    /// Keys that are not known any more. What runs with them goes on to its end.
    pub removed: usize,
}

/// The keys of a server; clones share them. Without any, everybody may do everything.
#[derive(Debug, Clone, Default)]
pub struct Keys(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    file: Option<PathBuf>,
    /// Keys that are not in the file.
    fixed: Vec<Entry>,
    ring: RwLock<Arc<Vec<Arc<Known>>>>,
}

/// A key and what it uses.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) entry: Entry,
    pub(super) meter: Arc<Meter>,
}

impl Keys {
    /// The keys in `file` and `fixed` ones.
    ///
    /// # Errors
    /// When the file cannot be read, or two keys are the same.
    pub fn open(file: Option<&Path>, fixed: Vec<Entry>) -> Result<Self, KeysError> {
        let ring = ring(file, &fixed, &[])?;
        let (file, ring) = (file.map(Path::to_owned), RwLock::new(Arc::new(ring)));
        Ok(Self(Some(Arc::new(Shared { file, fixed, ring }))))
    }

    /// Whether requests need a key at all.
    pub fn required(&self) -> bool {
        self.0.is_some()
    }

    /// Reads the file again. A key whose name was there before keeps what it has used. After an error everything is as
    /// it was.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reload(&self) -> Result<Reloaded, KeysError> {
        let Some(shared) = &self.0 else { return Ok(Reloaded { known: 0, added: 0, removed: 0 }) };
        let before = shared.current();
        let now = ring(shared.file.as_deref(), &shared.fixed, &before)?;
        let missing = |these: &[Arc<Known>], there: &[Arc<Known>]| {
            these.iter().filter(|key| !there.iter().any(|other| other.entry.digest == key.entry.digest)).count()
        };
        let reloaded = Reloaded { known: now.len(), added: missing(&now, &before), removed: missing(&before, &now) };
        *shared.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        Ok(reloaded)
    }

    /// The key that a client has sent, if it is known. Takes as long for one that is as for one that is not.
    pub(super) fn find(&self, sent: &[u8]) -> Option<Arc<Known>> {
        let digest = Digest::of(sent);
        let ring = self.0.as_ref()?.current();
        // All of them are compared: where the search would end tells nobody anything.
        ring.iter()
            .fold(None, |found, known| if known.entry.digest == digest { Some(Arc::clone(known)) } else { found })
    }
}

impl Shared {
    fn current(&self) -> Arc<Vec<Arc<Known>>> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The keys of `file` and `fixed`, with the meters that `before` has for their names.
fn ring(file: Option<&Path>, fixed: &[Entry], before: &[Arc<Known>]) -> Result<Vec<Arc<Known>>, KeysError> {
    let mut entries = file.map(file::read).transpose()?.unwrap_or_default();
    entries.extend(fixed.iter().cloned());
    let mut named: HashMap<KeyId, Digest> = HashMap::new();
    for entry in &entries {
        if let Some((id, _)) = named.iter().find(|(id, digest)| **digest == entry.digest && **id != entry.id) {
            return Err(KeysError::Same(id.clone(), entry.id.clone()));
        }
        if named.insert(entry.id.clone(), entry.digest).is_some() {
            return Err(KeysError::Name(entry.id.clone()));
        }
    }
    let meter = |id: &KeyId| before.iter().find(|known| known.entry.id == *id).map(|known| Arc::clone(&known.meter));
    let known = entries.into_iter().map(|entry| Arc::new(Known { meter: meter(&entry.id).unwrap_or_default(), entry }));
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::time::Instant;

    use super::*;

    fn line(name: &str, secret: &Secret, rest: &str) -> String {
        format!("[[key]]\nid = \"{name}\"\nhash = \"{}\"\nscopes = [\"infer\"]\n{rest}\n", secret.digest())
    }

    #[test]
    fn keys_are_found_and_others_are_not() {
        let (one, other) = (Secret::generate(), Secret::generate());
        let keys = Keys::open(None, vec![Entry::of_environment(&one)]).unwrap();
        assert_eq!(keys.find(one.reveal().as_bytes()).unwrap().entry.id.as_str(), "environment");
        assert!(keys.find(other.reveal().as_bytes()).is_none());
        assert!(keys.find(b"").is_none());
        assert!(keys.required() && !Keys::default().required());
    }

    #[test]
    fn reading_again_keeps_what_was_used_and_an_error_keeps_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let (one, other, third) = (Secret::generate(), Secret::generate(), Secret::generate());
        fs::write(&path, line("a", &one, "requests_per_minute = 1") + &line("b", &other, "")).unwrap();
        let keys = Keys::open(Some(&path), Vec::new()).unwrap();
        let now = Instant::now();
        let a = keys.find(one.reveal().as_bytes()).unwrap();
        a.meter.admit(&a.entry.limits, now).unwrap();

        // The key of the name `a` is replaced, `b` is gone, `c` is new.
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
    fn a_name_or_a_key_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let (one, other) = (Secret::generate(), Secret::generate());
        fs::write(&path, line("a", &one, "") + &line("a", &other, "")).unwrap();
        assert!(matches!(Keys::open(Some(&path), Vec::new()), Err(KeysError::Name(_))));
        fs::write(&path, line("a", &one, "")).unwrap();
        assert!(matches!(Keys::open(Some(&path), vec![Entry::of_environment(&one)]), Err(KeysError::Same(_, _))));
    }
}
