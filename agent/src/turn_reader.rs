//! Conversion of a turn's tokens to events.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use waymark_engine::TokenStep;
use waymark_models::tokenizer::{Detokenizer, Tokenizer};

use super::answer_filter::AnswerFilter;
use super::event::Event;
use super::scanner::{Scanner, TextPiece};
use super::segment::{SegmentKind, Tags};
use super::token_logprob::{TokenLogprob, TopLogprob};
use super::tool_call::ToolCallText;
use super::turn_calls::TurnCalls;

/// Reads one turn while it is written, and keeps its text.
#[derive(Debug)]
pub(super) struct TurnReader {
    turn: usize,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    scanner: Scanner,
    text: String,
    /// Filter of the answer. `None` shows no answer while it is written.
    answer: Option<AnswerFilter>,
    /// Reader of calls outside the answer. `None` if no tool can be called there.
    calls: Option<TurnCalls>,
    tokens: Option<PendingTokens>,
    /// IDs of tokens that end the turn and whose text is not part of it.
    stop_ids: Vec<u32>,
    /// End of each token in the text, for counting the tokens of reasoning.
    ends: Vec<usize>,
    /// Ranges of reasoning and queries, without tags.
    reasoning: Vec<Range<usize>>,
    /// Ranges of answers, without tags.
    answers: Vec<Range<usize>>,
    thought: String,
    withheld: String,
}

/// A token with its byte range in a text. The range is empty if the token is a part of a character that ends later.
#[derive(Debug)]
struct PlacedToken {
    start: usize,
    end: usize,
    logprob: TokenLogprob,
}

impl PlacedToken {
    /// Moves the token behind a text of `bytes` bytes.
    fn after(self, bytes: usize) -> PlacedToken {
        PlacedToken { start: bytes + self.start, end: bytes + self.end, ..self }
    }

    /// Returns `true` if nothing of the token is in the text after its first `bytes` bytes.
    fn is_within(&self, bytes: usize) -> bool {
        self.start < bytes && self.end <= bytes
    }
}

/// Tokens waiting for the delta that shows them.
#[derive(Debug, Default)]
struct PendingTokens {
    /// Tokens with their byte ranges in the turn's text.
    coming: VecDeque<(usize, usize, TokenLogprob)>,
    /// Tokens of the text in which calls are looked for.
    outside: VecDeque<PlacedToken>,
    /// Tokens of the answer.
    answer: VecDeque<PlacedToken>,
}

impl TurnReader {
    /// Creates a reader for the beginning of a turn.
    pub(super) fn new(
        turn: usize,
        tokenizer: Arc<Tokenizer>,
        tags: &'static Tags,
        answer: Option<AnswerFilter>,
        logprobs: bool,
    ) -> TurnReader {
        TurnReader {
            turn,
            detokenizer: Detokenizer::new(tokenizer.table()),
            tokenizer,
            scanner: Scanner::new(tags),
            text: String::new(),
            answer,
            calls: None,
            tokens: logprobs.then(PendingTokens::default),
            stop_ids: Vec::new(),
            ends: Vec::new(),
            reasoning: Vec::new(),
            answers: Vec::new(),
            thought: String::new(),
            withheld: String::new(),
        }
    }

    /// Starts the turn inside `kind`, which the prompt has opened.
    pub(super) fn inside(self, tags: &'static Tags, kind: SegmentKind) -> TurnReader {
        TurnReader { scanner: Scanner::inside(tags, kind), ..self }
    }

    /// Lets a call of one of these tools, outside all tags, end the turn. An empty list has no effect.
    pub(super) fn calling(self, names: &[String], tags: &'static Tags) -> TurnReader {
        let calls = (!names.is_empty()).then(|| TurnCalls::new(names, tags.outside));
        TurnReader { calls, ..self }
    }

    /// Leaves out the text of these tokens if they are sampled, as vLLM does: they only end the turn.
    pub(super) fn ended_by(self, stop_ids: &[u32]) -> TurnReader {
        TurnReader { stop_ids: stop_ids.to_vec(), ..self }
    }

    /// Returns the turn's text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the kind of text being written.
    pub(super) fn writing(&self) -> SegmentKind {
        self.scanner.writing()
    }

    /// Returns `true` if an answer has begun.
    pub(super) fn answered(&self) -> bool {
        self.scanner.answered()
    }

    /// Returns the text of the answer after the last tag in it. Empty before an answer begins.
    pub(super) fn last_answer(&self) -> &str {
        self.answers.last().and_then(|part| self.text.get(part.clone())).unwrap_or_default()
    }

