//! Continuation of an earlier episode that ended with a tool call, with the result of that call.

use super::conversation::ConversationMessage;
use super::trajectory::SearchRecord;

/// Sequence of an earlier episode and the messages that follow it. The prefix cache spares most of the computation, and
/// the evidence of the earlier episode stays in the context.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuedEpisode {
    /// ID of the earlier episode.
    pub id: String,
    /// Token IDs of the earlier episode, its prompt first.
    pub tokens: Vec<u32>,
    /// Results of the searches of the earlier episode, in order, after those of the episodes that it had continued
    /// itself. Citations may name their passages.
    pub evidence: Vec<SearchRecord>,
    /// Messages after the tool call.
    pub messages: Vec<ConversationMessage>,
}
