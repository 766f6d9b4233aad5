//! Where a turn stands, as spans of its request's trace: queue, prefill, decode.

use tracing::{Span, debug_span, field::Empty};

/// The span of what a turn is doing. One follows the other; all are children of the span that was current when the turn
/// was asked for. Where nobody listens they cost nothing.
#[derive(Debug)]
pub(super) struct Stage {
    /// The span of whoever asked: it carries the request's id.
    caller: Span,
    now: Span,
}

impl Stage {
    /// Waiting for the first step.
    pub(super) fn queue() -> Self {
        let caller = Span::current();
        let now = debug_span!(parent: &caller, "queue");
        Self { caller, now }
    }

    /// In the batch: `tokens` are to be computed before the first one can be sampled, after `cached` that were found in
    /// the prefix cache.
    pub(super) fn prefill(&mut self, tokens: usize, cached: usize) {
        self.now = debug_span!(parent: &self.caller, "prefill", tokens = count(tokens), cached = count(cached));
    }

    /// The first token was sampled.
    pub(super) fn decode(&mut self) {
        self.now = debug_span!(parent: &self.caller, "decode", tokens = Empty);
    }

    /// The turn is over, after `tokens` were sampled in it.
    pub(super) fn end(self, tokens: usize) {
        self.now.record("tokens", count(tokens));
    }

    /// Says something about this turn: the log shows whose it is.
    pub(super) fn tell(&self, what: impl FnOnce()) {
        self.caller.in_scope(what);
    }
}

/// A number as traces know numbers: those without a sign would be shown as text.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
