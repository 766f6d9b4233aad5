//! Messages of a conversation, built from the items of requests and responses.

use waymark_agent::{ConversationMessage, Role};

use super::parsed_item::ParsedItem;
use crate::api::call_history::{CallHistory, CallPosition, PairedMessage, in_call_order, unanswered};
use crate::api::error::ApiError;

/// Messages that a response continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::api) struct ChatHistory {
    /// Messages, oldest first.
    pub(in crate::api) messages: Vec<ConversationMessage>,
    /// IDs of the calls that wait for their results, in the order in which they were made.
    pub(in crate::api) open: Vec<String>,
    /// Results at the end of the messages, which more may join. `None` if the messages end with an answer.
    results: Option<OpenResults>,
}

/// Results that follow an answer with several calls, not all of which may have theirs yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OpenResults {
    calls: CallHistory,
    /// Positions of the calls that the last messages answer, in the order of the messages.
    answered: Vec<CallPosition>,
}

impl ChatHistory {
    /// Creates a history whose last message is an answer. `open` are the IDs of the calls that wait for their results.
    pub(super) fn ending_with_answer(messages: Vec<ConversationMessage>, open: Vec<String>) -> ChatHistory {
        ChatHistory { messages, open, results: None }
    }

    /// Adds the items of a request, each with its path.
    ///
    /// # Errors
    /// Names the call or the result that does not fit.
    pub(in crate::api) fn with_items(self, items: Vec<(String, ParsedItem)>) -> Result<ChatHistory, ApiError> {
        let mut reader = ItemReader::new(self);
        for (at, item) in items {
            if item.ends_results() {
                reader.check_results()?;
            }
            reader.add(&at, item)?;
        }
        reader.check_results()?;
        Ok(reader.finish())
    }

    /// Reads the items of a stored conversation. Items that do not fit are left out: two responses at the same time may
    /// have answered the same call, and no later request could mend that.
    pub(in crate::api) fn of_stored(items: Vec<(String, ParsedItem)>) -> ChatHistory {
        let mut reader = ItemReader::new(ChatHistory::default());
        for (at, item) in items {
            if item.ends_results() {
                reader.remove_misplaced_results();
            }
            if let Err(error) = reader.add(&at, item) {
                tracing::debug!(item = at, reason = error.message, "an item of a conversation is left out");
            }
        }
        reader.finish()
    }
}

/// Reader of items, one after the other.
struct ItemReader {
    messages: Vec<PairedMessage>,
    /// Number of messages before the items.
    earlier: usize,
    calls: CallHistory,
}

impl ItemReader {
    /// Creates a reader of items that follow `history`.
    fn new(history: ChatHistory) -> ItemReader {
        let ChatHistory { messages, open, results } = history;
        let none = || OpenResults { calls: waiting(&open, &messages), answered: Vec::new() };
        let OpenResults { calls, answered } = results.unwrap_or_else(none);
        let earlier = messages.len();
        let unpaired = earlier - answered.len().min(earlier);
        let positions = std::iter::repeat_n(None, unpaired).chain(answered.into_iter().map(Some));
        ItemReader { messages: positions.zip(messages).collect(), earlier, calls }
    }

    /// Returns the history with all items.
    fn finish(self) -> ChatHistory {
        let mut answered: Vec<CallPosition> = self.messages.iter().rev().map_while(|(result, _)| *result).collect();
        // That is the order into which they are sorted.
        answered.sort_unstable();
        let results = (!answered.is_empty()).then(|| OpenResults { calls: self.calls.clone(), answered });
        ChatHistory { messages: in_call_order(self.messages), open: self.calls.into_open(), results }
    }

