//! A response while it is made: from the trace of an episode to items, and to the events that tell of them.

use waymark_index::Hit;

use super::attributes::Searched;
use super::event::{Happening, Part, ResponseEvent};
use super::item::{
    Annotation, FileSearchCall, ItemStatus, MessageItem, MessagePart, OutputItem, OutputRefusal, OutputText,
    ReasoningItem, ReasoningText,
};
use super::object::{IncompleteDetails, ResponseFault, ResponseObject, ResponseStatus, ResponseUsage, bound};
use super::show::Show;
use crate::agent::{Event, Reason, Usage};
use crate::api::chat::logprob;
use crate::api::error::ApiError;
use crate::api::rag::RagStep;
use crate::api::state::now;

/// A response while it is made. Every change of it is told by events, which wait here until they are taken.
#[derive(Debug)]
pub(super) struct Draft {
    object: ResponseObject,
    show: Show,
    events: Vec<ResponseEvent>,
    sequence: u64,
    reasoning: Option<Reasoning>,
    /// Where in the output the answer is, once it was begun.
    message: Option<usize>,
    /// Why there is no answer; told at the end, which says whether it is complete.
    refusal: Option<String>,
    /// Where in the output the search is that runs.
    search: Option<usize>,
    /// Why it failed.
    failure: Option<ApiError>,
}

/// Reasoning that is being written.
#[derive(Debug)]
struct Reasoning {
    /// Where in the output.
    at: usize,
    turn: usize,
    /// White space that is told only if something follows it.
    held: String,
}

