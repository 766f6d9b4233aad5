//! Limits of the messages that a response continues. Each response stores the messages before it, so a chain of
//! responses would grow without end.

use waymark_agent::{ConversationMessage, Role};

use super::chat_history::ChatHistory;
use crate::api::conversations::{MAX_ITEMS, MAX_TEXT};
use crate::api::error::ApiError;

/// Number of messages, and the size of their texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChainSize {
    messages: usize,
    bytes: usize,
}

impl ChainSize {
    fn of(messages: &[ConversationMessage]) -> ChainSize {
        ChainSize { messages: messages.len(), bytes: messages.iter().map(ConversationMessage::bytes).sum() }
    }

    fn fits(self) -> bool {
        self.messages <= MAX_ITEMS && self.bytes <= MAX_TEXT
    }
}

impl ChatHistory {
    /// Returns the messages of a response within the limits. Of larger ones, drops as many of the oldest turns as
    /// necessary if `truncates` is `true`; instructions and the last turn stay.
    ///
    /// # Errors
    /// 400 if the messages exceed the limits.
    pub(super) fn limited(self, truncates: bool) -> Result<ChatHistory, ApiError> {
        let size = ChainSize::of(&self.messages);
        if size.fits() {
            return Ok(self);
        }
        if !truncates {
            let remedy = "set `truncation` to `auto`, which drops its oldest turns, or begin another one";
            return Err(too_long(size, remedy));
        }
        let remedy = "its instructions and its last turn alone are too long, so begin another one";
        let start = start_that_fits(&self.messages, size).ok_or_else(|| too_long(size, remedy))?;
        Ok(self.beginning_at(start))
    }

    /// Returns the history without its messages before `start`. Keeps instructions.
    fn beginning_at(self, start: usize) -> ChatHistory {
        let own = self.messages.last().map_or(0, |last| last.calls.len());
        // It is not known which messages made the earlier calls, so they may be gone.
        let open = self.open[self.open.len().saturating_sub(own)..].to_vec();
        let kept = self.messages.into_iter().enumerate();
        let kept = kept.filter(|(at, message)| *at >= start || message.role == Role::System);
        ChatHistory::ending_with_answer(kept.map(|(_, message)| message).collect(), open)
    }
}

/// Returns the index of the first turn from which on `messages`, with all instructions, fit. `size` is that of all.
fn start_that_fits(messages: &[ConversationMessage], size: ChainSize) -> Option<usize> {
    let mut left = size;
    for (at, message) in messages.iter().enumerate() {
        if message.role == Role::User && left.fits() {
            return Some(at);
        }
        if message.role != Role::System {
            left.messages -= 1;
            left.bytes -= message.bytes();
        }
    }
    None
}

fn too_long(size: ChainSize, remedy: &str) -> ApiError {
    let ChainSize { messages, bytes } = size;
    let message = format!(
        "`previous_response_id`: the conversation has {messages} messages with {bytes} bytes of text, and at most \
         {MAX_ITEMS} messages and {MAX_TEXT} bytes are continued: {remedy}"
    );
    ApiError::invalid("previous_response_id", message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::chat::{Arguments, ToolCall};

    use super::*;

    fn says(role: Role, text: impl Into<String>) -> ConversationMessage {
        ConversationMessage::new(role, text)
    }

    /// Returns a history of `turns` questions with answers, after an instruction.
    fn chain(turns: usize) -> ChatHistory {
        let exchange = |turn| [says(Role::User, format!("q{turn}")), says(Role::Assistant, format!("a{turn}"))];
        let messages = std::iter::once(says(Role::System, "be brief")).chain((0..turns).flat_map(exchange));
        ChatHistory::ending_with_answer(messages.collect(), Vec::new())
    }

    #[test]
    fn a_chain_is_limited_in_messages() {
        let fitting = chain(499);
        assert_eq!(fitting.clone().limited(false).unwrap(), fitting);
        let refused = chain(600).limited(false).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("previous_response_id"));
        assert!(refused.message.contains("1201 messages") && refused.message.contains("1000"), "{}", refused.message);
        let kept = chain(600).limited(true).unwrap().messages;
        let texts: Vec<&str> = kept.iter().map(|message| message.content.as_str()).collect();
        assert_eq!((texts.len(), &texts[..2], texts[998]), (999, &["be brief", "q101"][..], "a599"));
    }

    #[test]
    fn a_chain_is_limited_in_bytes() {
        let mut long = chain(3);
        for message in &mut long.messages[1..] {
            message.content = "x".repeat(5 << 20);
        }
        assert!(long.clone().limited(false).is_err());
        assert_eq!(long.clone().limited(true).unwrap().messages.len(), 3);
        long.messages[5].content = "x".repeat(MAX_TEXT);
        let refused = long.limited(true).unwrap_err();
        assert!(refused.message.contains("begin another one"), "{}", refused.message);
    }

    #[test]
    fn one_turn_without_end_is_refused() {
        let mut endless = chain(1);
        endless.messages.extend((0..MAX_ITEMS).map(|_| says(Role::Tool, "result")));
        assert!(endless.limited(true).is_err());
    }

    #[test]
    fn calls_of_dropped_answers_wait_no_more() {
        let mut history = chain(600);
        let call = ToolCall { name: "look".to_owned(), arguments: Arguments::default() };
        history.messages[2].calls.push(call.clone());
        history.messages[1200].calls.push(call);
        history.open = vec!["first".to_owned(), "last".to_owned()];
        assert_eq!(history.limited(true).unwrap().open, ["last"]);
    }
}
