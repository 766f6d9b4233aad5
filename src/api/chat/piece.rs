//! From the trace of an episode to the pieces a chat completion is made of.

use std::collections::VecDeque;

use super::completion::{FinishReason, LogProb, TopLogProb};
use super::tool::ToolCall;
use crate::agent::call::{CallScanner, Part};
use crate::agent::{Cited, Event, Reason, TokenLogprob, Usage};
use crate::api::rag::RagStep;

/// What OpenAI's interface sends where a token has no log-probability: here, where it was written by force.
const NO_LOGPROB: f32 = -9999.0;

/// A piece of one choice, in the order of the episode.
#[derive(Debug)]
pub(super) enum Piece {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer, with its tokens where they were asked for.
    Content(String, Vec<LogProb>),
    /// Why there is no answer, whole.
    Refusal(String),
    /// A call of a tool, and its number among those of the choice.
    Call(usize, ToolCall),
    /// A step to show under `rag`.
    Step(RagStep),
    /// The end, with what supports the answer; nothing, where that was not asked for.
    Finish(FinishReason, Usage, Vec<Cited>),
}

/// Turns one episode's events into pieces.
#[derive(Debug, Default)]
pub(super) struct Translator {
    /// Whether steps are shown.
    trace: bool,
    steps: usize,
    /// The turn of the last reasoning sent; 0 before any.
    turn: usize,
    /// Whether that reasoning ended its line.
    line_ended: bool,
    /// Reads the calls of tools, where there are any to be called.
    calls: Option<Calls>,
}

impl Translator {
    pub(super) fn new(trace: bool, tools: &[String]) -> Self {
        let calls = (!tools.is_empty()).then(|| Calls::new(tools.to_vec()));
        Self { trace, calls, ..Self::default() }
    }

    /// The pieces that `event` makes, if it makes any. Text outside every known tag counts as reasoning: it is what the
    /// policy wrote on its way, and no part of the answer.
    pub(super) fn translate(&mut self, event: Event) -> Vec<Piece> {
        match event {
            Event::Answer { text, tokens } if self.calls.is_some() => {
                self.calls.as_mut().map(|calls| calls.read(&text, tokens)).unwrap_or_default()
            }
            Event::Finished { reason, usage, citations, .. } => {
                let ended = reason == Reason::Stop;
                let mut pieces = self.calls.as_mut().map(|calls| calls.finish(ended)).unwrap_or_default();
                let called = ended && self.calls.as_ref().is_some_and(|calls| calls.made > 0);
                let reason = if called { FinishReason::ToolCalls } else { reason.into() };
                pieces.push(Piece::Finish(reason, usage, citations));
                pieces
            }
            event => self.piece(event).into_iter().collect(),
        }
    }

    fn piece(&mut self, event: Event) -> Option<Piece> {
        match event {
            Event::Think { turn, text, .. } | Event::Text { turn, text, .. } => self.reasoning(turn, text),
            Event::Answer { text, tokens } if text.is_empty() && tokens.is_empty() => None,
            Event::Answer { text, tokens } => Some(Piece::Content(text, tokens.into_iter().map(logprob).collect())),
            Event::Refusal { text } => Some(Piece::Refusal(text)),
            Event::SearchStarted { .. }
            | Event::SearchFinished { .. }
            | Event::Withdrawn { .. }
            | Event::Observation { .. }
            | Event::Invalid { .. }
            | Event::Budget { .. } => self.trace.then(|| self.step(event)),
            // A query is told whole when its search starts; a failure arrives as the episode's error.
            Event::Started { .. }
            | Event::TurnStarted { .. }
            | Event::Query { .. }
            | Event::Finished { .. }
            | Event::Failed { .. } => None,
        }
    }

    /// Turns follow each other without a break in the trace; as one text they need one.
    fn reasoning(&mut self, turn: usize, text: String) -> Option<Piece> {
        if text.is_empty() {
            return None;
        }
        let gap = match self.turn != 0 && self.turn != turn {
            true if self.line_ended => "\n",
            true => "\n\n",
            false => "",
        };
        self.turn = turn;
        self.line_ended = text.ends_with('\n');
        Some(Piece::Reasoning(if gap.is_empty() { text } else { format!("{gap}{text}") }))
    }

    fn step(&mut self, event: Event) -> Piece {
        let step = RagStep { index: self.steps, event };
        self.steps += 1;
        Piece::Step(step)
    }
}

