//! Extractor for the identity, limits and deadline of a request's sender.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use waymark_engine::RequestId;

use crate::api::error::{ApiError, Code};
use crate::api::lifetime::Lifetime;
use crate::keys::KeyId;

/// Sender of a request, with its limits and its deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// API key of the request. `None` if the server requires no keys.
    pub(crate) key: Option<KeyId>,
    /// Salt of the prefix cache: callers with different salts share no cached prefixes. 0 for callers that share
    /// theirs.
    pub(crate) salt: u64,
    /// Maximum number of concurrent requests of the caller. `None` sets no limit.
    pub(crate) concurrent: Option<u32>,
    /// Deadline after which the request may no longer hold its connection.
    pub(crate) lifetime: Lifetime,
    /// ID of the request.
    pub(crate) request: Option<RequestId>,
}

impl Caller {
    /// Checks that the caller may run one more of `what` in addition to `running` ones that can continue without a
    /// connection. The gate counts only requests that hold a connection.
    ///
    /// # Errors
    /// 429 if the caller's key already runs as many as it may.
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
        let known = parts.extensions.get::<CallerKey>();
        Ok(Self {
            key: parts.extensions.get::<KeyId>().cloned(),
            salt: known.map_or(0, |known| known.salt),
            concurrent: known.and_then(|known| known.concurrent),
            lifetime,
            request: parts.extensions.get::<RequestId>().copied(),
        })
    }
}

/// Facts about a key that the gate attaches to a request, besides its [`KeyId`].
#[derive(Debug, Clone, Copy)]
pub(super) struct CallerKey {
    pub(super) salt: u64,
    pub(super) concurrent: Option<u32>,
}
