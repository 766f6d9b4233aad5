//! Constrained turns on an engine that knows nothing of the constraint.
//!
//! The engine samples freely. A token that the constraint does not allow is withdrawn together with all after it, and
//! sampled again from the allowed ones alone (`allowed_token_ids`). That leaves the distribution of constrained
//! sampling in place: p(x) + P(not allowed) · p(x) / P(allowed) = p(x) / P(allowed). Top-k, top-p and min-p apply
//! before the constraint here, but after it in the engine of this process, so that with them the two distributions may
//! differ.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use waymark_engine::{Constraint, ConstraintState, EngineError};
use waymark_models::sampler::TokenMask;

/// Progress of a constrained turn.
#[derive(Debug)]
pub(super) struct ConstraintRun {
    /// State of the rule. `None` while it is computed, and after an error or a panic in it.
    state: Option<Box<dyn ConstraintState>>,
    /// Tokens that may come next. `None` allows all.
    mask: Option<TokenMask>,
}

impl ConstraintRun {
    /// Begins a turn.
    ///
    /// # Errors
    /// [`EngineError::Constraint`] when no token can begin the turn.
    pub(super) async fn begin(rule: Arc<dyn Constraint>) -> Result<Self, EngineError> {
        let (state, mask) = blocking(move || {
            let mut state = rule.begin();
            let mask = state.allowed()?;
            Ok((state, mask))
        })
        .await?;
        Ok(Self { state: Some(state), mask })
    }

    /// Returns `true` if the token may come next.
    pub(super) fn allows(&self, id: u32) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask.allows(id))
    }

    /// Returns the tokens that may come next, below `vocab`.
    ///
    /// # Errors
    /// [`EngineError::Constraint`] when there is none.
    pub(super) fn allowed(&self, vocab: usize) -> Result<Vec<u32>, EngineError> {
        let all = 0..u32::try_from(vocab).unwrap_or(u32::MAX);
        let allowed: Vec<u32> = all.filter(|&id| self.allows(id)).collect();
        if allowed.is_empty() {
            return Err(EngineError::Constraint("no token may come next".to_owned()));
        }
        Ok(allowed)
    }

    /// Accepts a token and computes the tokens that may follow.
    ///
    /// # Errors
    /// [`EngineError::Constraint`] when the turn cannot go on.
    pub(super) async fn accept(&mut self, id: u32) -> Result<(), EngineError> {
        let gone = || EngineError::Constraint("the constraint failed earlier".to_owned());
        let mut state = self.state.take().ok_or_else(gone)?;
        let (state, mask) = blocking(move || {
            state.accept(id)?;
            let mask = state.allowed()?;
            Ok((state, mask))
        })
        .await?;
        self.state = Some(state);
        self.mask = mask;
        Ok(())
    }
}

/// Computes a mask off the async threads: a large schema takes milliseconds.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, EngineError> {
    let panicked = |_| EngineError::Constraint("the constraint panicked".to_owned());
    spawn_blocking(work).await.map_err(panicked)?.map_err(EngineError::Constraint)
}