    /// Adds an item, or returns an error and leaves the history as it is.
    fn add(&mut self, at: &str, item: ParsedItem) -> Result<(), ApiError> {
        match item {
            ParsedItem::Message(message) => self.messages.push((None, message)),
            ParsedItem::Call { id, call } => {
                let answer = self.answer();
                if !self.calls.add(&id, answer) {
                    let param = format!("{at}.call_id");
                    let message = format!("`{param}`: another call of the ID `{id}` waits for its result");
                    return Err(ApiError::invalid(&param, message));
                }
                if answer == self.messages.len() {
                    self.messages.push((None, ConversationMessage::new(Role::Assistant, "")));
                }
                self.messages[answer].1.calls.push(call);
            }
            ParsedItem::Output { id, text } => {
                let param = format!("{at}.call_id");
                let unknown = || format!("`{param}`: there is no call `{id}` before it that waits for its result");
                let position = self.calls.answer(&id).ok_or_else(|| ApiError::invalid(&param, unknown()))?;
                // Results may come in any order; their positions let `in_call_order` sort them.
                self.messages.push((Some(position), ConversationMessage::new(Role::Tool, text)));
            }
            ParsedItem::Unseen(_) => {}
        }
        Ok(())
    }

    /// Returns the index of the answer that a call belongs to: the last message, or a new one after it.
    fn answer(&self) -> usize {
        // The answers of earlier responses are complete, so no call joins one of them.
        let own = self.messages.len() > self.earlier;
        let answers = own && self.messages.last().is_some_and(|(_, last)| last.role == Role::Assistant);
        self.messages.len() - usize::from(answers)
    }

    /// Checks that none of the results at the end would be shown in the place of an earlier call's.
    fn check_results(&self) -> Result<(), ApiError> {
        match self.calls.open_before_last(&self.messages) {
            Some((_, id)) => Err(unanswered("input", id)),
            None => Ok(()),
        }
    }

    /// Removes the results at the end that would be shown in the place of an earlier call's.
    fn remove_misplaced_results(&mut self) {
        let results = self.messages.iter().rev().take_while(|(result, _)| result.is_some()).count();
        let mut last = self.messages.split_off(self.messages.len() - results);
        last.retain(|(result, _)| result.is_none_or(|result| self.calls.open_before(result).is_none()));
        self.messages.append(&mut last);
    }
}

