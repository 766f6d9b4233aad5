//! What a handler learns of who asks.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::api::lifetime::Lifetime;

/// Names a key: in logs, and as the owner of what was stored with it. Not the key itself, and no secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// The key called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Whether `name` can name a key.
    pub fn fits(name: &str) -> bool {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        (1..=64).contains(&name.len()) && name.chars().all(allowed)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who asks, and until when.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// The key that was shown; none where the server has no keys.
    pub(crate) key: Option<KeyId>,
    /// What keeps this caller's cached prefixes apart from others'; 0 for those who share theirs.
    pub(crate) salt: u64,
    /// Until when the request may hold its connection.
    pub(crate) lifetime: Lifetime,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let lifetime = parts.extensions.get::<Lifetime>().cloned().unwrap_or_default();
        let known = parts.extensions.get::<Known>();
        Ok(Self { key: parts.extensions.get::<KeyId>().cloned(), salt: known.map_or(0, |known| known.salt), lifetime })
    }
}

/// What the door puts into a request beside the [`KeyId`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) salt: u64,
}
