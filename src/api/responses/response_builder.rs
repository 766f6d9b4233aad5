//! Builder of a response: translates the events of an episode to output items and to the events of the response's
//! stream.

use waymark_agent::{EpisodeEnd, Event, TokenLogprob, Usage};
use waymark_index::Hit;

use super::attributes::SearchOrigin;
use super::event::{EventPart, ResponseEvent, ResponseEventKind};
use super::item::{
    Annotation, FileSearchCall, FunctionCallItem, ItemStatus, MessageItem, MessagePart, OutputItem, OutputRefusal,
    OutputText, ReasoningItem, ReasoningText,
};
use super::object::{IncompleteDetails, ResponseFault, ResponseObject, ResponseStatus, ResponseUsage, bound};
use super::sealed::Sealer;
use super::show::Show;
use crate::api::answer_calls::{AnswerPart, CallParser};
use crate::api::chat::completion::LogProb;
use crate::api::chat::logprob;
use crate::api::chat::tool::{CalledFunction, ChatToolCall};
use crate::api::error::ApiError;
use crate::api::rag::RagStep;
use crate::api::state::now;

/// Response under construction. Each change produces stream events, which are queued until taken.
#[derive(Debug)]
pub(super) struct ResponseBuilder {
    object: ResponseObject,
    show: Show,
    events: Vec<ResponseEvent>,
    sequence: u64,
    reasoning: Option<Reasoning>,
    /// Seals reasoning. `None` if no sealed reasoning was requested.
    sealer: Option<Sealer>,
    /// Parser of calls in the answer. `None` if the answer holds none.
    calls: Option<CallParser>,
    /// If `true`, the policy has called a function.
    called: bool,
    /// Index of the open message with the answer in the output, once it exists.
    message: Option<usize>,
    /// Refusal of the policy. It is sent at the end, when it is known whether the refusal is complete.
    refusal: Option<String>,
    /// Index of the running search in the output.
    search: Option<usize>,
    /// Error that ended the response.
    failure: Option<ApiError>,
}

/// Reasoning item under construction.
#[derive(Debug)]
struct Reasoning {
    /// Index of the item in the output.
    at: usize,
    turn: usize,
    /// Trailing white space, sent only if more text follows.
    held: String,
}

impl ResponseBuilder {
    /// Creates a response without any events. `tools` are the functions whose calls the policy writes in its answer.
    pub(super) fn new(object: ResponseObject, show: Show, tools: &[String]) -> Self {
        Self {
            sealer: None,
            calls: CallParser::new(tools),
            called: false,
            object,
            show,
            events: Vec::new(),
            sequence: 0,
            reasoning: None,
            message: None,
            refusal: None,
            search: None,
            failure: None,
        }
    }

    /// Seals the reasoning of the response.
    pub(super) fn sealed_by(self, sealer: Option<Sealer>) -> Self {
        Self { sealer, ..self }
    }

    /// Returns the response in its current state, including parts that the client did not ask for.
    pub(super) fn object(&self) -> &ResponseObject {
        &self.object
    }

    /// Returns the parts of the response that the client asked for.
    pub(super) fn show(&self) -> Show {
        self.show
    }

    /// Returns `true` if the response has ended.
    pub(super) fn is_over(&self) -> bool {
        self.object.status.is_over()
    }

    /// Returns the error that ended the response, if any.
    pub(super) fn failure(&self) -> Option<&ApiError> {
        self.failure.as_ref()
    }

    /// Sequence number of the first event that was not taken yet.
    pub(super) fn next(&self) -> u64 {
        self.sequence - self.events.len() as u64
    }