/// Returns the calls `open` of `messages`, of which those of the last message come last.
fn waiting(open: &[String], messages: &[ConversationMessage]) -> CallHistory {
    let last = messages.len().saturating_sub(1);
    let own = messages.last().map_or(0, |message| message.calls.len());
    let earlier = open.len().saturating_sub(own);
    let mut calls = CallHistory::default();
    for (number, id) in open.iter().enumerate() {
        // It is not known which messages made the earlier calls, so they are answered in their order, as those of one.
        let message = if number < earlier { 0 } else { last };
        calls.add(id, message);
    }
    calls
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn read(history: ChatHistory, items: &[serde_json::Value]) -> Result<ChatHistory, ApiError> {
        let parsed = |(at, item): (usize, &serde_json::Value)| {
            let at = format!("input[{at}]");
            (at.clone(), ParsedItem::read(item.clone(), &at).unwrap())
        };
        history.with_items(items.iter().enumerate().map(parsed).collect())
    }

    fn call(id: &str) -> serde_json::Value {
        json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"})
    }

    fn output(id: &str, text: &str) -> serde_json::Value {
        json!({"type": "function_call_output", "call_id": id, "output": text})
    }

    #[test]
    fn calls_belong_to_one_answer_and_results_follow_their_order() {
        let says = |text: &str| json!({"role": "assistant", "content": text});
        let thought = json!({"type": "reasoning", "id": "rs_1", "summary": []});
        let items = [says("Hm."), thought, call("a"), call("b"), output("b", "two"), output("a", "one")];
        let history = read(ChatHistory::default(), &items).unwrap();
        let texts: Vec<(Role, &str, usize)> =
            history.messages.iter().map(|it| (it.role, it.content.as_str(), it.calls.len())).collect();
        assert_eq!(texts, [(Role::Assistant, "Hm.", 2), (Role::Tool, "one", 0), (Role::Tool, "two", 0)]);
        assert!(history.open.is_empty());
    }

    #[test]
    fn stored_items_that_do_not_fit_are_left_out() {
        let read = |items: &[serde_json::Value]| {
            let parsed = |item: &serde_json::Value| {
                ("conversation.item".to_owned(), ParsedItem::read(item.clone(), "item").unwrap())
            };
            ChatHistory::of_stored(items.iter().map(parsed).collect())
        };
        let items = [call("a"), output("a", "one"), output("a", "one again"), output("b", "of nothing"), call("c")];
        let history = read(&items);
        let texts: Vec<&str> = history.messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["", "one", ""]);
        assert_eq!(history.open, ["c"]);
        let items = [call("a"), call("b"), call("a"), output("b", "two"), output("a", "one")];
        let texts: Vec<String> = read(&items).messages.into_iter().map(|message| message.content).collect();
        assert_eq!(texts, ["", "one", "two"], "in the order of the calls");
    }

    #[test]
    fn a_call_may_get_its_result_in_a_later_request() {
        let first = read(ChatHistory::default(), &[call("a"), call("b"), output("a", "one")]).unwrap();
        assert_eq!(first.open, ["b"]);
        let refused = read(first.clone(), &[output("a", "one")]).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("input[0].call_id"));
        let refused = read(first.clone(), &[call("b")]).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("input[0].call_id"));
        // A call after an earlier response begins an answer of its own.
        let second = read(first, &[output("b", "two"), call("c")]).unwrap();
        assert_eq!((second.messages.len(), &second.open), (4, &vec!["c".to_owned()]));
        let results = second.messages[1..3].iter().map(|message| message.content.as_str());
        assert_eq!(results.collect::<Vec<_>>(), ["one", "two"], "in the order of the calls");
    }

    #[test]
    fn a_result_without_that_of_an_earlier_call_is_refused() {
        let [a, b] = [call("a"), call("b")];
        let early = output("b", "two");
        let says = json!({"role": "user", "content": "Well?"});
        for items in [
            vec![a.clone(), b.clone(), early.clone()],
            vec![a.clone(), b.clone(), early.clone(), call("c"), output("a", "one")],
            vec![a.clone(), b.clone(), early.clone(), says.clone(), output("a", "one")],
        ] {
            let refused = read(ChatHistory::default(), &items).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("input"), "{items:?}");
            assert!(refused.message.contains("the call `a` has no result"), "{}", refused.message);
        }
        // The calls of a response that is continued. A call of an earlier answer stays without a result.
        let made = read(ChatHistory::default(), &[call("x"), says, a, b]).unwrap();
        let previous = ChatHistory::ending_with_answer(made.messages, made.open);
        assert!(read(previous.clone(), std::slice::from_ref(&early)).is_err());
        assert_eq!(read(previous, &[early, output("a", "one")]).unwrap().open, ["x"]);
    }

    #[test]
    fn a_stored_result_waits_for_that_of_an_earlier_call() {
        let stored = |items: &[serde_json::Value]| {
            let parsed = |item: &serde_json::Value| (String::new(), ParsedItem::read(item.clone(), "item").unwrap());
            ChatHistory::of_stored(items.iter().map(parsed).collect())
        };
        let texts = |history: &ChatHistory| -> Vec<String> {
            history.messages.iter().map(|message| message.content.clone()).collect()
        };
        let items = [call("a"), call("b"), output("b", "two")];
        let whole = read(stored(&items), &[output("a", "one")]).unwrap();
        assert_eq!(texts(&whole), ["", "one", "two"]);
        let says = json!({"role": "user", "content": "Well?"});
        let gap = stored(&[&items[..], &[says]].concat());
        assert_eq!((texts(&gap), &gap.open), (vec![String::new(), "Well?".to_owned()], &vec!["a".to_owned()]));
    }
}
