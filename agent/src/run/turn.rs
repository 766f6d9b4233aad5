//! One turn of the policy: its text, and the action in it.

use std::borrow::Cow;

use crate::action::{Action, ActionOutcome};
use crate::protocol::Injected;
use crate::segment::SegmentKind;
use crate::tool_call::ToolCallText;
use crate::turn_reader::TurnReader;

use super::setup::EpisodeSetup;

/// A turn that is being written.
#[derive(Debug)]
pub(super) struct CurrentTurn {
    /// Number of the turn, counted from 1.
    pub(super) number: usize,
    /// If `true`, no round with the environment can follow.
    pub(super) last: bool,
    pub(super) reader: TurnReader,
    /// Position of its first token in the transcript.
    pub(super) start: usize,
    /// Length in bytes of the text that the training loop keeps. `None` keeps all of it.
    kept: Option<usize>,
}

impl CurrentTurn {
    /// Begins a turn at this position of the transcript.
    pub(super) fn new(setup: &EpisodeSetup, number: usize, last: bool, start: usize) -> CurrentTurn {
        let tags = setup.protocol.tags();
        // An answer that is a call is shown as a call, once it is complete.
        let shows = setup.rules.shows_answers() && !setup.settings.forms.answer_calls;
        let filter = shows.then(|| setup.filter());
        let logprobs = setup.settings.logprobs.is_some();
        let reader = TurnReader::new(number, setup.codec.tokenizer.clone(), tags, filter, logprobs);
        let reader = reader.calling(&setup.settings.forms.tools, tags).ended_by(&setup.settings.ends.stop_ids);
        let opened = setup.opened(number).is_some();
        let reader = if opened { reader.inside(tags, SegmentKind::Think) } else { reader };
        CurrentTurn { number, last, reader, start, kept: None }
    }

    /// Keeps the first `bytes` bytes of the text only.
    pub(super) fn cut(&mut self, bytes: usize) {
        self.kept = Some(bytes);
    }

    /// Returns the text that is kept.
    pub(super) fn kept(&self) -> &str {
        let text = self.reader.text();
        self.kept.and_then(|bytes| text.get(..bytes)).unwrap_or(text)
    }

    /// Returns the action of the turn so far. An answer that the client has seen begin is the action.
    pub(super) fn action(&self, setup: &EpisodeSetup) -> Action {
        if let Some(text) = self.reader.answer() {
            return Action::Answer { text: text.to_owned() };
        }
        if let Some(call) = self.reader.call() {
            return Action::from(call.clone());
        }
        // Protocols read a turn by itself, so the tag that the prompt has opened is prepended.
        let opened = setup.opened(self.number);
        let read = opened.map_or(Cow::Borrowed(self.kept()), |open| Cow::Owned(format!("{open}{}", self.kept())));
        let action = setup.protocol.parse(&read, setup.reading());
        let forms = &setup.settings.forms;
        if forms.answer_calls && self.reader.answered() {
            return self.answer_call(&action);
        }
        match action {
            // The tag of a query lifts the constraint on the answer, so an answer inside a query may have any form.
            Action::Answer { .. } if forms.answer.is_some() && !self.reader.answered() => Action::Invalid,
            Action::Answer { text } => {
                // This answer was not shown yet, so the client's stop strings still have to be applied.
                let mut filter = setup.filter();
                filter.push(&text);
                filter.finish();
                Action::Answer { text: filter.shown().to_owned() }
            }
            action => action,
        }
    }

    /// Returns the call in an answer, where `action` is the action that the protocol reads from the turn.
    fn answer_call(&self, action: &Action) -> Action {
        let whole = match action {
            Action::Answer { text } => ToolCallText::of_json(text),
            _ => None,
        };
        // A forced answer may follow a search, or an answer that broke off, which the protocol reads in its place.
        let call = whole.or_else(|| ToolCallText::of_json(self.reader.last_answer()));
        // The grammar makes the answer a call, unless the answer broke off.
        call.map_or(Action::Invalid, Action::from)
    }

    /// Returns the observation after an invalid turn. An empty one gives no second try.
    pub(super) fn rejection(&self, setup: &EpisodeSetup) -> Vec<Injected> {
        // Graph-R1 looks for a query before it cuts the turn, so the part that is not kept counts too.
        let outcome = ActionOutcome::Invalid(self.reader.text());
        setup.protocol.observation(&outcome, setup.settings.retrieval.format)
    }

    /// Returns `true` if the turn is invalid and the protocol gives no second try.
    pub(super) fn is_over(&self, action: &Action, setup: &EpisodeSetup) -> bool {
        *action == Action::Invalid && self.rejection(setup).is_empty()
    }
}

/// Returns the text of a reply to an invalid turn: what the protocol puts into its frame, or else the frame.
pub(super) fn reply_text(parts: &[Injected]) -> String {
    let framed = parts.iter().any(|part| matches!(part, Injected::Retrieved(_)));
    let told = parts.iter().filter(|part| !framed || matches!(part, Injected::Retrieved(_)));
    told.map(|part| part.text().trim()).collect()
}
