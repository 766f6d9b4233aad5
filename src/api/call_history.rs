//! Tool calls of a conversation, and the results that answer them.

use std::collections::{BTreeMap, HashMap};

use waymark_agent::ConversationMessage;

use super::error::ApiError;

/// Position of a call in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallPosition {
    /// Index of the message that makes the call.
    message: usize,
    /// Number of the call among all calls of the conversation.
    number: usize,
}

/// Message, and the position of the call whose result it is. `None` if the message is no result.
pub(crate) type PairedMessage = (Option<CallPosition>, ConversationMessage);

/// Tool calls of a conversation up to the current message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallHistory {
    made: usize,
    /// Positions of the calls without a result so far, by their IDs.
    open: HashMap<String, CallPosition>,
    /// IDs of the same calls, in the order in which they were made.
    ordered: BTreeMap<CallPosition, String>,
}

impl CallHistory {
    /// Adds a call of the message with this index. Returns `false` if another call of this ID waits for its result.
    pub(crate) fn add(&mut self, id: &str, message: usize) -> bool {
        if self.open.contains_key(id) {
            return false;
        }
        let position = CallPosition { message, number: self.made };
        self.open.insert(id.to_owned(), position);
        self.ordered.insert(position, id.to_owned());
        self.made += 1;
        true
    }

    /// Returns the position of the call `id`, which from now on has its result. `None` if no such call waits for one.
    pub(crate) fn answer(&mut self, id: &str) -> Option<CallPosition> {
        let position = self.open.remove(id)?;
        self.ordered.remove(&position);
        Some(position)
    }

    /// Returns the index of a message, and the ID of a call in it that has no result although a later call of the same
    /// message has `result`.
    pub(crate) fn open_before(&self, result: CallPosition) -> Option<(usize, &str)> {
        let first = CallPosition { number: 0, ..result };
        let (position, id) = self.ordered.range(first..result).next()?;
        Some((position.message, id.as_str()))
    }

    /// Returns what [`CallHistory::open_before`] returns for one of the results at the end of `messages`.
    pub(crate) fn open_before_last(&self, messages: &[PairedMessage]) -> Option<(usize, &str)> {
        messages.iter().rev().map_while(|(result, _)| *result).find_map(|result| self.open_before(result))
    }

    /// Returns the IDs of the calls without a result, in the order in which they were made.
    pub(crate) fn into_open(self) -> Vec<String> {
        self.ordered.into_values().collect()
    }
}

/// Creates the error for a call without a result where a later call has one. `param` is the field at fault.
pub(crate) fn unanswered(param: &str, id: &str) -> ApiError {
    let message = format!(
        "`{param}`: the call `{id}` has no result, but a call after it has: send the results of both together, because \
         the model matches results to calls by their order"
    );
    ApiError::invalid(param, message)
}

/// Sorts consecutive results into the order of their calls, because the chat template matches results to calls by
/// position alone.
pub(crate) fn in_call_order(mut messages: Vec<PairedMessage>) -> Vec<ConversationMessage> {
    for results in messages.chunk_by_mut(|(one, _), (next, _)| one.is_some() && next.is_some()) {
        results.sort_by_key(|(call, _)| *call);
    }
    messages.into_iter().map(|(_, message)| message).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_agent::Role;

    use super::*;

    #[test]
    fn a_call_waits_for_one_result() {
        let mut calls = CallHistory::default();
        assert!(calls.add("b", 0) && calls.add("a", 0) && calls.add("c", 2) && !calls.add("b", 2));
        let second = Some(CallPosition { message: 0, number: 1 });
        assert_eq!((calls.answer("a"), calls.answer("a"), calls.answer("x")), (second, None, None));
        assert_eq!(calls.into_open(), ["b", "c"], "a call that is refused changes nothing");
    }

    #[test]
    fn a_result_comes_after_those_of_earlier_calls_of_its_message() {
        let mut calls = CallHistory::default();
        assert!(calls.add("a", 0) && calls.add("b", 2) && calls.add("c", 2));
        let result = |position| (Some(position), ConversationMessage::new(Role::Tool, "x"));
        let mut messages = vec![result(calls.answer("c").unwrap())];
        assert_eq!(calls.open_before_last(&messages), Some((2, "b")));
        messages.push(result(calls.answer("b").unwrap()));
        assert_eq!(calls.open_before_last(&messages), None, "calls of other messages do not matter");
    }

    #[test]
    fn results_follow_their_calls() {
        let at = |number| Some(CallPosition { message: 0, number });
        let message = |position, text: &str| (position, ConversationMessage::new(Role::Tool, text));
        let messages = vec![message(at(1), "b"), message(at(0), "a"), message(None, "c"), message(at(2), "d")];
        let texts: Vec<String> = in_call_order(messages).into_iter().map(|message| message.content).collect();
        assert_eq!(texts, ["a", "b", "c", "d"]);
    }
}
