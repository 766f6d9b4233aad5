//! Tokens of one turn to events.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use waymark_models::tokenizer::{Detokenizer, Tokenizer};

use super::answer::AnswerFilter;
use super::event::{Event, TokenLogprob, TopLogprob};
use super::protocol::{Kind, Tags};
use super::scanner::{Piece, Scanner};
use crate::engine::Step;

/// Reads one turn while it is written, and remembers its text.
#[derive(Debug)]
pub(super) struct Reader {
    turn: usize,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    scanner: Scanner,
    text: String,
    /// Without one, answers are not shown while they are written.
    answer: Option<AnswerFilter>,
    tokens: Option<Tokens>,
    /// Where in the text each token ends, and which parts are answer: for counting.
    ends: Vec<usize>,
    answers: Vec<Range<usize>>,
    withheld: String,
}

/// Tokens on their way into the delta that shows them.
#[derive(Debug, Default)]
struct Tokens {
    /// With the bytes of the turn's text that each gives.
    coming: VecDeque<(usize, usize, TokenLogprob)>,
    /// Those of the answer, with where they begin in it.
    answer: VecDeque<(usize, TokenLogprob)>,
}

impl Reader {
    /// At the beginning of a turn.
    pub(super) fn new(
        turn: usize,
        tokenizer: Arc<Tokenizer>,
        tags: &'static Tags,
        answer: Option<AnswerFilter>,
        logprobs: bool,
    ) -> Reader {
        Reader {
            turn,
            detokenizer: Detokenizer::new(tokenizer.table()),
            tokenizer,
            scanner: Scanner::new(tags),
            text: String::new(),
            answer,
            tokens: logprobs.then(Tokens::default),
            ends: Vec::new(),
            answers: Vec::new(),
            withheld: String::new(),
        }
    }

    /// The same at the beginning of a turn that the prompt has begun inside of `kind`.
    pub(super) fn inside(self, tags: &'static Tags, kind: Kind) -> Reader {
        Reader { scanner: Scanner::inside(tags, kind), ..self }
    }

    /// The turn's text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What is being written.
    pub(super) fn writing(&self) -> Kind {
        self.scanner.writing()
    }

    /// The answer shown so far, once one was begun.
    pub(super) fn answer(&self) -> Option<&str> {
        self.answer.as_ref().filter(|_| self.scanner.answered()).map(AnswerFilter::shown)
    }

    /// What may be a refusal, which is told whole once it is the turn's action.
    pub(super) fn withheld(&self) -> &str {
        &self.withheld
    }

    /// Whether one of the client's stop strings ended the answer, or a call of its tools.
    pub(super) fn stopped(&self) -> bool {
        self.answer.as_ref().is_some_and(AnswerFilter::stopped)
    }

    /// How many tokens gave some of an answer.
    pub(super) fn answer_tokens(&self) -> usize {
        let starts = [0].iter().chain(&self.ends);
        // A token may give only part of a character: it counts where the character will stand.
        let inside = |start: usize, end: usize| {
            self.answers.iter().any(|part| start < part.end && (end > part.start || start >= part.start))
        };
        starts.zip(&self.ends).filter(|(start, end)| inside(**start, **end)).count()
    }

    /// Reads a sampled token.
    pub(super) fn push(&mut self, step: &Step) -> Vec<Event> {
        self.read(step.id, Some(step))
    }

    /// Reads tokens that were written for the policy.
    pub(super) fn push_forced(&mut self, ids: &[u32]) -> Vec<Event> {
        ids.iter().flat_map(|&id| self.read(id, None)).collect()
    }

    /// Ends the turn.
    pub(super) fn finish(&mut self) -> Vec<Event> {
        let rest = self.detokenizer.finish();
        self.text.push_str(&rest);
        let mut pieces = Vec::new();
        self.scanner.push(&rest, &mut pieces);
        self.scanner.finish(&mut pieces);
        let mut events: Vec<Event> = pieces.into_iter().filter_map(|piece| self.show(piece)).collect();
        if let Some(text) = self.answer.as_mut().map(AnswerFilter::finish) {
            events.extend(self.show_answer(text));
        }
        events
    }

    fn read(&mut self, id: u32, step: Option<&Step>) -> Vec<Event> {
        let text = self.detokenizer.push(id).to_owned();
        let start = self.text.len();
        self.text.push_str(&text);
        self.ends.push(self.text.len());
        if self.tokens.is_some() {
            let token = self.logprob(id, step);
            if let Some(tokens) = &mut self.tokens {
                tokens.coming.push_back((start, self.text.len(), token));
            }
        }
        let mut pieces = Vec::new();
        self.scanner.push(&text, &mut pieces);
        pieces.into_iter().filter_map(|piece| self.show(piece)).collect()
    }

    fn logprob(&self, id: u32, step: Option<&Step>) -> TokenLogprob {
        let bytes = |id| self.tokenizer.bytes_of(id).to_vec();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let top = step.map_or(&[][..], |step| &step.top).iter().map(|&(id, logprob)| {
            let bytes = bytes(id);
            TopLogprob { id, text: text(&bytes), bytes, logprob }
        });
        let top = top.collect();
        let bytes = bytes(id);
        TokenLogprob { id, text: text(&bytes), bytes, logprob: step.map(|step| step.logprob), top }
    }

