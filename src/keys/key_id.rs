//! Names of API keys.

use std::fmt;
use std::sync::Arc;

/// Public name of an API key, used in logs. It is not secret. Stored objects belong to a [`KeyOwner`](super::KeyOwner).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// Creates the ID of the key called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns `true` if `name` is a valid name for a key.
    pub fn fits(name: &str) -> bool {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        (1..=64).contains(&name.len()) && name.chars().all(allowed)
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
