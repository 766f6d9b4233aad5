//! Tool calls of a conversation, and the results that answer them.

use std::collections::HashMap;

use waymark_agent::ConversationMessage;

/// Tool calls of a conversation up to the current message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallHistory {
    made: usize,
    /// Numbers of the calls without a result so far, by their IDs.
    open: HashMap<String, usize>,
}

impl CallHistory {
    /// Creates a history in which the calls `open`, in the order in which they were made, wait for their results.
    pub(crate) fn waiting(open: Vec<String>) -> CallHistory {
        let made = open.len();
        CallHistory { made, open: open.into_iter().zip(0..).collect() }
    }

    /// Adds a call. Returns `false` if another call of this ID waits for its result.
    pub(crate) fn add(&mut self, id: &str) -> bool {
        if self.open.contains_key(id) {
            return false;
        }
        self.open.insert(id.to_owned(), self.made);
        self.made += 1;
        true
    }

    /// Returns the number of the call `id`, which from now on has its result. `None` if no such call waits for one.
    pub(crate) fn answer(&mut self, id: &str) -> Option<usize> {
        self.open.remove(id)
    }

    /// Returns the IDs of the calls without a result, in the order in which they were made.
    pub(crate) fn into_open(self) -> Vec<String> {
        let mut open: Vec<(String, usize)> = self.open.into_iter().collect();
        open.sort_by_key(|(_, number)| *number);
        open.into_iter().map(|(id, _)| id).collect()
    }
}

/// Sorts consecutive results into the order of their calls, because the chat template matches results to calls by
/// position alone. A message that is a result is paired with the number of its call.
pub(crate) fn in_call_order(mut messages: Vec<(Option<usize>, ConversationMessage)>) -> Vec<ConversationMessage> {
    for results in messages.chunk_by_mut(|(one, _), (next, _)| one.is_some() && next.is_some()) {
        results.sort_by_key(|(call, _)| *call);
    }
    messages.into_iter().map(|(_, message)| message).collect()
}

#[cfg(test)]
mod tests {
    use waymark_agent::Role;

    use super::*;

    #[test]
    fn a_call_waits_for_one_result() {
        let mut calls = CallHistory::waiting(vec!["b".to_owned(), "a".to_owned()]);
        assert!(calls.add("c") && !calls.add("b"));
        assert_eq!((calls.answer("a"), calls.answer("a"), calls.answer("x")), (Some(1), None, None));
        assert_eq!(calls.into_open(), ["b", "c"], "a call that is refused changes nothing");
    }

    #[test]
    fn results_follow_their_calls() {
        let message = |number, text: &str| (number, ConversationMessage::new(Role::Tool, text));
        let messages = vec![message(Some(1), "b"), message(Some(0), "a"), message(None, "c"), message(Some(2), "d")];
        let texts: Vec<String> = in_call_order(messages).into_iter().map(|message| message.content).collect();
        assert_eq!(texts, ["a", "b", "c", "d"]);
    }
}
