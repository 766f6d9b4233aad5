//! What a handler learns of who asks.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::api::error::{ApiError, Code};
use crate::api::lifetime::Lifetime;
use crate::engine::RequestId;

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
    /// How much this caller may ask for at once; not bounded when none.
    pub(crate) concurrent: Option<u32>,
    /// Until when the request may hold its connection.
    pub(crate) lifetime: Lifetime,
    /// The request itself.
    pub(crate) request: Option<RequestId>,
}

impl Caller {
    /// Whether this caller may have one more of `what` beside `running` of them, which may go on without a connection: the
    /// door counts only what has one.
    ///
    /// # Errors
    /// 429 when there are as many as the caller's key may have.
    pub(crate) fn may_have_another(&self, running: usize, what: &str) -> Result<(), ApiError> {
        match self.concurrent {
            Some(most) if running >= most as usize => {
                let message = format!("this key may have {most} {what} at once");
                Err(ApiError::new(Code::ConcurrencyLimited, message))
            }
            _ => Ok(()),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let lifetime = parts.extensions.get::<Lifetime>().cloned().unwrap_or_default();
        let known = parts.extensions.get::<Known>();
        Ok(Self {
            key: parts.extensions.get::<KeyId>().cloned(),
            salt: known.map_or(0, |known| known.salt),
            concurrent: known.and_then(|known| known.concurrent),
            lifetime,
            request: parts.extensions.get::<RequestId>().copied(),
        })
    }
}

/// What the door puts into a request beside the [`KeyId`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) salt: u64,
    pub(super) concurrent: Option<u32>,
}