    /// Returns the answer shown so far. `None` before an answer begins.
    pub(super) fn answer(&self) -> Option<&str> {
        self.answer.as_ref().filter(|_| self.answered()).map(AnswerFilter::shown)
    }

    /// Returns the reasoning so far, without its tags.
    pub(super) fn thought(&self) -> &str {
        &self.thought
    }

    /// Returns the text of a possible refusal, which is reported as a whole once it is the turn's action.
    pub(super) fn withheld(&self) -> &str {
        &self.withheld
    }

    /// Returns the call that ended the turn, if one did.
    pub(super) fn call(&self) -> Option<&ToolCallText> {
        self.calls.as_ref().and_then(TurnCalls::call)
    }

    /// Returns `true` if a client's stop string or a tool call ended the turn.
    pub(super) fn stopped(&self) -> bool {
        self.answer.as_ref().is_some_and(AnswerFilter::stopped) || self.call().is_some()
    }

    /// Returns the number of tokens that contributed to reasoning or a query: those of the answer, of tags, of stop
    /// strings and of the turn's end do not.
    pub(super) fn reasoning_tokens(&self) -> usize {
        let starts = [0].iter().chain(&self.ends);
        let mut parts = self.reasoning.iter().peekable();
        let mut inside = |start: usize, end: usize| {
            while parts.next_if(|part| part.end <= start).is_some() {}
            // A token may be only a part of a character: it counts where the character will be.
            parts.peek().is_some_and(|part| end > part.start || start >= part.start)
        };
        starts.zip(&self.ends).filter(|(start, end)| inside(**start, **end)).count()
    }

    /// Reads a sampled token.
    pub(super) fn push(&mut self, step: &TokenStep) -> Vec<Event> {
        self.read(step.id, Some(step))
    }

    /// Reads forced tokens.
    pub(super) fn push_forced(&mut self, ids: &[u32]) -> Vec<Event> {
        ids.iter().flat_map(|&id| self.read(id, None)).collect()
    }

    /// Ends the turn.
    pub(super) fn finish(&mut self) -> Vec<Event> {
        self.end(Scanner::finish)
    }

    /// Ends a turn that was cut off: a part of a tag at its end is not shown as answer.
    pub(super) fn cut(&mut self) -> Vec<Event> {
        self.end(Scanner::cut)
    }

    fn end(&mut self, end: fn(&mut Scanner, &mut Vec<TextPiece>)) -> Vec<Event> {
        let rest = self.detokenizer.finish();
        self.text.push_str(&rest);
        let mut pieces = Vec::new();
        self.scanner.push(&rest, &mut pieces);
        end(&mut self.scanner, &mut pieces);
        let mut events: Vec<Event> = pieces.into_iter().filter_map(|piece| self.show(piece)).collect();
        if let Some(text) = self.calls.as_mut().map(TurnCalls::finish).filter(|text| !text.is_empty()) {
            let tokens = strip(self.outside_tokens());
            events.push(Event::Text { turn: self.turn, text, tokens });
        }
        if let Some(text) = self.answer.as_mut().map(AnswerFilter::finish) {
            events.extend(self.show_answer(text));
        }
        events
    }

