//! Admission of texts to encoding: the same bounds for every route that turns text into tokens.
//!
//! A text that is too long is refused by its size in bytes. Other texts wait for a share of a memory budget, of which
//! long and short texts have one half each, so a short prompt does not wait for megabytes of text.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use waymark_models::tokenizer::encoding_memory;

use super::blocking::run_blocking;
use super::error::{ApiError, Code};
use super::state::AppState;

/// Maximum length of a short text in bytes.
const SHORT: usize = 16 << 10;

/// Unit of the permits, in bytes.
const UNIT: usize = 64 << 10;

/// Maximum time that a request waits for its share of the memory.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Memory for encoding texts; clones share it. One half is for short texts, the other for long ones.
#[derive(Debug, Clone)]
pub(crate) struct EncodingBudget {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    /// Number of permits of each half.
    units: u32,
}

/// Share of the memory for encoding, given back when dropped.
#[derive(Debug)]
pub(crate) struct EncodingShare {
    _held: OwnedSemaphorePermit,
}

impl EncodingBudget {
    /// Creates a budget of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let units = units(bytes / 2);
        let half = || Arc::new(Semaphore::new(units as usize));
        Self { short: half(), long: half(), units }
    }

    /// Waits for the `memory` bytes that encoding a text of `bytes` bytes takes. A text that takes more than its half
    /// of the budget waits until it has all of that half.
    ///
    /// # Errors
    /// 503 after 30 seconds.
    async fn share(&self, bytes: usize, memory: usize) -> Result<EncodingShare, ApiError> {
        let half = if bytes <= SHORT { &self.short } else { &self.long };
        let share = units(memory).min(self.units);
        let wait = timeout(MAX_WAIT, Arc::clone(half).acquire_many_owned(share));
        // The semaphore is never closed, so only the time can run out.
        let held = wait.await.ok().and_then(Result::ok);
        held.map(|held| EncodingShare { _held: held }).ok_or_else(|| {
            ApiError::new(Code::QueueFull, "too many texts are being encoded: try again later, or send shorter ones")
        })
    }
}

/// Returns the number of permits for `bytes` bytes; at least 1.
fn units(bytes: usize) -> u32 {
    // A semaphore panics above its maximum.
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, Semaphore::MAX_PERMITS as u32)
}

impl AppState {
    /// Admits texts that the policies' tokenizer encodes one after another; the longest has `bytes` bytes. The caller
    /// must hold the share until all texts are encoded.
    ///
    /// # Errors
    /// 400 if the text cannot fit into a sequence, 503 if too many others are being encoded.
    pub(super) async fn admit_text(&self, bytes: usize) -> Result<EncodingShare, ApiError> {
        self.runtime.check_bytes(bytes)?;
        self.encoding.share(bytes, self.runtime.tokenizer.encoding_memory(bytes)).await
    }

    /// Encodes a text of `bytes` bytes in `work`, on a blocking thread.
    ///
    /// # Errors
    /// Same as [`admit_text`](Self::admit_text), and the errors of `work`.
    pub(super) async fn encode<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let share = self.admit_text(bytes).await?;
        run_blocking(holding(share, work)).await
    }

    /// Admits texts to encoding by an embedder that reads at most `limit` bytes of a text; the longest has `bytes`
    /// bytes.
    ///
    /// # Errors
    /// 400 if the text is longer than the limit, 503 if too many others are being encoded.
    pub(super) async fn admit_embedding(
        &self,
        param: &str,
        bytes: usize,
        limit: usize,
    ) -> Result<EncodingShare, ApiError> {
        check_embedded(param, bytes, limit)?;
        self.encoding.share(bytes, encoding_memory(bytes)).await
    }
}

/// Checks that an embedder which reads at most `limit` bytes of a text can read one of `bytes` bytes.
///
/// # Errors
/// 400 if the text is longer.
pub(super) fn check_embedded(param: &str, bytes: usize, limit: usize) -> Result<(), ApiError> {
    if bytes <= limit {
        return Ok(());
    }
    let message = format!("`{param}` has {bytes} bytes, but at most {limit} are read: shorten or split the text");
    Err(ApiError::new(Code::ContextLengthExceeded, message).with_param(param))
}

/// Wraps `work` so that it holds `share` until it ends. Blocking work continues even if its request is dropped, so the
/// share must belong to the work.
fn holding<T>(share: EncodingShare, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _held = share;
        work()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns `true` if a text of `bytes` bytes has to wait.
    async fn waits(budget: &EncodingBudget, bytes: usize) -> bool {
        timeout(Duration::from_millis(20), budget.share(bytes, encoding_memory(bytes))).await.is_err()
    }

    #[tokio::test]
    async fn long_texts_wait_for_each_other_and_short_ones_do_not() {
        let budget = EncodingBudget::new(256 << 20);
        let first = budget.share(2 << 20, encoding_memory(2 << 20)).await.unwrap();
        assert!(waits(&budget, 2 << 20).await && !waits(&budget, 100).await);
        drop(first);
        assert!(!waits(&budget, 2 << 20).await);
    }

    #[tokio::test]
    async fn a_text_beyond_the_whole_budget_is_encoded_alone() {
        let budget = EncodingBudget::new(1);
        let only = budget.share(usize::MAX, encoding_memory(usize::MAX)).await.unwrap();
        assert!(waits(&budget, SHORT + 1).await);
        drop(only);
        assert!(!waits(&budget, SHORT + 1).await);
    }
}
