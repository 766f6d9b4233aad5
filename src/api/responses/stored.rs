//! Stored form of a response.

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waymark_agent::{ConversationMessage, Role};
use waymark_models::chat::{Arguments, ToolCall};

use super::chat_history::ChatHistory;
use super::entry::ResponseEntry;
use super::generation::lock;
use super::item::FunctionCallItem;
use super::object::ResponseStatus;
use super::show::Show;
use crate::api::state::now;

/// Response as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredResponse {
    /// The response, including parts that the client did not ask for.
    object: Value,
    /// Parts that the client asked for.
    pub(super) show: Show,
    /// Conversation up to the question.
    history: Vec<ConversationMessage>,
    /// IDs of the calls that wait for their results after the answer, in the order in which they were made.
    #[serde(default)]
    open: Vec<String>,
    /// Answer that another response may continue. `None` if the response cannot be continued.
    answer: Option<String>,
    /// Calls of functions in the answer.
    #[serde(default)]
    calls: Vec<ToolCall>,
    /// Input of the request, as items.
    pub(super) input: Vec<Value>,
    /// Messages of the stream. `None` if the response was not generated in the background, or is unfinished.
    events: Option<Vec<String>>,
    /// Process that generates the response.
    process: String,
    /// Time by which the response has ended, in seconds since 1970.
    until: u64,
}

/// Process that reads a stored response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    /// ID of the process.
    pub(super) process: &'a str,
    /// If `true`, other processes generate responses of the same store.
    pub(super) shared: bool,
}

impl StoredResponse {
    /// Returns the stored form of a response in its current state. `seconds` is the time it may still take.
    pub(super) fn of(entry: &ResponseEntry, process: &str, seconds: u64) -> StoredResponse {
        let builder = lock(&entry.builder);
        let object = builder.object();
        // A failed or canceled response has no answer to go on from.
        let continues = matches!(object.status, ResponseStatus::Completed | ResponseStatus::Incomplete);
        let ended = object.status.is_over();
        // Half a stream is not stored, because a reader would take it for the whole.
        let log = entry.log.as_ref().filter(|_| ended);
        let open = entry.history.open.iter().cloned();
        StoredResponse {
            // Converted through its text, because a number of 32 bits has other digits as a number of 64.
            object: serde_json::to_string(object).and_then(|text| serde_json::from_str(&text)).unwrap_or_default(),
            show: builder.show(),
            history: entry.history.messages.clone(),
            open: open.chain(object.calls().map(|call| call.call_id.clone())).collect(),
            answer: continues.then(|| object.text()),
            calls: object.calls().filter_map(called).collect(),
            input: entry.input.clone(),
            events: log.map(|log| log.messages_so_far()),
            process: process.to_owned(),
            until: now() + seconds,
        }
    }

    /// Marks the response as failed if the process that generated it is gone.
    pub(super) fn settled(mut self, reader: Reader<'_>) -> StoredResponse {
        let unfinished = matches!(self.status(), "queued" | "in_progress");
        // The process of another server may still run; it has until the response's deadline.
        let elsewhere = reader.shared && self.process != reader.process && now() < self.until;
        if unfinished && !elsewhere {
            let message = "the server stopped before this response was finished";
            self.object["status"] = json!("failed");
            self.object["error"] = json!({"code": "server_error", "message": message});
        }
        self
    }

    /// Returns `true` if another process generates the response.
    pub(super) fn is_running_elsewhere(&self) -> bool {
        matches!(self.status(), "queued" | "in_progress")
    }

    /// Returns `true` if the response was generated in the background.
    pub(super) fn is_background(&self) -> bool {
        self.object["background"] == json!(true)
    }

    fn status(&self) -> &str {
        self.object["status"].as_str().unwrap_or_default()
    }

    /// Returns the response with the parts selected by `show`.
    pub(super) fn shown(mut self, show: Show) -> Value {
        for item in self.object["output"].as_array_mut().into_iter().flatten() {
            strip(item, show);
        }
        self.object
    }