impl Draft {
    /// A response of which nothing was told yet.
    pub(super) fn new(object: ResponseObject, show: Show) -> Self {
        Self {
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

    /// The response as it stands, with all that could be asked for.
    pub(super) fn object(&self) -> &ResponseObject {
        &self.object
    }

    /// What of it is shown to who asked for it.
    pub(super) fn show(&self) -> Show {
        self.show
    }

    /// Whether nothing more will come.
    pub(super) fn is_over(&self) -> bool {
        self.object.status.is_over()
    }

    /// Why it failed, if it did.
    pub(super) fn failure(&self) -> Option<&ApiError> {
        self.failure.as_ref()
    }

    /// The number of the first event that was not told yet.
    pub(super) fn next(&self) -> u64 {
        self.sequence - self.events.len() as u64
    }

    /// What happened since this was last asked.
    pub(super) fn told(&mut self) -> Vec<ResponseEvent> {
        std::mem::take(&mut self.events)
    }

    /// Tells that the response exists, and where it stands.
    pub(super) fn begin(&mut self) {
        let response = self.snapshot();
        self.tell(Happening::Created { response });
        self.tell_status();
    }

    /// Takes what happened; an error is for [`fail`](Self::fail).
    pub(super) fn take(&mut self, event: Event) {
        // The engine has given it a place.
        let waits = matches!(event, Event::Started { .. } | Event::TurnStarted { .. });
        if !waits && self.object.status == ResponseStatus::Queued {
            self.object.status = ResponseStatus::InProgress;
            self.tell_status();
        }
        self.step(&event);
        match event {
            Event::Think { turn, text, .. } | Event::Text { turn, text, .. } => self.reason(turn, &text),
            Event::Answer { text, tokens } if text.is_empty() && tokens.is_empty() => {}
            Event::Answer { text, tokens } => self.answer(text, tokens.into_iter().map(logprob).collect()),
            Event::Refusal { text } => self.refusal = Some(text),
            Event::SearchStarted { query, .. } => self.search(query),
            Event::SearchFinished { turn, mode, hits, snapshot, cached, error, .. } => {
                self.found(Searched { turn, mode, snapshot, cached }, &hits, error.is_some());
            }
            Event::Finished { reason, answer, usage, citations, .. } => {
                let citations = citations.into_iter().map(Annotation::from).collect();
                self.finish(reason, answer.is_some(), &usage, citations);
            }
            // A query is told whole when its search starts.
            Event::Started { .. }
            | Event::TurnStarted { .. }
            | Event::Query { .. }
            | Event::Withdrawn { .. }
            | Event::Observation { .. }
            | Event::Invalid { .. }
            | Event::Budget { .. }
            | Event::Failed { .. } => {}
        }
    }

    /// Ends the response as its episode ended.
    fn finish(&mut self, reason: Reason, answered: bool, usage: &Usage, citations: Vec<Annotation>) {
        self.end_reasoning();
        let bound = bound(reason);
        let status = if bound.is_none() { ItemStatus::Completed } else { ItemStatus::Incomplete };
        if self.message.is_some() || answered {
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
            self.object.completed_at = Some(now());
        }
        self.tell_status();
    }

    /// Ends the response with an error.
    pub(super) fn fail(&mut self, error: ApiError) {
        self.object.error = Some(ResponseFault::from(&error));
        self.failure = Some(error);
        self.break_off(ResponseStatus::Failed);
    }

    /// Ends the response with an error, and gives up what there is of it.
    pub(super) fn overflow(&mut self, error: ApiError) {
        self.object.output.clear();
        if let Some(rag) = &mut self.object.rag {
            rag.trace.clear();
        }
        self.fail(error);
    }

    /// Ends the response because somebody wants no more of it.
    pub(super) fn cancel(&mut self) {
        self.break_off(ResponseStatus::Cancelled);
    }

    fn break_off(&mut self, status: ResponseStatus) {
        self.object.break_off();
        self.object.status = status;
        self.tell_status();
    }

    /// Shows what happened, where that was asked for.
    fn step(&mut self, event: &Event) {
        let Some(rag) = &mut self.object.rag else { return };
        let shown = matches!(
            event,
            Event::SearchStarted { .. }
                | Event::SearchFinished { .. }
                | Event::Withdrawn { .. }
                | Event::Observation { .. }
                | Event::Invalid { .. }
                | Event::Budget { .. }
        );
        if shown {
            let step = RagStep { index: rag.trace.len(), event: event.clone() };
            rag.trace.push(step.clone());
            self.tell(Happening::RagStep { step });
        }
    }

    /// More reasoning. White space around that of a turn is left out.
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
        reasoning.held = delta.split_off(delta.trim_end().len());
        if !delta.is_empty() {
            part.text += &delta;
            let (item_id, output_index) = (item.id.clone(), reasoning.at);
            self.tell(Happening::ReasoningDelta { item_id, output_index, content_index: 0, delta });
        }
    }

    fn begin_reasoning(&mut self, turn: usize) {
        let (id, status) = (self.id("rs"), ItemStatus::InProgress);
        let item = ReasoningItem { id: id.clone(), summary: Vec::new(), content: Vec::new(), status };
        let at = self.add(OutputItem::Reasoning(item));
        let part = ReasoningText { text: String::new() };
        if let OutputItem::Reasoning(item) = &mut self.object.output[at] {
            item.content.push(part.clone());
        }
        let part = Part::Reasoning(part);
        self.tell(Happening::PartAdded { item_id: id, output_index: at, content_index: 0, part });
        self.reasoning = Some(Reasoning { at, turn, held: String::new() });
    }

    fn end_reasoning(&mut self) {
        let Some(Reasoning { at, .. }) = self.reasoning.take() else { return };
        let OutputItem::Reasoning(item) = &mut self.object.output[at] else { return };
        item.status = ItemStatus::Completed;
        let Some(part) = item.content.first().cloned() else { return };
        let (item_id, text) = (item.id.clone(), part.text.clone());
        self.tell(Happening::ReasoningDone { item_id: item_id.clone(), output_index: at, content_index: 0, text });
        let part = Part::Reasoning(part);
        self.tell(Happening::PartDone { item_id, output_index: at, content_index: 0, part });
        self.done(at);
    }

    fn search(&mut self, query: String) {
        self.end_reasoning();
        let (item_id, status) = (self.id("fs"), ItemStatus::InProgress);
        let call = FileSearchCall { id: item_id.clone(), status, queries: vec![query], results: None };
        let output_index = self.add(OutputItem::FileSearchCall(call));
        self.tell(Happening::SearchInProgress { item_id: item_id.clone(), output_index });
        self.tell(Happening::SearchSearching { item_id, output_index });
        self.search = Some(output_index);
    }

    fn found(&mut self, searched: Searched, hits: &[Hit], failed: bool) {
        let Some(at) = self.search.take() else { return };
        let OutputItem::FileSearchCall(call) = &mut self.object.output[at] else { return };
        call.status = if failed { ItemStatus::Failed } else { ItemStatus::Completed };
        call.results = (!failed).then(|| searched.results(hits));
        let item_id = call.id.clone();
        if !failed {
            self.tell(Happening::SearchCompleted { item_id, output_index: at });
        }
        self.done(at);
    }

    fn answer(&mut self, delta: String, tokens: Vec<crate::api::chat::completion::LogProb>) {
        self.end_reasoning();
        let at = self.begin_message();
        let OutputItem::Message(item) = &mut self.object.output[at] else { return };
        let Some(MessagePart::Text(part)) = item.content.first_mut() else { return };
        part.text += &delta;
        let logprobs = if self.show.logprobs { tokens } else { Vec::new() };
        part.logprobs.extend(logprobs.iter().cloned());
        let item_id = item.id.clone();
        self.tell(Happening::TextDelta { item_id, output_index: at, content_index: 0, delta, logprobs });
    }

    /// Where the answer is, which begins here if it has not yet.
    fn begin_message(&mut self) -> usize {
        if let Some(at) = self.message {
            return at;
        }
        let (id, status) = (self.id("msg"), ItemStatus::InProgress);
        let item = MessageItem { id: id.clone(), status, role: "assistant", content: Vec::new() };
        let at = self.add(OutputItem::Message(item));
        if let OutputItem::Message(item) = &mut self.object.output[at] {
            item.content.push(MessagePart::Text(OutputText::default()));
        }
        let part = Part::Output(OutputText::default());
        self.tell(Happening::PartAdded { item_id: id, output_index: at, content_index: 0, part });
        self.message = Some(at);
        at
    }

    fn end_message(&mut self, status: ItemStatus, citations: Vec<Annotation>) {
        let at = self.begin_message();
        let OutputItem::Message(item) = &mut self.object.output[at] else { return };
        item.status = status;
        let Some(MessagePart::Text(part)) = item.content.first_mut() else { return };
        part.annotations.clone_from(&citations);
        let (item_id, part) = (item.id.clone(), part.clone());
        for (annotation_index, annotation) in citations.into_iter().enumerate() {
            let item_id = item_id.clone();
            let (output_index, content_index) = (at, 0);
            let added =
                Happening::AnnotationAdded { item_id, output_index, content_index, annotation_index, annotation };
            self.tell(added);
        }
        let (text, logprobs) = (part.text.clone(), part.logprobs.clone());
        let item = item_id.clone();
        self.tell(Happening::TextDone { item_id: item, output_index: at, content_index: 0, text, logprobs });
        let part = Part::Output(part);
        self.tell(Happening::PartDone { item_id, output_index: at, content_index: 0, part });
        self.done(at);
    }

    /// A message that says why there is no answer.
    fn refuse(&mut self, refusal: String, ended: ItemStatus) {
        let (id, status) = (self.id("msg"), ItemStatus::InProgress);
        let item = MessageItem { id: id.clone(), status, role: "assistant", content: Vec::new() };
        let at = self.add(OutputItem::Message(item));
        let (item_id, output_index, content_index) = (id, at, 0);
        let part = Part::Refusal(OutputRefusal::default());
        self.tell(Happening::PartAdded { item_id: item_id.clone(), output_index, content_index, part });
        let delta = refusal.clone();
        self.tell(Happening::RefusalDelta { item_id: item_id.clone(), output_index, content_index, delta });
        let said = OutputRefusal { refusal: refusal.clone() };
        if let OutputItem::Message(item) = &mut self.object.output[at] {
            item.status = ended;
            item.content.push(MessagePart::Refusal(said.clone()));
        }
        self.tell(Happening::RefusalDone { item_id: item_id.clone(), output_index, content_index, refusal });
        let part = Part::Refusal(said);
        self.tell(Happening::PartDone { item_id, output_index, content_index, part });
        self.done(at);
    }

    /// The id of the item that comes next.
    fn id(&self, prefix: &str) -> String {
        let tail = self.object.id.rsplit('_').next().unwrap_or_default();
        format!("{prefix}_{tail}{:02x}", self.object.output.len())
    }

    fn add(&mut self, item: OutputItem) -> usize {
        let output_index = self.object.output.len();
        self.object.output.push(item.clone());
        self.tell(Happening::ItemAdded { output_index, item });
        output_index
    }

    fn done(&mut self, output_index: usize) {
        let mut item = self.object.output[output_index].clone();
        item.strip(self.show);
        self.tell(Happening::ItemDone { output_index, item });
    }

    fn tell_status(&mut self) {
        let response = self.snapshot();
        self.tell(match self.object.status {
            ResponseStatus::Queued => Happening::Queued { response },
            ResponseStatus::InProgress => Happening::InProgress { response },
            ResponseStatus::Completed => Happening::Completed { response },
            // There is no event of its own for what was cancelled, and clients refuse those that they do not know.
            ResponseStatus::Incomplete | ResponseStatus::Cancelled => Happening::Incomplete { response },
            ResponseStatus::Failed => Happening::Failed { response },
        });
    }

    fn snapshot(&self) -> Box<ResponseObject> {
        Box::new(self.object.shown(self.show))
    }

    fn tell(&mut self, event: Happening) {
        self.events.push(ResponseEvent { event, sequence_number: self.sequence });
        self.sequence += 1;
    }
}
