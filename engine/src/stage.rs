//! Progress of a turn as spans of its request's trace: queue, prefill, decode.

use tracing::{Span, debug_span, field::Empty};

/// Span of a turn's current stage. The stages follow each other, all of them children of the span that was current when
/// the turn was requested. Without a subscriber they cost nothing.
#[derive(Debug)]
pub(super) struct TurnStage {
    /// Span of the caller, which carries the request's ID.
    caller: Span,
    now: Span,
}

impl TurnStage {
    /// Begins the stage `queue`: waiting for the first step.
    pub(super) fn queue() -> Self {
        let caller = Span::current();
        let now = debug_span!(parent: &caller, "queue");
        Self { caller, now }
    }

    /// Begins the stage `prefill`: `tokens` have to be computed before the first one can be sampled, after `cached`
    /// tokens of the first prompt from the prefix cache.
    pub(super) fn prefill(&mut self, tokens: usize, cached: usize) {
        self.now = debug_span!(parent: &self.caller, "prefill", tokens = count(tokens), cached = count(cached));
    }

    /// Begins the stage `decode`, after the first token was sampled.
    pub(super) fn decode(&mut self) {
        self.now = debug_span!(parent: &self.caller, "decode", tokens = Empty);
    }

    /// Ends the turn, in which `tokens` were sampled.
    pub(super) fn end(self, tokens: usize) {
        self.now.record("tokens", count(tokens));
    }

    /// Logs inside the caller's span, so the log line carries the request's ID.
    pub(super) fn tell(&self, what: impl FnOnce()) {
        self.caller.in_scope(what);
    }
}

/// Converts a number for traces, which would show an unsigned one as text.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
