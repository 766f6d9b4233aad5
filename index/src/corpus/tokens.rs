//! Token counts of texts, used to limit the size of chunks.

use std::fmt;
use std::sync::Arc;

/// Counts tokens as an embedder reads them.
#[derive(Clone)]
pub struct TokenCounter {
    count: Arc<dyn Fn(&str) -> usize + Send + Sync>,
    limit: usize,
}

impl fmt::Debug for TokenCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCounter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl TokenCounter {
    /// Creates the counter of an embedder that reads at most `limit` tokens of a text. `count` returns the number of
    /// tokens of the whole text.
    pub fn new(limit: usize, count: impl Fn(&str) -> usize + Send + Sync + 'static) -> TokenCounter {
        TokenCounter { count: Arc::new(count), limit }
    }

    /// Maximum number of tokens of a text that the embedder reads.
    pub fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn count(&self, text: &str) -> usize {
        (self.count)(text)
    }
}
