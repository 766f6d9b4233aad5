//! One answer while it is written, with its tokens as this interface shows them.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::completion::{CompletionChoice, TextLogProbs};
use crate::agent::TokenLogprob;

/// What OpenAI's interface sends for a probability of nothing.
const LEAST: f32 = -9999.0;

/// An answer on its way.
#[derive(Debug)]
pub(super) struct Draft {
    /// Not shown yet.
    echo: String,
    /// How many alternatives are shown; none where no log-probabilities are.
    top: Option<usize>,
    /// Characters shown so far.
    shown: usize,
}

impl Draft {
    pub(super) fn new(echo: String, top: Option<usize>) -> Draft {
        Draft { echo, top, shown: 0 }
    }

    /// What the answer begins with, if with anything.
    pub(super) fn begin(&mut self, index: usize) -> Option<CompletionChoice> {
        let echo = std::mem::take(&mut self.echo);
        (!echo.is_empty()).then(|| self.piece(index, echo, &[]))
    }

    /// More of it.
    pub(super) fn piece(&mut self, index: usize, text: String, tokens: &[TokenLogprob]) -> CompletionChoice {
        let logprobs = self.top.map(|top| self.logprobs(top, &text, tokens));
        self.shown += text.chars().count();
        CompletionChoice { text, index, logprobs, finish_reason: None }
    }

    fn logprobs(&self, top: usize, text: &str, tokens: &[TokenLogprob]) -> TextLogProbs {
        let mut shown = TextLogProbs { top_logprobs: (top > 0).then(Vec::new), ..TextLogProbs::default() };
        let mut at = 0;
        for token in tokens {
            // A token may begin inside a character; it is told to begin where that does.
            let before = text.char_indices().take_while(|&(start, c)| start + c.len_utf8() <= at).count();
            shown.text_offset.push(self.shown + before);
            at += token.bytes.len();
            let name = name(&token.bytes);
            if let Some(tops) = &mut shown.top_logprobs {
                let alternatives =
                    token.top.iter().map(|other| (self::name(&other.bytes), number(Some(other.logprob))));
                let mut all: Map<String, Value> = alternatives.collect();
                all.entry(name.clone()).or_insert_with(|| number(token.logprob));
                tops.push(all);
            }
            shown.tokens.push(name);
            shown.token_logprobs.push(token.logprob.map(|logprob| logprob.max(LEAST)));
        }
        shown
    }
}

/// A token's bytes as text, if they are, else spelled out.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}

/// JSON has no infinities, which impossible tokens have.
fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |logprob| Value::from(logprob.max(LEAST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8]) -> TokenLogprob {
        TokenLogprob { id: 0, text: String::new(), bytes: bytes.to_vec(), logprob: Some(-1.0), top: Vec::new() }
    }

    #[test]
    fn tokens_inside_a_character_begin_where_it_does() {
        let mut draft = Draft::new(String::new(), Some(1));
        let first = draft.piece(0, "é".into(), &[token(b"\xc3"), token(b"\xa9")]).logprobs.unwrap_or_default();
        assert_eq!(first.tokens, ["bytes:\\xc3", "bytes:\\xa9"]);
        assert_eq!(first.text_offset, [0, 0]);
        let next = draft.piece(0, "ab".into(), &[token(b"a"), token(b"b")]).logprobs.unwrap_or_default();
        assert_eq!(next.text_offset, [1, 2]);
        assert_eq!(next.top_logprobs.unwrap_or_default()[0].get("a"), Some(&Value::from(-1.0f32)));
    }

    #[test]
    fn without_the_option_nothing_is_told() {
        let mut draft = Draft::new("Once".into(), None);
        assert_eq!(draft.begin(0).map(|choice| choice.text).as_deref(), Some("Once"));
        assert!(draft.begin(0).is_none());
        assert!(draft.piece(0, "a".into(), &[token(b"a")]).logprobs.is_none());
    }
}