    /// Returns the output for a conversation: without optional parts.
    pub(super) fn output(&self) -> Vec<Value> {
        let mut output = self.object["output"].as_array().cloned().unwrap_or_default();
        output.iter_mut().for_each(|item| strip(item, Show::default()));
        output
    }

    /// Returns the conversation including the answer, for another response to continue.
    ///
    /// # Errors
    /// Status of the response, if it is one that cannot be continued.
    pub(super) fn conversation(self) -> Result<ChatHistory, String> {
        let Some(answer) = self.answer else { return Err(self.status().replace('_', " ")) };
        let mut messages = self.history;
        messages.push(ConversationMessage { calls: self.calls, ..ConversationMessage::new(Role::Assistant, answer) });
        Ok(ChatHistory::ending_with_answer(messages, self.open))
    }

    /// Returns `true` if the response has an answer that can be continued.
    pub(super) fn can_be_continued(&self) -> bool {
        self.answer.is_some()
    }

    /// Takes the messages of the stream.
    pub(super) fn take_events(&mut self) -> Option<Vec<Bytes>> {
        Some(self.events.take()?.into_iter().map(Bytes::from).collect())
    }
}

/// Converts a call to the form that the chat template takes. `None` if its arguments are not an object, which never
/// happens in a call of a policy.
fn called(call: &FunctionCallItem) -> Option<ToolCall> {
    Some(ToolCall { name: call.name.clone(), arguments: Arguments::parse(&call.arguments).ok()? })
}

/// Removes the parts of an output item that are not selected, as [`OutputItem::strip`](super::item::OutputItem) does.
fn strip(item: &mut Value, show: Show) {
    match item["type"].as_str() {
        Some("file_search_call") if !show.results => item["results"] = Value::Null,
        Some("reasoning") if !show.sealed => {
            // Absent, as in a response that was created without it.
            item.as_object_mut().map(|fields| fields.shift_remove("encrypted_content"));
        }
        Some("message") if !show.logprobs => {
            for part in item["content"].as_array_mut().into_iter().flatten() {
                if part["type"] == "output_text" {
                    part["logprobs"] = json!([]);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stored(status: &str) -> StoredResponse {
        let parts = json!([{"type": "output_text", "text": "yes", "logprobs": [{"token": "y"}]}]);
        let output = json!([
            {"type": "file_search_call", "results": [{"text": "long"}]},
            {"type": "message", "content": parts},
        ]);
        StoredResponse {
            object: json!({"status": status, "error": null, "output": output}),
            show: Show::default(),
            history: Vec::new(),
            open: Vec::new(),
            calls: Vec::new(),
            answer: (status == "completed").then(|| "yes".to_owned()),
            input: Vec::new(),
            events: None,
            process: "a".into(),
            until: now() + 60,
        }
    }

    #[test]
    fn optional_parts_are_shown_where_they_are_asked_for() {
        let all = Show { results: true, logprobs: true, sealed: true };
        let whole = stored("completed").shown(all);
        assert_eq!(whole["output"][0]["results"][0]["text"], "long");
        assert_eq!(whole["output"][1]["content"][0]["logprobs"][0]["token"], "y");
        let bare = stored("completed").shown(Show::default());
        assert_eq!(
            (&bare["output"][0]["results"], &bare["output"][1]["content"][0]["logprobs"]),
            (&Value::Null, &json!([]))
        );
    }

    #[test]
    fn an_unfinished_response_fails_with_its_process() {
        let status = |reader| stored("in_progress").settled(reader).object["status"].as_str().unwrap().to_owned();
        assert_eq!(status(Reader { process: "b", shared: false }), "failed");
        assert_eq!(status(Reader { process: "b", shared: true }), "in_progress");
        assert_eq!(status(Reader { process: "a", shared: true }), "failed");
        let late = StoredResponse { until: now(), ..stored("queued") };
        assert_eq!(late.settled(Reader { process: "b", shared: true }).object["status"], "failed");
        assert_eq!(stored("failed").conversation().unwrap_err(), "failed");
        assert_eq!(stored("completed").conversation().unwrap().messages.len(), 1);
    }
}
