//! Keys of queries.

use std::sync::Arc;

/// Text of a query and the salt of its caller. Callers with different salts share no vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueryKey {
    pub(super) salt: u64,
    pub(super) text: Arc<str>,
}

impl QueryKey {
    pub(super) fn new(salt: u64, text: &str) -> Self {
        Self { salt, text: text.into() }
    }
}