/// The calls of tools in one answer, told apart from the rest of it.
#[derive(Debug)]
struct Calls {
    scanner: CallScanner,
    /// Tokens that were not told yet, by where in the answer they begin.
    tokens: VecDeque<(usize, TokenLogprob)>,
    /// Bytes of the answer so far.
    taken: usize,
    /// Calls so far.
    made: usize,
}

impl Calls {
    fn new(tools: Vec<String>) -> Calls {
        Calls { scanner: CallScanner::new(tools), tokens: VecDeque::new(), taken: 0, made: 0 }
    }

    fn read(&mut self, text: &str, tokens: Vec<TokenLogprob>) -> Vec<Piece> {
        let mut at = 0;
        for token in tokens {
            // A token that gives no whole character belongs to the text that comes with it.
            let within = at.min(text.len().saturating_sub(1));
            at += token.bytes.len();
            self.tokens.push_back((self.taken + within, token));
        }
        self.taken += text.len();
        let parts = self.scanner.push(text);
        self.pieces(parts)
    }

    fn finish(&mut self, ended: bool) -> Vec<Piece> {
        let parts = self.scanner.finish(ended);
        self.pieces(parts)
    }

    fn pieces(&mut self, parts: Vec<Part>) -> Vec<Piece> {
        parts.into_iter().map(|part| self.piece(part)).collect()
    }

    /// Tells a part. The tokens of a call, and of white space around it, are not told.
    fn piece(&mut self, part: Part) -> Piece {
        match part {
            Part::Text(text, start) => {
                let count = self.tokens.iter().take_while(|(at, _)| *at < start + text.len()).count();
                // One that begins in the white space before it gives some of it.
                let gives = |at: usize, token: &TokenLogprob| at >= start || at + token.bytes.len() > start;
                let inside = self.tokens.drain(..count).filter(|(at, token)| gives(*at, token));
                let tokens = inside.map(|(_, token)| logprob(token)).collect();
                Piece::Content(text, tokens)
            }
            Part::Call(call) => {
                self.made += 1;
                Piece::Call(self.made - 1, ToolCall::new(call))
            }
        }
    }
}

/// A token as the wire has it.
pub(crate) fn logprob(token: TokenLogprob) -> LogProb {
    let top_logprobs = token
        .top
        .into_iter()
        .map(|top| TopLogProb { token: top.text, logprob: top.logprob, bytes: Some(top.bytes) })
        .collect();
    LogProb { token: token.text, logprob: token.logprob.unwrap_or(NO_LOGPROB), bytes: Some(token.bytes), top_logprobs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn think(turn: usize, text: &str) -> Event {
        Event::Think { turn, text: text.into(), tokens: Vec::new() }
    }

    #[test]
    fn turns_of_reasoning_are_set_apart() {
        let mut translator = Translator::new(false, &[]);
        let mut text = String::new();
        for event in [think(1, "a"), think(1, "b"), think(2, "c\n"), think(2, ""), think(3, "d")] {
            for piece in translator.translate(event) {
                if let Piece::Reasoning(more) = piece {
                    text += &more;
                }
            }
        }
        assert_eq!(text, "ab\n\nc\n\nd");
    }

    #[test]
    fn a_token_that_begins_with_the_space_behind_a_call_is_told() {
        let read = |calls: &mut Calls, text: &str| {
            let (bytes, top) = (text.as_bytes().to_vec(), Vec::new());
            calls.read(text, vec![TokenLogprob { id: 0, text: text.into(), bytes, logprob: Some(-1.0), top }])
        };
        let mut calls = Calls::new(vec!["look".into()]);
        let call = read(&mut calls, "<tool_call>{\"name\": \"look\"}</tool_call>");
        assert!(matches!(&call[..], [Piece::Call(0, _)]), "{call:?}");
        assert!(read(&mut calls, "\n").is_empty());
        let pieces = read(&mut calls, " Done");
        let [Piece::Content(text, tokens)] = &pieces[..] else { panic!("{pieces:?}") };
        let tokens: Vec<&str> = tokens.iter().map(|token| token.token.as_str()).collect();
        assert_eq!((text.as_str(), tokens), ("Done", vec![" Done"]));
    }

    #[test]
    fn steps_are_numbered_and_shown_only_on_request() {
        let invalid = || Event::Invalid { turn: 1, message: String::new() };
        assert!(Translator::new(false, &[]).translate(invalid()).is_empty());
        let mut translator = Translator::new(true, &[]);
        for index in 0..3 {
            assert!(matches!(&translator.translate(invalid())[..], [Piece::Step(step)] if step.index == index));
        }
    }
}
