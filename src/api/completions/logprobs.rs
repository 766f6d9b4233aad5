//! Completion answers under construction, with their tokens in the format of `/v1/completions`.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use waymark_agent::TokenLogprob;

use super::completion::{CompletionChoice, TextLogProbs};
use crate::api::sampling_params::MIN_LOGPROB;

/// Answer under construction.
#[derive(Debug)]
pub(super) struct CompletionBuilder {
    /// Echoed prompt, not sent yet.
    echo: String,
    /// Number of alternatives per token. `None` sends no log-probabilities.
    top: Option<usize>,
    /// Number of characters sent so far.
    shown: usize,
    /// Number of bytes of the last token that are not sent yet, because they may begin a stop string.
    ahead: usize,
}

impl CompletionBuilder {
    pub(super) fn new(echo: String, top: Option<usize>) -> CompletionBuilder {
        CompletionBuilder { echo, top, shown: 0, ahead: 0 }
    }

    /// Returns the echoed prompt as the first piece, if there is one.
    pub(super) fn begin(&mut self, index: usize) -> Option<CompletionChoice> {
        let echo = std::mem::take(&mut self.echo);
        (!echo.is_empty()).then(|| self.piece(index, echo, &[]))
    }

    /// Returns the next piece of the answer.
    pub(super) fn piece(&mut self, index: usize, text: String, tokens: &[TokenLogprob]) -> CompletionChoice {
        let logprobs = self.top.map(|top| self.logprobs(top, &text, tokens));
        self.shown += text.chars().count();
        CompletionChoice { text, index, logprobs, finish_reason: None }
    }

    fn logprobs(&mut self, top: usize, text: &str, tokens: &[TokenLogprob]) -> TextLogProbs {
        let mut shown = TextLogProbs { top_logprobs: (top > 0).then(Vec::new), ..TextLogProbs::default() };
        let mut at = self.ahead;
        for token in tokens {
            // A token may begin inside a character; its reported offset is the beginning of that character.
            let before = text.char_indices().take_while(|&(start, c)| start + c.len_utf8() <= at).count();
            shown.text_offset.push(self.shown + before);
            at += token.bytes.len();
            let name = name(&token.bytes);
            if let Some(tops) = &mut shown.top_logprobs {
                let alternatives =
                    token.top.iter().map(|other| (self::name(&other.bytes), number(Some(other.logprob))));
                let mut all: Map<String, Value> = alternatives.collect();
                // The sampled token is listed even if it is not among the most probable.
                all.entry(name.clone()).or_insert_with(|| number(token.logprob));
                tops.push(all);
            }
            shown.tokens.push(name);
            shown.token_logprobs.push(token.logprob.map(|logprob| logprob.max(MIN_LOGPROB)));
        }
        self.ahead = at.saturating_sub(text.len());
        shown
    }
}

/// Returns a token's bytes as text if they are UTF-8, and escaped otherwise.
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

/// Converts a log-probability to JSON, which has no infinities. That of an impossible token is infinite and becomes
/// [`MIN_LOGPROB`].
fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |logprob| Value::from(logprob.max(MIN_LOGPROB)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8]) -> TokenLogprob {
        TokenLogprob { id: 0, text: String::new(), bytes: bytes.to_vec(), logprob: Some(-1.0), top: Vec::new() }
    }

    #[test]
    fn tokens_inside_a_character_begin_where_it_does() {
        let mut draft = CompletionBuilder::new(String::new(), Some(1));
        let first = draft.piece(0, "é".into(), &[token(b"\xc3"), token(b"\xa9")]).logprobs.unwrap_or_default();
        assert_eq!(first.tokens, ["bytes:\\xc3", "bytes:\\xa9"]);
        assert_eq!(first.text_offset, [0, 0]);
        let next = draft.piece(0, "ab".into(), &[token(b"a"), token(b"b")]).logprobs.unwrap_or_default();
        assert_eq!(next.text_offset, [1, 2]);
        assert_eq!(next.top_logprobs.unwrap_or_default()[0].get("a"), Some(&Value::from(-1.0f32)));
    }

    #[test]
    fn a_token_that_is_sent_in_part_counts_once() {
        let mut draft = CompletionBuilder::new(String::new(), Some(0));
        // Half of a stop string is held back until the next token.
        let first = draft.piece(0, "foo".into(), &[token(b"foo\n")]).logprobs.unwrap_or_default();
        let next = draft.piece(0, "\nbar!".into(), &[token(b"bar"), token(b"!")]).logprobs.unwrap_or_default();
        assert_eq!((first.text_offset, next.text_offset), (vec![0], vec![4, 7]));
    }

    #[test]
    fn without_the_option_nothing_is_told() {
        let mut draft = CompletionBuilder::new("Once".into(), None);
        assert_eq!(draft.begin(0).map(|choice| choice.text).as_deref(), Some("Once"));
        assert!(draft.begin(0).is_none());
        assert!(draft.piece(0, "a".into(), &[token(b"a")]).logprobs.is_none());
    }
}
