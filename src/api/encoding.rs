//! Admission of texts to encoding: the same bounds for every route that turns text into tokens.
//!
//! A text that is too long is refused by its size in bytes. Other texts wait for a share of a memory budget, of which
//! long and short texts have one half each, so a short prompt does not wait for megabytes of text. Tenants wait in turn,
//! so many long texts of one do not hold up those of others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use waymark_agent::FairSemaphore;
use waymark_models::tokenizer::encoding_memory;

use super::auth::Caller;
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
    short: BudgetHalf,
    long: BudgetHalf,
    /// Number of permits of each half.
    units: u32,
}

/// Half of the memory, and the turns in which tenants wait for it.
#[derive(Debug, Clone)]
struct BudgetHalf {
    memory: Arc<Semaphore>,
    /// Place for the one text that waits for memory next.
    turns: Arc<FairSemaphore>,
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
        let half = || BudgetHalf {
            memory: Arc::new(Semaphore::new(units as usize)),
            // Each waiter is a request, and those are bounded.
            turns: FairSemaphore::new(1, usize::MAX),
        };
        Self { short: half(), long: half(), units }
    }

    /// Waits for the `memory` bytes that encoding a text of `bytes` bytes of `tenant` takes. A text that takes more than
    /// its half of the budget waits until it has all of that half.
    ///
    /// # Errors
    /// 503 after 30 seconds.
    async fn share(&self, tenant: u64, bytes: usize, memory: usize) -> Result<EncodingShare, ApiError> {
        let half = if bytes <= SHORT { &self.short } else { &self.long };
        let share = units(memory).min(self.units);
        // Neither semaphore is ever closed, so only the time can run out.
        let held = timeout(MAX_WAIT, half.take(tenant, share)).await.ok().flatten();
        held.map(|held| EncodingShare { _held: held }).ok_or_else(|| {
            ApiError::new(Code::QueueFull, "too many texts are being encoded: try again later, or send shorter ones")
        })
    }
}

impl BudgetHalf {
    /// Waits for the turn of `tenant` and then for `share` permits. `None` if a semaphore is closed.
    async fn take(&self, tenant: u64, share: u32) -> Option<OwnedSemaphorePermit> {
        let _turn = self.turns.wait(tenant)?.await.ok()?;
        Arc::clone(&self.memory).acquire_many_owned(share).await.ok()
    }
}

/// Returns the number of permits for `bytes` bytes; at least 1.
fn units(bytes: usize) -> u32 {
    // A semaphore panics above its maximum.
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, Semaphore::MAX_PERMITS as u32)
}

impl AppState {
    /// Admits texts of `caller` that the policies' tokenizer encodes one after another; the longest has `bytes` bytes.
    /// The share must be held until all texts are encoded.
    ///
    /// # Errors
    /// 400 if the text cannot fit into a sequence, 503 if too many others are being encoded.
    pub(super) async fn admit_text(&self, caller: &Caller, bytes: usize) -> Result<EncodingShare, ApiError> {
        self.runtime.check_bytes(bytes)?;
        self.encoding.share(caller.tenant(), bytes, self.runtime.tokenizer.encoding_memory(bytes)).await
    }

    /// Encodes a text of `caller` with `bytes` bytes in `work`, on a blocking thread.
    ///
    /// # Errors
    /// Same as [`admit_text`](Self::admit_text), and the errors of `work`.
    pub(super) async fn encode<T: Send + 'static>(
        &self,
        caller: &Caller,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let share = self.admit_text(caller, bytes).await?;
        run_blocking(holding(share, work)).await
    }

    /// Admits texts of `caller` to encoding by an embedder that reads at most `limit` bytes of a text; the longest has
    /// `bytes` bytes.
    ///
    /// # Errors
    /// 400 if the text is longer than the limit, 503 if too many others are being encoded.
    pub(super) async fn admit_embedding(
        &self,
        caller: &Caller,
        param: &str,
        bytes: usize,
        limit: usize,
    ) -> Result<EncodingShare, ApiError> {
        check_embedded(param, bytes, limit)?;
        self.encoding.share(caller.tenant(), bytes, encoding_memory(bytes)).await
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
    use std::sync::Mutex;

    use tokio::task::JoinSet;

    use super::*;

    /// Returns `true` if a text of `bytes` bytes has to wait.
    async fn waits(budget: &EncodingBudget, bytes: usize) -> bool {
        timeout(Duration::from_millis(20), budget.share(0, bytes, encoding_memory(bytes))).await.is_err()
    }

    #[tokio::test]
    async fn long_texts_wait_for_each_other_and_short_ones_do_not() {
        let budget = EncodingBudget::new(256 << 20);
        let first = budget.share(0, 2 << 20, encoding_memory(2 << 20)).await.unwrap();
        assert!(waits(&budget, 2 << 20).await && !waits(&budget, 100).await);
        drop(first);
        assert!(!waits(&budget, 2 << 20).await);
    }

    #[tokio::test]
    async fn a_text_beyond_the_whole_budget_is_encoded_alone() {
        let budget = EncodingBudget::new(1);
        let only = budget.share(0, usize::MAX, encoding_memory(usize::MAX)).await.unwrap();
        assert!(waits(&budget, SHORT + 1).await);
        drop(only);
        assert!(!waits(&budget, SHORT + 1).await);
    }

    #[tokio::test]
    async fn tenants_take_turns() {
        let budget = EncodingBudget::new(1);
        let encoded = Arc::new(Mutex::new(Vec::new()));
        let running = budget.share(1, SHORT + 1, 1).await.unwrap();
        let mut waiting = JoinSet::new();
        for tenant in [1, 1, 1, 1, 2] {
            let budget = budget.clone();
            let encoded = Arc::clone(&encoded);
            waiting.spawn(async move {
                let _share = budget.share(tenant, SHORT + 1, 1).await.unwrap();
                encoded.lock().unwrap().push(tenant);
            });
            tokio::task::yield_now().await;
        }
        drop(running);
        waiting.join_all().await;
        assert_eq!(*encoded.lock().unwrap(), [1, 1, 2, 1, 1], "the text of the second tenant does not wait for all");
    }
}
