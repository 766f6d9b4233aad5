//! Extractor for the identity, limits and deadline of a request's sender.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use waymark_engine::{Priority, RequestId};

use super::account::Accounts;
use crate::api::error::{ApiError, Code};
use crate::api::lifetime::Lifetime;
use crate::keys::{IndexScope, KeyOwner, KnownKey, RequestPriority};

/// Sender of a request, with its limits and its deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Owner of the objects that the request creates. `None` if the server requires no keys.
    pub(crate) owner: Option<KeyOwner>,
    /// Limits that the request counts towards.
    pub(crate) accounts: Accounts,
    /// Salt of the prefix cache and the cache of query vectors: callers with different salts share neither. 0 for
    /// callers that use the shared caches.
    pub(crate) salt: u64,
    /// Maximum number of concurrent requests of the caller. `None` sets no limit.
    pub(crate) concurrent: Option<u32>,
    /// If `true`, the server has other keys, for which the caller must leave room.
    pub(crate) shares: bool,
    /// Deadline after which the request may no longer hold its connection.
    pub(crate) lifetime: Lifetime,
    /// Priority of the caller's key. `None` if the server requires no keys.
    pub(crate) priority: Option<RequestPriority>,
    /// Indexes that the caller may use.
    pub(crate) indexes: IndexScope,
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

    /// Checks that the caller, who holds `own` of the `used` places for `what`, may take another one. `most` is the
    /// number of places.
    ///
    /// A key may hold no more places than are free (the dynamic threshold of Choudhury and Hahne, "Dynamic queue length
    /// thresholds for shared-memory packet switches", 1998): `n` greedy keys get `most / (n + 1)` places each, and as
    /// many stay free for others.
    ///
    /// # Errors
    /// 503 if all places are taken, 429 if the caller's key already holds its share.
    pub(crate) fn may_take(&self, own: usize, used: usize, most: usize, what: &str) -> Result<(), ApiError> {
        let free = most.saturating_sub(used);
        if free == 0 {
            return Err(ApiError::new(Code::QueueFull, format!("the server holds its maximum of {most} {what}")));
        }
        if self.shares && own >= free {
            let message = format!("this key already holds its share of the server's {what}: {own} of {most}");
            return Err(ApiError::new(Code::ConcurrencyLimited, message));
        }
        Ok(())
    }

    /// Returns the tenant that this request's tokens and searches count towards: the key or, if the server has no keys,
    /// the request itself.
    pub(crate) fn tenant(&self) -> u64 {
        let request = || self.request.map(|request| request.0.as_u64_pair().1);
        self.owner.map(KeyOwner::tenant).or_else(request).unwrap_or(0)
    }

    /// Returns the priority of the request: `asked`, but at most that of the key, which is also the default.
    pub(crate) fn priority(&self, asked: Option<Priority>) -> Priority {
        let own = self.priority.map(Priority::from);
        match (asked, own) {
            (Some(asked), Some(own)) => asked.min(own),
            (asked, own) => asked.or(own).unwrap_or_default(),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let lifetime = parts.extensions.get::<Lifetime>().cloned().unwrap_or_default();
        let known = parts.extensions.get::<CallerKey>();
        Ok(Self {
            owner: known.map(|known| known.known.entry.digest.owner()),
            accounts: parts.extensions.get::<Accounts>().cloned().unwrap_or_default(),
            // Without keys all requests share one prefix cache, whose salt is 0.
            salt: known.map_or(0, |known| known.salt),
            concurrent: known.and_then(|known| known.known.entry.limits.concurrent),
            shares: known.is_some_and(|known| known.shares),
            priority: known.map(|known| known.known.entry.priority),
            indexes: known.map(|known| known.known.entry.indexes.clone()).unwrap_or_default(),
            lifetime,
            request: parts.extensions.get::<RequestId>().copied(),
        })
    }
}

/// Facts about a key that the gate attaches to a request.
#[derive(Debug, Clone)]
pub(super) struct CallerKey {
    pub(super) known: Arc<KnownKey>,
    pub(super) salt: u64,
    pub(super) shares: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_at_most_the_priority_of_its_key() {
        let key = |priority| Caller { priority, ..Caller::default() };
        let low = key(Some(RequestPriority::Low));
        assert_eq!(low.priority(Some(Priority::High)), Priority::Low);
        assert_eq!(low.priority(None), Priority::Low);
        assert_eq!(key(Some(RequestPriority::High)).priority(Some(Priority::Normal)), Priority::Normal);
        assert_eq!(key(None).priority(Some(Priority::High)), Priority::High);
        assert_eq!(key(None).priority(None), Priority::Normal);
    }

    #[test]
    fn without_keys_each_request_is_a_tenant_of_its_own() {
        let of = |id| Caller { request: Some(RequestId(uuid::Uuid::from_u128(id))), ..Caller::default() };
        assert_eq!(of(7).tenant(), of(7).tenant());
        assert_ne!(of(7).tenant(), of(8).tenant());
    }

    #[test]
    fn greedy_keys_leave_room_for_others() {
        for greedy in [1, 2, 5] {
            let caller = Caller { shares: true, ..Caller::default() };
            let mut held = vec![0usize; greedy];
            loop {
                let before = held.clone();
                for at in 0..greedy {
                    if caller.may_take(held[at], held.iter().sum(), 256, "streams").is_ok() {
                        held[at] += 1;
                    }
                }
                if held == before {
                    break;
                }
            }
            let used = held.iter().sum();
            assert!(caller.may_take(0, used, 256, "streams").is_ok(), "{held:?}");
            assert!(held.iter().all(|own| own.abs_diff(256 / (greedy + 1)) <= 1), "{held:?}");
        }
        // The only key of a server may take all places.
        let alone = Caller::default();
        assert!(alone.may_take(255, 255, 256, "streams").is_ok() && alone.may_take(256, 256, 256, "streams").is_err());
    }
}
