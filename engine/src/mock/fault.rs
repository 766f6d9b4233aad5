//! Fault injection.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::backend::BackendError;

// Values that no pass number and no token id reaches, since an atomic cannot hold an `Option`.
const NEVER: u64 = u64::MAX;
const NOTHING: u32 = u32::MAX;

/// Faults to inject into a [`MockBackend`](super::MockBackend). Steps are counted from 1.
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
    panic_on_unload: AtomicBool,
    fail_copies: AtomicBool,
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
            panic_on_unload: AtomicBool::new(false),
            fail_copies: AtomicBool::new(false),
        }
    }
}

impl Faults {
    /// Makes the pass with this number panic.
    pub fn panic_at(&self, step: u64) {
        self.panic_at.store(step, Relaxed);
    }

    /// Makes the pass with this number fail.
    pub fn error_at(&self, step: u64) {
        self.error_at.store(step, Relaxed);
    }

    /// Makes all passes from this number on fail.
    pub fn broken_from(&self, step: u64) {
        self.broken_from.store(step, Relaxed);
    }

    /// Makes all passes from this number on fail, and the backend report that it is lost.
    pub fn lost_from(&self, step: u64) {
        self.broken_from(step);
        self.lost_from.store(step, Relaxed);
    }

    /// Makes an asynchronous mock hang from the pass with this number on. Dropping the mock then hangs as well.
    pub fn hang_from(&self, step: u64) {
        self.hang_from.store(step, Relaxed);
    }

    /// Makes every pass that computes this token panic, like a request that takes down its whole batch.
    pub fn panic_on(&self, token: u32) {
        self.panic_token.store(token, Relaxed);
    }

    /// Makes the logits NaN after a context that contains this token.
    pub fn nan_on(&self, token: u32) {
        self.nan_token.store(token, Relaxed);
    }

    /// Makes the logits infinite after a context that contains this token.
    pub fn infinite_on(&self, token: u32) {
        self.infinite_token.store(token, Relaxed);
    }

    /// If `true`, loading an adapter panics.
    pub fn panic_on_load(&self, panics: bool) {
        self.panic_on_load.store(panics, Relaxed);
    }

    /// If `true`, unloading an adapter panics.
    pub fn panic_on_unload(&self, panics: bool) {
        self.panic_on_unload.store(panics, Relaxed);
    }

    /// If `true`, copying a block fails.
    pub fn fail_copies(&self, fails: bool) {
        self.fail_copies.store(fails, Relaxed);
    }

    /// Fails or panics if a fault is set for the pass with number `step` or for one of its tokens.
    #[allow(clippy::panic, reason = "the panic is injected on purpose")]
    pub(super) fn strike(&self, step: u64, tokens: &[u32]) -> Result<(), BackendError> {
        assert!(step != self.panic_at.load(Relaxed), "injected panic at step {step}");
        let token = self.panic_token.load(Relaxed);
        assert!(!tokens.contains(&token), "injected panic on token {token}");
        if step == self.error_at.load(Relaxed) || step >= self.broken_from.load(Relaxed) {
            return Err(BackendError(format!("injected error at step {step}")));
        }
        Ok(())
    }

    /// Panics if loading an adapter is set to panic.
    #[allow(clippy::panic, reason = "the panic is injected on purpose")]
    pub(super) fn strike_load(&self) {
        assert!(!self.panic_on_load.load(Relaxed), "injected panic on loading an adapter");
    }

    /// Panics if unloading an adapter is set to panic.
    #[allow(clippy::panic, reason = "the panic is injected on purpose")]
    pub(super) fn strike_unload(&self) {
        assert!(!self.panic_on_unload.load(Relaxed), "injected panic on unloading an adapter");
    }

    /// Fails if copying a block is set to fail.
    pub(super) fn strike_copy(&self) -> Result<(), BackendError> {
        let fails = self.fail_copies.load(Relaxed);
        if fails { Err(BackendError("injected error of a copy".to_owned())) } else { Ok(()) }
    }

    /// Returns the value that poisons every logit after this context, if any.
    pub(super) fn poison(&self, context: &[u32]) -> Option<f32> {
        let holds = |token: &AtomicU32| {
            let token = token.load(Relaxed);
            token != NOTHING && context.contains(&token)
        };
        let infinite = || holds(&self.infinite_token).then_some(f32::INFINITY);
        holds(&self.nan_token).then_some(f32::NAN).or_else(infinite)
    }

    /// Returns `true` if the pass with this number never ends.
    pub(super) fn hangs(&self, step: u64) -> bool {
        step >= self.hang_from.load(Relaxed)
    }

    /// Returns the reason why a backend that has made `steps` passes is lost, if it is.
    pub(super) fn lost(&self, steps: u64) -> Option<String> {
        (steps >= self.lost_from.load(Relaxed)).then(|| "the mock device fell off its bus".to_owned())
    }
}
