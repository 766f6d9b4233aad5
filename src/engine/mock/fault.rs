//! Failures on demand.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::engine::backend::BackendError;

const NEVER: u64 = u64::MAX;
const NOTHING: u32 = u32::MAX;

/// What is to go wrong in a [`MockBackend`](super::MockBackend). Steps count from 1.
#[derive(Debug)]
pub struct Faults {
    panic_at: AtomicU64,
    error_at: AtomicU64,
    broken_from: AtomicU64,
    lost_from: AtomicU64,
    hang_from: AtomicU64,
    panic_token: AtomicU32,
    nan_token: AtomicU32,
    infinite_token: AtomicU32,
    panic_on_load: AtomicBool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            panic_at: AtomicU64::new(NEVER),
            error_at: AtomicU64::new(NEVER),
            broken_from: AtomicU64::new(NEVER),
            lost_from: AtomicU64::new(NEVER),
            hang_from: AtomicU64::new(NEVER),
            panic_token: AtomicU32::new(NOTHING),
            nan_token: AtomicU32::new(NOTHING),
            infinite_token: AtomicU32::new(NOTHING),
            panic_on_load: AtomicBool::new(false),
        }
    }
}

impl Faults {
    /// The pass with this number panics.
    pub fn panic_at(&self, step: u64) {
        self.panic_at.store(step, Relaxed);
    }

    /// The pass with this number fails.
    pub fn error_at(&self, step: u64) {
        self.error_at.store(step, Relaxed);
    }

    /// All passes from this number on fail.
    pub fn broken_from(&self, step: u64) {
        self.broken_from.store(step, Relaxed);
    }

    /// All passes from this number on fail, and the backend says that it is gone for good.
    pub fn lost_from(&self, step: u64) {
        self.broken_from(step);
        self.lost_from.store(step, Relaxed);
    }

    /// No pass from this number on ever ends, of a mock that works beside its caller; and who frees what it holds waits as
    /// long.
    pub fn hang_from(&self, step: u64) {
        self.hang_from.store(step, Relaxed);
    }

    /// Every pass in which this token is computed panics: one request that takes down whoever is in its batch.
    pub fn panic_on(&self, token: u32) {
        self.panic_token.store(token, Relaxed);
    }

    /// Logits after a context that holds this token are not numbers.
    pub fn nan_on(&self, token: u32) {
        self.nan_token.store(token, Relaxed);
    }

    /// All logits after a context that holds this token are infinite.
    pub fn infinite_on(&self, token: u32) {
        self.infinite_token.store(token, Relaxed);
    }

    /// Whether loading an adapter panics.
    pub fn panic_on_load(&self, panics: bool) {
        self.panic_on_load.store(panics, Relaxed);
    }

    /// Fails or panics if this pass is to.
    #[allow(clippy::panic, reason = "a panic is what was asked for")]
    pub(super) fn strike(&self, step: u64, tokens: &[u32]) -> Result<(), BackendError> {
        assert!(step != self.panic_at.load(Relaxed), "injected panic at step {step}");
        let token = self.panic_token.load(Relaxed);
        assert!(!tokens.contains(&token), "injected panic on token {token}");
        if step == self.error_at.load(Relaxed) || step >= self.broken_from.load(Relaxed) {
            return Err(BackendError(format!("injected error at step {step}")));
        }
        Ok(())
    }

    /// Panics if loading an adapter is to.
    #[allow(clippy::panic, reason = "a panic is what was asked for")]
    pub(super) fn strike_load(&self) {
        assert!(!self.panic_on_load.load(Relaxed), "injected panic on loading an adapter");
    }

    /// What every logit after this context is to be, where it is to be poisoned.
    pub(super) fn poison(&self, context: &[u32]) -> Option<f32> {
        let holds = |token: &AtomicU32| {
            let token = token.load(Relaxed);
            token != NOTHING && context.contains(&token)
        };
        let infinite = || holds(&self.infinite_token).then_some(f32::INFINITY);
        holds(&self.nan_token).then_some(f32::NAN).or_else(infinite)
    }

    /// Whether a pass with this number never ends.
    pub(super) fn hangs(&self, step: u64) -> bool {
        step >= self.hang_from.load(Relaxed)
    }

    /// Why a backend that has made `steps` passes is gone, if it is.
    pub(super) fn lost(&self, steps: u64) -> Option<String> {
        (steps >= self.lost_from.load(Relaxed)).then(|| "the mock device fell off its bus".to_owned())
    }
}
