//! An earlier episode that ended with a tool call, and goes on with its result.

use waymark_index::Passage;

use super::conversation::ConversationMessage;

/// Sequence of an earlier episode and the messages that follow it. The prefix cache spares most of the computation,
/// and what the episode had found stays in its context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuedEpisode {
    /// Token IDs of the earlier episode, its prompt first.
    pub tokens: Vec<u32>,
    /// Passages that it had found, in the order of retrieval. Citations may name them.
    pub passages: Vec<Passage>,
    /// Messages after its call.
    pub messages: Vec<ConversationMessage>,
}