    /// Takes the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<ResponseEvent> {
        std::mem::take(&mut self.events)
    }

    /// Emits the first events: the response and its status.
    pub(super) fn begin(&mut self) {
        let response = self.snapshot();
        self.emit(ResponseEventKind::Created { response });
        self.emit_status();
    }

    /// Handles an event of the episode. Errors go to [`fail`](Self::fail).
    pub(super) fn handle(&mut self, event: Event) {
        // Any later event shows that the engine has admitted the response.
        let waits = matches!(event, Event::Started { .. } | Event::TurnStarted { .. });
        if !waits && self.object.status == ResponseStatus::Queued {
            self.object.status = ResponseStatus::InProgress;
            self.emit_status();
        }
        self.step(&event);
        match event {
            Event::Think { turn, text, .. } | Event::Text { turn, text, .. } => self.reason(turn, &text),
            Event::Answer { text, tokens } if text.is_empty() && tokens.is_empty() => {}
            Event::Answer { text, tokens } => match &mut self.calls {
                None => self.answer(text, tokens),
                Some(calls) => {
                    let parts = calls.read(&text, tokens);
                    self.answer_parts(parts);
                }
            },
            Event::ToolCall { name, arguments, .. } => {
                // The response has the ID of its episode, so the ID of the call leads back to both.
                self.call(ChatToolCall::of_episode(&self.object.id, name, arguments));
            }
            Event::Refusal { text } => self.refusal = Some(text),
            Event::SearchStarted { query, .. } => self.search(query),
            Event::SearchFinished { turn, mode, hits, snapshot, cached, error, .. } => {
                self.found(SearchOrigin { turn, mode, snapshot, cached }, &hits, error.is_some());
            }
            Event::Finished { reason, answer, usage, citations, .. } => {
                let ended = reason == EpisodeEnd::Stop;
                let parts = self.calls.as_mut().map(|calls| calls.finish(ended)).unwrap_or_default();
                self.answer_parts(parts);
                let output = &self.object.output;
                let citations = citations.into_iter().map(|cited| Annotation::new(cited, output)).collect();
                self.finish(reason, answer.is_some(), &usage, citations);
            }
            // A query is shown as a whole when its search starts.
            _ => {}
        }
    }

    /// Ends the response with the result of its episode.
    fn finish(&mut self, reason: EpisodeEnd, answered: bool, usage: &Usage, citations: Vec<Annotation>) {
        self.end_reasoning();
        let bound = bound(reason);
        let status = if bound.is_none() { ItemStatus::Completed } else { ItemStatus::Incomplete };
        // An empty answer has produced no event, but is a message too, unless it only calls functions.
        if self.message.is_some() || (answered && !self.called) {
            self.end_message(status, citations);
        }
        if let Some(refusal) = self.refusal.take() {
            self.refuse(refusal, status);
        }
        self.object.usage = Some(ResponseUsage::from(usage));
        self.object.incomplete_details = bound.map(|reason| IncompleteDetails { reason });
        self.object.status = ResponseStatus::Incomplete;
        if bound.is_none() {
            self.object.status = ResponseStatus::Completed;
            // As in OpenAI's interface, only a completed response has this time.
            self.object.completed_at = Some(now());
        }
        self.emit_status();
    }

    /// Ends the response with an error.
    pub(super) fn fail(&mut self, error: ApiError) {
        self.object.error = Some(ResponseFault::from(&error));
        // Kept unchanged, because `whole` returns it to the client in place of a response.
        self.failure = Some(error);
        self.break_off(ResponseStatus::Failed);
    }

    /// Ends the response with an error and drops its output.
    pub(super) fn overflow(&mut self, error: ApiError) {
        // The response was too large with its output, and the error must fit.
        self.object.output.clear();
        if let Some(rag) = &mut self.object.rag {
            rag.trace.clear();
        }
        self.fail(error);
    }

    /// Ends the response because it was canceled.
    pub(super) fn cancel(&mut self) {
        self.break_off(ResponseStatus::Cancelled);
    }

    fn break_off(&mut self, status: ResponseStatus) {
        self.object.break_off();
        self.object.status = status;
        self.emit_status();
    }

    /// Adds a step to the trace, if the trace was requested.
    fn step(&mut self, event: &Event) {
        let Some(rag) = &mut self.object.rag else { return };
        if event.is_step() {
            let step = RagStep { index: rag.trace.len(), event: event.clone() };
            rag.trace.push(step.clone());
            self.emit(ResponseEventKind::RagStep { step });
        }
    }

    /// Adds reasoning. White space around the reasoning of a turn is left out.
    fn reason(&mut self, turn: usize, text: &str) {
        let held = match &mut self.reasoning {
            Some(reasoning) if reasoning.turn == turn => std::mem::take(&mut reasoning.held),
            _ if text.trim().is_empty() => return,
            _ => {
                self.end_reasoning();
                self.begin_reasoning(turn);
                String::new()
            }
        };
        let Some(reasoning) = &mut self.reasoning else { return };
        let OutputItem::Reasoning(item) = &mut self.object.output[reasoning.at] else { return };
        let Some(part) = item.content.first_mut() else { return };
        let mut delta = held + text;
        if part.text.is_empty() {
            delta.drain(..delta.len() - delta.trim_start().len());
        }
        // Held back, because it may turn out to be the end of the turn.
        reasoning.held = delta.split_off(delta.trim_end().len());
        if !delta.is_empty() {
            part.text += &delta;
            let item_id = item.id.clone();
            let output_index = reasoning.at;
            self.emit(ResponseEventKind::ReasoningDelta { item_id, output_index, content_index: 0, delta });
        }
    }

    fn begin_reasoning(&mut self, turn: usize) {
        let id = self.id("rs");
        let status = ItemStatus::InProgress;
        let item =
            ReasoningItem { id: id.clone(), summary: Vec::new(), content: Vec::new(), status, encrypted_content: None };
        let at = self.add(OutputItem::Reasoning(item));
        let part = ReasoningText { text: String::new() };
        // The item is announced without content, because its part has an event of its own.
        if let OutputItem::Reasoning(item) = &mut self.object.output[at] {
            item.content.push(part.clone());
        }
        let part = EventPart::Reasoning(part);
        self.emit(ResponseEventKind::PartAdded { item_id: id, output_index: at, content_index: 0, part });
        self.reasoning = Some(Reasoning { at, turn, held: String::new() });
    }

    fn end_reasoning(&mut self) {
        let Some(Reasoning { at, .. }) = self.reasoning.take() else { return };
        let OutputItem::Reasoning(item) = &mut self.object.output[at] else { return };
        item.status = ItemStatus::Completed;
        let Some(part) = item.content.first().cloned() else { return };
        item.encrypted_content = self.sealer.as_ref().and_then(|sealer| sealer.seal(&part.text));
        let item_id = item.id.clone();
        let text = part.text.clone();
        self.emit(ResponseEventKind::ReasoningDone {
            item_id: item_id.clone(),
            output_index: at,
            content_index: 0,
            text,
        });
        let part = EventPart::Reasoning(part);
        self.emit(ResponseEventKind::PartDone { item_id, output_index: at, content_index: 0, part });
        self.done(at);
    }

    fn search(&mut self, query: String) {
        self.end_reasoning();
        let item_id = self.id("fs");
        let status = ItemStatus::InProgress;
        let call = FileSearchCall { id: item_id.clone(), status, queries: vec![query], results: None };
        let output_index = self.add(OutputItem::FileSearchCall(call));
        self.emit(ResponseEventKind::SearchInProgress { item_id: item_id.clone(), output_index });
        self.emit(ResponseEventKind::SearchSearching { item_id, output_index });
        self.search = Some(output_index);
    }

    fn found(&mut self, searched: SearchOrigin, hits: &[Hit], failed: bool) {
        let Some(at) = self.search.take() else { return };
        let OutputItem::FileSearchCall(call) = &mut self.object.output[at] else { return };
        // There is no event for a failed search; the status of its item says so.
        call.status = if failed { ItemStatus::Failed } else { ItemStatus::Completed };
        call.results = (!failed).then(|| searched.results(hits));
        let item_id = call.id.clone();
        if !failed {
            self.emit(ResponseEventKind::SearchCompleted { item_id, output_index: at });
        }
        self.done(at);
    }

    /// Adds parts of an answer that may hold calls.
    fn answer_parts(&mut self, parts: Vec<AnswerPart>) {
        for part in parts {
            match part {
                AnswerPart::Text(text, tokens) => self.answer(text, tokens),
                AnswerPart::Call(call) => self.call(ChatToolCall::new(call)),
            }
        }
    }

    /// Adds a complete call. Text that follows it begins a new message.
    fn call(&mut self, call: ChatToolCall) {
        self.called = true;
        self.end_reasoning();
        if self.message.is_some() {
            self.end_message(ItemStatus::Completed, Vec::new());
            self.message = None;
        }
        let item_id = self.id("fc");
        let ChatToolCall { id: call_id, function: CalledFunction { name, arguments, .. }, .. } = call;
        let item = FunctionCallItem {
            id: item_id.clone(),
            call_id,
            name: name.clone(),
            // Empty in the first event of the item, because clients append the deltas to it.
            arguments: String::new(),
            status: ItemStatus::InProgress,
        };
        let output_index = self.add(OutputItem::FunctionCall(item));
        let delta = arguments.clone();
        self.emit(ResponseEventKind::ArgumentsDelta { item_id: item_id.clone(), output_index, delta });
        if let OutputItem::FunctionCall(item) = &mut self.object.output[output_index] {
            item.arguments.clone_from(&arguments);
            item.status = ItemStatus::Completed;
        }
        self.emit(ResponseEventKind::ArgumentsDone { item_id, output_index, name, arguments });
        self.done(output_index);
    }

    fn answer(&mut self, delta: String, tokens: Vec<TokenLogprob>) {
        self.end_reasoning();
        let at = self.begin_message();
        let OutputItem::Message(item) = &mut self.object.output[at] else { return };
        let Some(MessagePart::Text(part)) = item.content.first_mut() else { return };
        part.text += &delta;
        let logprobs: Vec<LogProb> =
            if self.show.logprobs { tokens.into_iter().map(logprob).collect() } else { Vec::new() };
        part.logprobs.extend(logprobs.iter().cloned());
        let item_id = item.id.clone();
        self.emit(ResponseEventKind::TextDelta { item_id, output_index: at, content_index: 0, delta, logprobs });
    }

    /// Returns the index of the message with the answer. Creates the message if necessary.
    fn begin_message(&mut self) -> usize {
        if let Some(at) = self.message {
            return at;
        }
        let id = self.id("msg");
        let status = ItemStatus::InProgress;
        let item = MessageItem { id: id.clone(), status, role: "assistant", content: Vec::new() };
        let at = self.add(OutputItem::Message(item));
        if let OutputItem::Message(item) = &mut self.object.output[at] {
            item.content.push(MessagePart::Text(OutputText::default()));
        }
        let part = EventPart::Output(OutputText::default());
        self.emit(ResponseEventKind::PartAdded { item_id: id, output_index: at, content_index: 0, part });
        self.message = Some(at);
        at
    }

    fn end_message(&mut self, status: ItemStatus, citations: Vec<Annotation>) {
        let at = self.begin_message();
        let OutputItem::Message(item) = &mut self.object.output[at] else { return };
        item.status = status;
        let Some(MessagePart::Text(part)) = item.content.first_mut() else { return };
        part.annotations.clone_from(&citations);
        let item_id = item.id.clone();
        let part = part.clone();
        // The citations are known only at the end of the episode, so they all follow the text.
        for (annotation_index, annotation) in citations.into_iter().enumerate() {
            let item_id = item_id.clone();
            let output_index = at;
            let content_index = 0;
            let added = ResponseEventKind::AnnotationAdded {
                item_id,
                output_index,
                content_index,
                annotation_index,
                annotation,
            };
            self.emit(added);
        }
        let text = part.text.clone();
        let logprobs = part.logprobs.clone();
        let item = item_id.clone();
        self.emit(ResponseEventKind::TextDone { item_id: item, output_index: at, content_index: 0, text, logprobs });
        let part = EventPart::Output(part);
        self.emit(ResponseEventKind::PartDone { item_id, output_index: at, content_index: 0, part });
        self.done(at);
    }

    /// Adds a message that holds the refusal.
    fn refuse(&mut self, refusal: String, ended: ItemStatus) {
        let id = self.id("msg");
        let status = ItemStatus::InProgress;
        let item = MessageItem { id: id.clone(), status, role: "assistant", content: Vec::new() };
        let at = self.add(OutputItem::Message(item));
        let item_id = id;
        let output_index = at;
        let content_index = 0;
        let part = EventPart::Refusal(OutputRefusal::default());
        self.emit(ResponseEventKind::PartAdded { item_id: item_id.clone(), output_index, content_index, part });
        let delta = refusal.clone();
        self.emit(ResponseEventKind::RefusalDelta { item_id: item_id.clone(), output_index, content_index, delta });
        let said = OutputRefusal { refusal: refusal.clone() };
        if let OutputItem::Message(item) = &mut self.object.output[at] {
            item.status = ended;
            item.content.push(MessagePart::Refusal(said.clone()));
        }
        self.emit(ResponseEventKind::RefusalDone { item_id: item_id.clone(), output_index, content_index, refusal });
        let part = EventPart::Refusal(said);
        self.emit(ResponseEventKind::PartDone { item_id, output_index, content_index, part });
        self.done(at);
    }

    /// Returns the ID of the next item.
    fn id(&self, prefix: &str) -> String {
        let tail = self.object.id.rsplit('_').next().unwrap_or_default();
        // The position is unique within the response, and the response's own ID within the server.
        format!("{prefix}_{tail}{:02x}", self.object.output.len())
    }

    fn add(&mut self, item: OutputItem) -> usize {
        let output_index = self.object.output.len();
        self.object.output.push(item.clone());
        self.emit(ResponseEventKind::ItemAdded { output_index, item });
        output_index
    }

    fn done(&mut self, output_index: usize) {
        let mut item = self.object.output[output_index].clone();
        // Only the event is reduced: the object keeps everything, since a later request may ask for more.
        item.strip(self.show);
        self.emit(ResponseEventKind::ItemDone { output_index, item });
    }

    fn emit_status(&mut self) {
        let response = self.snapshot();
        self.emit(match self.object.status {
            ResponseStatus::Queued => ResponseEventKind::Queued { response },
            ResponseStatus::InProgress => ResponseEventKind::InProgress { response },
            ResponseStatus::Completed => ResponseEventKind::Completed { response },
            // OpenAI's interface has no event for cancellation, and clients reject unknown events.
            ResponseStatus::Incomplete | ResponseStatus::Cancelled => ResponseEventKind::Incomplete { response },
            ResponseStatus::Failed => ResponseEventKind::Failed { response },
        });
    }

    fn snapshot(&self) -> Box<ResponseObject> {
        Box::new(self.object.shown(self.show))
    }

    fn emit(&mut self, event: ResponseEventKind) {
        self.events.push(ResponseEvent { event, sequence_number: self.sequence });
        self.sequence += 1;
    }
}
