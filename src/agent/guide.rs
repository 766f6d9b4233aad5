//! A protocol as a small state machine, for policies that were never trained in it.

use waymark_index::Mode;

/// What may be done in the coming turn.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Whether a search would be executed.
    pub search: bool,
    /// The modes that can be searched in.
    pub modes: &'a [Mode],
    /// How long a thought may become, in tokens.
    pub think_tokens: usize,
    /// How long a query may become, in tokens.
    pub query_tokens: usize,
    /// How long an answer may become, in tokens.
    pub answer_tokens: usize,
}

/// A state machine that writes one turn; it starts in its first state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guide {
    /// The states, named by their place.
    pub states: Vec<State>,
}

/// One state. `next` and its like are places in [`Guide::states`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A text is written for the policy.
    Force {
        /// The text.
        text: String,
        /// The state after it.
        next: usize,
    },
    /// One of several texts is written; the policy's own probabilities choose.
    Choose {
        /// The texts and the states they lead to; at least one.
        branches: Vec<(String, usize)>,
    },
    /// The policy writes freely, at least one token, until it closes the span or has used it up; then it is closed
    /// for it.
    Free {
        /// What closes the span.
        close: &'static str,
        /// How many tokens it may take.
        limit: usize,
        /// Tags that lead elsewhere when the policy writes them in here.
        shortcuts: Vec<Shortcut>,
        /// The state after the closing tag.
        next: usize,
    },
    /// The turn is complete.
    End,
}

/// A way out of a free span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortcut {
    /// What the policy writes.
    pub tag: &'static str,
    /// The state after it.
    pub next: usize,
}
