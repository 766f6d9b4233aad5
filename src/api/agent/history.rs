//! Messages before the question of `/v1/agent`.

use serde::Deserialize;
use utoipa::ToSchema;
use waymark_agent::{Conversation, ConversationMessage, Role};

use crate::api::error::ApiError;

/// Message before the question.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryMessage {
    /// Author of the message.
    pub role: HistoryRole,
    /// Text of the message.
    pub content: String,
}

/// Author of a message before the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HistoryRole {
    /// Operator.
    System,
    /// End user.
    User,
    /// Policy.
    Assistant,
}

impl From<HistoryMessage> for ConversationMessage {
    fn from(message: HistoryMessage) -> ConversationMessage {
        let role = match message.role {
            HistoryRole::System => Role::System,
            HistoryRole::User => Role::User,
            HistoryRole::Assistant => Role::Assistant,
        };
        ConversationMessage::new(role, message.content)
    }
}

/// Appends `question` to the messages before it.
///
/// # Errors
/// If the question is blank.
pub(super) fn conversation(history: Vec<HistoryMessage>, question: String) -> Result<Conversation, ApiError> {
    let earlier = history.into_iter().map(ConversationMessage::from);
    let asked = ConversationMessage::new(Role::User, question);
    // The last message is the user's, so the only possible error is a blank question.
    Conversation::from_messages(earlier.chain([asked]).collect())
        .map_err(|_| ApiError::invalid("question", "`question` is empty"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_question_follows_the_history() {
        let history = vec![
            HistoryMessage { role: HistoryRole::User, content: "Where is the Mona Lisa?".to_owned() },
            HistoryMessage { role: HistoryRole::Assistant, content: "In the Louvre.".to_owned() },
        ];
        let conversation = conversation(history, "In which city is it?".to_owned()).unwrap();
        assert_eq!(conversation.question(), "In which city is it?");
        let authors: Vec<Role> = conversation.messages().iter().map(|message| message.role).collect();
        assert_eq!(authors, [Role::User, Role::Assistant, Role::User]);
    }

    #[test]
    fn a_blank_question_is_refused_by_its_name() {
        let refused = conversation(Vec::new(), " ".to_owned()).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("question"));
    }
}
