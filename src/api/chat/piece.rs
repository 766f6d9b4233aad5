//! From the trace of an episode to the pieces a chat completion is made of.

use super::completion::{FinishReason, LogProb, TopLogProb};
use crate::agent::{Cited, Event, TokenLogprob, Usage};
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
}

impl Translator {
    pub(super) fn new(trace: bool) -> Self {
        Self { trace, ..Self::default() }
    }

    /// The piece that `event` makes, if it makes one. Text outside every known tag counts as reasoning: it is what the
    /// policy wrote on its way, and no part of the answer.
    pub(super) fn translate(&mut self, event: Event) -> Option<Piece> {
        match event {
            Event::Think { turn, text, .. } | Event::Text { turn, text, .. } => self.reasoning(turn, text),
            Event::Answer { text, tokens } if text.is_empty() && tokens.is_empty() => None,
            Event::Answer { text, tokens } => Some(Piece::Content(text, tokens.into_iter().map(logprob).collect())),
            Event::Refusal { text } => Some(Piece::Refusal(text)),
            Event::Finished { reason, usage, citations, .. } => Some(Piece::Finish(reason.into(), usage, citations)),
            Event::SearchStarted { .. }
            | Event::SearchFinished { .. }
            | Event::Withdrawn { .. }
            | Event::Observation { .. }
            | Event::Invalid { .. }
            | Event::Budget { .. } => self.trace.then(|| self.step(event)),
            // A query is told whole when its search starts; a failure arrives as the episode's error.
            Event::Started { .. } | Event::TurnStarted { .. } | Event::Query { .. } | Event::Failed { .. } => None,
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
        let mut translator = Translator::new(false);
        let mut text = String::new();
        for event in [think(1, "a"), think(1, "b"), think(2, "c\n"), think(2, ""), think(3, "d")] {
            if let Some(Piece::Reasoning(more)) = translator.translate(event) {
                text += &more;
            }
        }
        assert_eq!(text, "ab\n\nc\n\nd");
    }

    #[test]
    fn steps_are_numbered_and_shown_only_on_request() {
        let invalid = || Event::Invalid { turn: 1, message: String::new() };
        assert!(Translator::new(false).translate(invalid()).is_none());
        let mut translator = Translator::new(true);
        for index in 0..3 {
            assert!(matches!(translator.translate(invalid()), Some(Piece::Step(step)) if step.index == index));
        }
    }
}
