//! Translates the events of an episode to the pieces of a chat completion.

use waymark_agent::{Cited, EpisodeEnd, Event, TokenLogprob, Usage};

use super::completion::{FinishReason, LogProb, TopLogProb};
use super::tool::ChatToolCall;
use crate::api::answer_calls::{AnswerPart, CallParser};
use crate::api::rag::RagStep;

/// Stand-in for a missing log-probability, as in OpenAI's interface. Forced tokens have none.
const NO_LOGPROB: f32 = -9999.0;

/// Piece of one answer. Pieces follow the order of the episode's events.
#[derive(Debug)]
pub(super) enum ChatPiece {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer, with its tokens if they were requested.
    Content(String, Vec<LogProb>),
    /// Complete refusal.
    Refusal(String),
    /// Tool call, and its index among the calls of the answer.
    Call(usize, ChatToolCall),
    /// Step of the episode to show under `rag`.
    Step(RagStep),
    /// End of the answer, with its supporting passages if they were requested.
    Finish(FinishReason, Usage, Vec<Cited>),
}

/// Translates the events of one episode to pieces.
#[derive(Debug, Default)]
pub(super) struct Translator {
    /// If `true`, steps are shown.
    trace: bool,
    steps: usize,
    /// Turn of the last reasoning sent; 0 before any.
    turn: usize,
    /// If `true`, the last reasoning sent ended with a line break.
    line_ended: bool,
    /// Parser of tool calls in the answer. `None` if the answer holds none.
    calls: Option<CallParser>,
    /// Number of calls in the answer so far.
    made: usize,
    /// ID of the episode.
    episode: String,
}

impl Translator {
    pub(super) fn new(trace: bool, tools: &[String]) -> Self {
        Self { trace, calls: CallParser::new(tools), ..Self::default() }
    }

    /// Returns the pieces of `event`, possibly none. Text outside every known tag counts as reasoning, because it is
    /// not part of the answer.
    pub(super) fn translate(&mut self, event: Event) -> Vec<ChatPiece> {
        match event {
            Event::Started { id, .. } => {
                self.episode = id;
                Vec::new()
            }
            Event::Answer { text, tokens } if self.calls.is_some() => {
                let parts = self.calls.as_mut().map(|calls| calls.read(&text, tokens)).unwrap_or_default();
                parts.into_iter().map(|part| self.part(part)).collect()
            }
            Event::Finished { reason, usage, citations, .. } => {
                let ended = reason == EpisodeEnd::Stop;
                let parts = self.calls.as_mut().map(|calls| calls.finish(ended)).unwrap_or_default();
                let mut pieces: Vec<ChatPiece> = parts.into_iter().map(|part| self.part(part)).collect();
                // A truncated answer may lack its last call, so it keeps its own finish reason.
                let called = ended && self.made > 0;
                let reason = if called { FinishReason::ToolCalls } else { reason.into() };
                pieces.push(ChatPiece::Finish(reason, usage, citations));
                pieces
            }
            event => self.piece(event).into_iter().collect(),
        }
    }

    fn piece(&mut self, event: Event) -> Option<ChatPiece> {
        match event {
            Event::Think { turn, text, .. } | Event::Text { turn, text, .. } => self.reasoning(turn, text),
            Event::Answer { text, tokens } if text.is_empty() && tokens.is_empty() => None,
            Event::Answer { text, tokens } => Some(ChatPiece::Content(text, tokens.into_iter().map(logprob).collect())),
            Event::Refusal { text } => Some(ChatPiece::Refusal(text)),
            Event::ToolCall { name, arguments, .. } => {
                Some(ChatPiece::Call(0, ChatToolCall::of_episode(&self.episode, name, arguments)))
            }
            event if event.is_step() => self.trace.then(|| self.step(event)),
            // A query is shown as a whole when its search starts, and a failure arrives as the episode's error.
            _ => None,
        }
    }

    /// Translates a part of an answer that may hold calls.
    fn part(&mut self, part: AnswerPart) -> ChatPiece {
        match part {
            AnswerPart::Text(text, tokens) => ChatPiece::Content(text, tokens.into_iter().map(logprob).collect()),
            AnswerPart::Call(call) => {
                self.made += 1;
                ChatPiece::Call(self.made - 1, ChatToolCall::new(call))
            }
        }
    }

    /// Translates reasoning. Adds a line break between the reasoning of two turns, because clients join all pieces into
    /// one text.
    fn reasoning(&mut self, turn: usize, text: String) -> Option<ChatPiece> {
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
        Some(ChatPiece::Reasoning(if gap.is_empty() { text } else { format!("{gap}{text}") }))
    }

    fn step(&mut self, event: Event) -> ChatPiece {
        let step = RagStep { index: self.steps, event };
        self.steps += 1;
        ChatPiece::Step(step)
    }
}

/// Converts a token to its wire format.
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
                if let ChatPiece::Reasoning(more) = piece {
                    text += &more;
                }
            }
        }
        assert_eq!(text, "ab\n\nc\n\nd");
    }

    #[test]
    fn steps_are_numbered_and_shown_only_on_request() {
        let invalid = || Event::Invalid { turn: 1, message: String::new() };
        assert!(Translator::new(false, &[]).translate(invalid()).is_empty());
        let mut translator = Translator::new(true, &[]);
        for index in 0..3 {
            assert!(matches!(&translator.translate(invalid())[..], [ChatPiece::Step(step)] if step.index == index));
        }
    }
}