    fn read(&mut self, id: u32, step: Option<&TokenStep>) -> Vec<Event> {
        let is_end = step.is_some() && self.stop_ids.contains(&id);
        let text = if is_end { String::new() } else { self.detokenizer.push(id).to_owned() };
        let start = self.text.len();
        self.text.push_str(&text);
        self.ends.push(self.text.len());
        // Looking up log-probabilities copies bytes, so it is skipped unless requested.
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

    fn logprob(&self, id: u32, step: Option<&TokenStep>) -> TokenLogprob {
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

    fn show(&mut self, piece: TextPiece) -> Option<Event> {
        let parts = match piece.kind {
            SegmentKind::Answer => Some(&mut self.answers),
            // Text outside all tags is shown as reasoning.
            SegmentKind::Think | SegmentKind::Query | SegmentKind::Text => Some(&mut self.reasoning),
            SegmentKind::Refusal => None,
        };
        if let Some(parts) = parts {
            match parts.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end(),
                _ => parts.push(piece.start..piece.end()),
            }
        }
        let tokens = self.tokens.as_mut().map(|tokens| tokens.within(&piece)).unwrap_or_default();
        let turn = self.turn;
        let kind = piece.kind;
        let (text, tokens) = self.before_call(piece, tokens);
        if text.is_empty() {
            return None;
        }
        match kind {
            SegmentKind::Think => {
                self.thought += &text;
                Some(Event::Think { turn, text, tokens: strip(tokens) })
            }
            SegmentKind::Query => Some(Event::Query { turn, text, tokens: strip(tokens) }),
            SegmentKind::Text => Some(Event::Text { turn, text, tokens: strip(tokens) }),
            SegmentKind::Refusal => {
                self.withheld += &text;
                None
            }
            SegmentKind::Answer => {
                let filter = self.answer.as_mut()?;
                if let Some(waiting) = &mut self.tokens {
                    waiting.answer.extend(tokens.into_iter().map(|token| token.after(filter.taken())));
                }
                let text = filter.push(&text);
                self.show_answer(text)
            }
        }
    }

    /// Returns the text of a piece with its tokens. In a piece in which a call may begin, text is held back until it is
    /// known to belong to no call.
    fn before_call(&mut self, piece: TextPiece, tokens: Vec<PlacedToken>) -> (String, Vec<PlacedToken>) {
        let answered = self.scanner.answered();
        let Some(calls) = self.calls.as_mut().filter(|calls| !answered && calls.reads(piece.kind)) else {
            return (piece.text, tokens);
        };
        if let Some(waiting) = &mut self.tokens {
            waiting.outside.extend(tokens.into_iter().map(|token| token.after(calls.taken())));
        }
        let text = calls.read(&piece);
        (text, self.outside_tokens())
    }

    /// Takes the tokens of the text outside all tags that is known to belong to no call.
    fn outside_tokens(&mut self) -> Vec<PlacedToken> {
        let passed = self.calls.as_ref().map_or(0, TurnCalls::passed);
        self.tokens.as_mut().map(|tokens| up_to(&mut tokens.outside, passed)).unwrap_or_default()
    }

    fn show_answer(&mut self, text: String) -> Option<Event> {
        if text.is_empty() {
            return None;
        }
        let passed = self.answer.as_ref().map_or(0, AnswerFilter::passed);
        let skipped = self.answer.as_ref().map_or(0, AnswerFilter::skipped);
        let mut tokens = self.tokens.as_mut().map(|tokens| up_to(&mut tokens.answer, passed)).unwrap_or_default();
        // The white space before the answer is not shown, so neither are its tokens.
        tokens.retain(|token| !token.is_within(skipped));
        Some(Event::Answer { text, tokens: strip(tokens) })
    }
}

impl PendingTokens {
    /// Returns the tokens of a piece with their ranges in it. Earlier tokens belong to tags and are dropped. A token
    /// without text of its own belongs to the text that follows.
    fn within(&mut self, piece: &TextPiece) -> Vec<PlacedToken> {
        let mut inside = Vec::new();
        while let Some((start, end, _)) = self.coming.front() {
            if *start >= piece.end() {
                break;
            }
            let belongs = *end > piece.start || (start == end && *start >= piece.start);
            if let Some((start, end, logprob)) = self.coming.pop_front().filter(|_| belongs) {
                let in_piece = |at: usize| at.saturating_sub(piece.start);
                inside.push(PlacedToken { start: in_piece(start), end: in_piece(end), logprob });
            }
        }
        inside
    }
}

/// Takes the tokens that start before `passed`.
fn up_to(tokens: &mut VecDeque<PlacedToken>, passed: usize) -> Vec<PlacedToken> {
    let count = tokens.iter().take_while(|token| token.start < passed).count();
    tokens.drain(..count).collect()
}

fn strip(tokens: Vec<PlacedToken>) -> Vec<TokenLogprob> {
    tokens.into_iter().map(|token| token.logprob).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::tokenizer::Specials;

    use super::super::plain::Plain;
    use super::super::protocol::Protocol;
    use super::super::tag::TAGS;
    use super::*;

    fn reader(stops: &[&str]) -> TurnReader {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let filter = AnswerFilter::new(&stops, true);
        TurnReader::new(1, Arc::new(Tokenizer::bytes()), &TAGS, Some(filter), true)
    }

    fn read(text: &str, stops: &[&str]) -> (TurnReader, Vec<Event>) {
        read_by(reader(stops), text)
    }

    /// Reads a turn to its end, in tokens of one byte.
    fn read_by(mut reader: TurnReader, text: &str) -> (TurnReader, Vec<Event>) {
        let mut events = Vec::new();
        for id in Tokenizer::bytes().encode(text, Specials::Literal).unwrap() {
            events.extend(reader.push(&TokenStep { id, logprob: -1.0, top: vec![(id, -1.0)] }));
        }
        events.extend(reader.finish());
        (reader, events)
    }

    #[test]
    fn the_tokens_of_an_answer_spell_it() {
        let (reader, events) = read("<think>hm</think>\n<answer> Z\u{fc}rich < 3 </answer>", &[]);
        let mut text = String::new();
        let mut bytes = Vec::new();
        for event in &events {
            if let Event::Answer { text: delta, tokens } = event {
                text += delta;
                bytes.extend(tokens.iter().flat_map(|token| token.bytes.clone()));
            }
        }
        assert_eq!(text, "Z\u{fc}rich < 3");
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
        assert_eq!(reader.answer(), Some(text.as_str()));
        assert_eq!(reader.reasoning_tokens(), "hm\n".len());
        let thought = events.iter().find_map(|event| match event {
            Event::Think { tokens, .. } => Some(tokens[0].text.clone()),
            _ => None,
        });
        assert_eq!(thought.as_deref(), Some("h"));
    }

    #[test]
    fn tokens_of_white_space_before_an_answer_are_left_out() {
        // The first character is white space of three tokens.
        for (answer, spelled) in [("\u{3000}\n a b \n", "a b"), (" \n ", ""), ("\u{fc}", "\u{fc}")] {
            let (_, events) = read(&format!("<answer>{answer}</answer>"), &[]);
            let mut bytes = Vec::new();
            for event in &events {
                if let Event::Answer { tokens, .. } = event {
                    bytes.extend(tokens.iter().flat_map(|token| token.bytes.clone()));
                }
            }
            assert_eq!(String::from_utf8(bytes).unwrap(), spelled);
        }
        let blank = TokenLogprob { id: 0, text: String::new(), bytes: Vec::new(), logprob: None, top: Vec::new() };
        let token = |start, end| PlacedToken { start, end, logprob: blank.clone() };
        assert!(token(0, 1).is_within(2) && token(1, 2).is_within(2) && token(0, 0).is_within(2));
        assert!(!token(1, 3).is_within(2), "a token that is shown in part");
        assert!(!token(2, 2).is_within(2), "a part of the next character");
    }

    #[test]
    fn a_thought_has_no_tags_and_may_begin_in_the_prompt() {
        let (whole, _) = read("<think>One, </think><think>two</think><search>x</search>", &[]);
        assert_eq!(whole.thought(), "One, two");
        let (opened, _) = read_by(reader(&[]).inside(&TAGS, SegmentKind::Think), "Three</think>\n<answer>y</answer>");
        assert_eq!(opened.thought(), "Three");
    }

    #[test]
    fn neither_the_answer_nor_the_end_of_a_turn_is_reasoning() {
        let end = [u32::from(b'!')];
        let tagged = || reader(&["END"]).ended_by(&end);
        let plain = || TurnReader { scanner: Scanner::new(Plain.tags()), ..tagged() };
        for (reader, turn, tokens) in [
            (plain(), "Hi!", 0),
            (plain(), "!", 0),
            (plain(), "<think>hm</think>Hi!", 2),
            (plain(), "Hi END", 0),
            (tagged(), "<answer>Hi</answer>!", 0),
            (tagged(), "<think>a</think><search>bc</search>!", 3),
            (tagged(), "<think>\u{e9}</think> d <answer>Hi END", 5),
        ] {
            assert_eq!(read_by(reader, turn).0.reasoning_tokens(), tokens, "{turn}");
        }
    }

    #[test]
    fn text_held_back_for_a_call_keeps_its_tokens() {
        const CALL: &str = "<tool_call>{\"name\": \"f\"}</tool_call>";
        const NONE: &str = "a <tool_call> b </tool_call> c \n<tool <think>d</think> e <tool_ca";
        let shown = "a <tool_call> b </tool_call> c \n<tool  e <tool_ca";
        for (turn, expected) in [(NONE.to_owned(), shown), (format!("a < b {CALL}"), "a < b")] {
            let (_, events) = read_by(reader(&[]).calling(&["f".to_owned()], &TAGS), &turn);
            let mut written = String::new();
            for event in &events {
                let Event::Text { text, tokens, .. } = event else { continue };
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.bytes.clone()).collect();
                assert_eq!(String::from_utf8(bytes).unwrap(), *text, "{turn}");
                written += text;
            }
            assert_eq!(written, expected);
        }
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
