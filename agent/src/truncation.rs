//! Truncation of conversations that are too long for the context: the oldest turns are dropped.

use super::conversation::{Conversation, Role};

impl Conversation {
    /// Returns the conversation without as many of its oldest turns as necessary for `fits` to return `true`. If none
    /// is short enough, returns the shortest one. A turn is a message of the user with the answers and results after
    /// it. Instructions and the question are always kept.
    ///
    /// # Errors
    /// The errors of `fits`.
    pub fn shortened<E>(self, fits: impl Fn(&Conversation) -> Result<bool, E>) -> Result<Conversation, E> {
        let asked = self.messages().len() - self.after_question().len() - 1;
        let starts = (1..=asked).filter(|&at| self.messages()[at].role == Role::User || at == asked);
        let starts: Vec<usize> = starts.collect();
        if starts.is_empty() || fits(&self)? {
            return Ok(self);
        }
        // Dropping `low` turns is not enough. Dropping `high` is enough, or drops all.
        let mut low = 0;
        let mut high = starts.len();
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(&self.beginning_at(starts[middle - 1]))? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(self.beginning_at(starts[high - 1]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use super::super::conversation::ConversationMessage;
    use super::*;

    fn chat(roles: &[(Role, &str)]) -> Conversation {
        let messages = roles.iter().map(|(role, text)| ConversationMessage::new(*role, *text)).collect();
        Conversation::from_messages(messages).unwrap()
    }

    fn shortened(conversation: Conversation, most: usize) -> Vec<String> {
        let fits = |shorter: &Conversation| Ok::<bool, Infallible>(shorter.messages().len() <= most);
        let shorter = conversation.shortened(fits).unwrap();
        assert_eq!(shorter.question(), "now");
        shorter.messages().iter().map(|message| message.content.clone()).collect()
    }

    #[test]
    fn the_oldest_turns_go_first_and_instructions_stay() {
        let whole = || {
            chat(&[
                (Role::System, "be brief"),
                (Role::User, "a"),
                (Role::Assistant, "1"),
                (Role::User, "b"),
                (Role::Assistant, "2"),
                (Role::Tool, "3"),
                (Role::Assistant, "4"),
                (Role::User, "now"),
                (Role::Assistant, "5"),
                (Role::Tool, "6"),
            ])
        };
        assert_eq!(shortened(whole(), 10).len(), 10);
        for most in [8, 9] {
            assert_eq!(shortened(whole(), most), ["be brief", "b", "2", "3", "4", "now", "5", "6"]);
        }
        for most in [0, 4, 7] {
            assert_eq!(shortened(whole(), most), ["be brief", "now", "5", "6"], "the question is never dropped");
        }
        assert_eq!(shortened(chat(&[(Role::User, "now")]), 0), ["now"]);
    }
}
