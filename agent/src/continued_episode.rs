//! Continuation of an earlier episode that ended with a tool call, with the result of that call.

use waymark_index::Passage;

use super::conversation::ConversationMessage;

/// Sequence of an earlier episode and the messages that follow it. The prefix cache spares most of the computation, and
/// the evidence of the earlier episode stays in the context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuedEpisode {
    /// Token IDs of the earlier episode, its prompt first.
    pub tokens: Vec<u32>,
    /// Passages that the earlier episode had found, in the order of retrieval. Citations may name them.
    pub passages: Vec<Passage>,
    /// Messages after the tool call.
    pub messages: Vec<ConversationMessage>,
}