    fn show(&mut self, piece: Piece) -> Option<Event> {
        if piece.kind == Kind::Answer {
            match self.answers.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end(),
                _ => self.answers.push(piece.start..piece.end()),
            }
        }
        let tokens = self.tokens.as_mut().map(|tokens| tokens.within(&piece)).unwrap_or_default();
        let (turn, text) = (self.turn, piece.text);
        let strip = |tokens: Vec<(usize, TokenLogprob)>| tokens.into_iter().map(|(_, token)| token).collect();
        match piece.kind {
            Kind::Think => Some(Event::Think { turn, text, tokens: strip(tokens) }),
            Kind::Query => Some(Event::Query { turn, text, tokens: strip(tokens) }),
            Kind::Text => Some(Event::Text { turn, text, tokens: strip(tokens) }),
            Kind::Refusal => {
                self.withheld += &text;
                None
            }
            Kind::Answer => {
                let filter = self.answer.as_mut()?;
                if let Some(waiting) = &mut self.tokens {
                    waiting.answer.extend(tokens.into_iter().map(|(at, token)| (filter.taken() + at, token)));
                }
                let text = filter.push(&text);
                self.show_answer(text)
            }
        }
    }

    fn show_answer(&mut self, text: String) -> Option<Event> {
        if text.is_empty() {
            return None;
        }
        let passed = self.answer.as_ref().map_or(0, AnswerFilter::passed);
        let tokens = self.tokens.as_mut().map(|tokens| tokens.answer_up_to(passed)).unwrap_or_default();
        Some(Event::Answer { text, tokens })
    }
}

impl Tokens {
    /// The tokens that give some of a piece, with where in it they begin. Those before it gave tags and are dropped.
    /// A token that gives no text of its own yet belongs to the text that follows.
    fn within(&mut self, piece: &Piece) -> Vec<(usize, TokenLogprob)> {
        let mut inside = Vec::new();
        while let Some((start, end, _)) = self.coming.front() {
            if *start >= piece.end() {
                break;
            }
            let belongs = *end > piece.start || (start == end && *start >= piece.start);
            if let Some((start, _, token)) = self.coming.pop_front().filter(|_| belongs) {
                inside.push((start.saturating_sub(piece.start), token));
            }
        }
        inside
    }

    fn answer_up_to(&mut self, passed: usize) -> Vec<TokenLogprob> {
        let count = self.answer.iter().take_while(|(at, _)| *at < passed).count();
        self.answer.drain(..count).map(|(_, token)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::tokenizer::Specials;

    use super::super::tag::TAGS;
    use super::*;

    fn read(text: &str, stops: &[&str]) -> (Reader, Vec<Event>) {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let filter = AnswerFilter::new(&stops, true);
        let mut reader = Reader::new(1, tokenizer.clone(), &TAGS, Some(filter), true);
        let mut events = Vec::new();
        for id in tokenizer.encode(text, Specials::Literal).unwrap() {
            events.extend(reader.push(&Step { id, logprob: -1.0, top: vec![(id, -1.0)] }));
        }
        events.extend(reader.finish());
        (reader, events)
    }

    #[test]
    fn the_tokens_of_an_answer_spell_it() {
        let (reader, events) = read("<think>hm</think>\n<answer> Z\u{fc}rich < 3 </answer>", &[]);
        let (mut text, mut bytes) = (String::new(), Vec::new());
        for event in &events {
            if let Event::Answer { text: delta, tokens } = event {
                text += delta;
                bytes.extend(tokens.iter().flat_map(|token| token.bytes.clone()));
            }
        }
        assert_eq!(text, "Z\u{fc}rich < 3");
        assert_eq!(String::from_utf8(bytes).unwrap().trim(), text);
        assert_eq!(reader.answer(), Some(text.as_str()));
        assert_eq!(reader.answer_tokens(), " Z\u{fc}rich < 3 ".len());
        let thought = events.iter().find_map(|event| match event {
            Event::Think { tokens, .. } => Some(tokens[0].text.clone()),
            _ => None,
        });
        assert_eq!(thought.as_deref(), Some("h"));
    }

    #[test]
    fn a_stop_string_never_shows_and_takes_its_tokens_along() {
        let (reader, events) = read("<answer>one END two</answer>", &["END"]);
        assert!(reader.stopped());
        assert_eq!(reader.answer(), Some("one"));
        let tokens = events.iter().flat_map(|event| match event {
            Event::Answer { tokens, .. } => tokens.clone(),
            _ => Vec::new(),
        });
        assert_eq!(tokens.map(|token| token.text).collect::<String>(), "one");
    }

    #[test]
    fn a_search_before_any_answer_shows_no_answer() {
        let (reader, events) = read("<search> [graph] x </search>", &[]);
        assert_eq!(reader.answer(), None);
        let query: String = events
            .iter()
            .filter_map(|event| match event {
                Event::Query { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(query, " [graph] x ");
    }
}
