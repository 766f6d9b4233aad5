//! Tool calls that a policy writes in its answer.

use std::collections::VecDeque;

use waymark_agent::TokenLogprob;
use waymark_agent::tool_call::{CallScanner, ReplySegment, ToolCallText};

/// Part of an answer that may hold tool calls.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    /// Text with its tokens, if they were requested.
    Text(String, Vec<TokenLogprob>),
    /// Complete call.
    Call(ToolCallText),
}

/// Separates the tool calls of one answer from its text.
#[derive(Debug)]
pub(crate) struct CallParser {
    scanner: CallScanner,
    /// Tokens not returned yet, by their byte offset in the answer.
    tokens: VecDeque<(usize, TokenLogprob)>,
    /// Length of the answer so far, in bytes.
    taken: usize,
}

impl CallParser {
    /// Creates a parser for the beginning of an answer. `tools` are the tools that may be called. `None` if there are
    /// none.
    pub(crate) fn new(tools: &[String]) -> Option<CallParser> {
        let parser = CallParser { scanner: CallScanner::new(tools.to_vec()), tokens: VecDeque::new(), taken: 0 };
        (!tools.is_empty()).then_some(parser)
    }

    /// Reads more of the answer. Returns the parts that are now certain.
    pub(crate) fn read(&mut self, text: &str, tokens: Vec<TokenLogprob>) -> Vec<AnswerPart> {
        let mut at = 0;
        for token in tokens {
            // A token without a whole character belongs to the text it arrives with.
            let within = at.min(text.len().saturating_sub(1));
            at += token.bytes.len();
            self.tokens.push_back((self.taken + within, token));
        }
        self.taken += text.len();
        let parts = self.scanner.push(text);
        self.parts(parts)
    }

    /// Ends the answer. If `ended` is `true`, the policy ended it by itself.
    pub(crate) fn finish(&mut self, ended: bool) -> Vec<AnswerPart> {
        let parts = self.scanner.finish(ended);
        self.parts(parts)
    }

    fn parts(&mut self, parts: Vec<ReplySegment>) -> Vec<AnswerPart> {
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    /// Adds the tokens of a part. Tokens of a call, and of white space around it, are not reported.
    fn part(&mut self, part: ReplySegment) -> AnswerPart {
        match part {
            ReplySegment::Text(text, start) => {
                let count = self.tokens.iter().take_while(|(at, _)| *at < start + text.len()).count();
                // A token that begins in the white space before the text still contributes to the text if it extends
                // into it.
                let gives = |at: usize, token: &TokenLogprob| at >= start || at + token.bytes.len() > start;
                let inside = self.tokens.drain(..count).filter(|(at, token)| gives(*at, token));
                let tokens = inside.map(|(_, token)| token).collect();
                AnswerPart::Text(text, tokens)
            }
            ReplySegment::Call(call) => AnswerPart::Call(call),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_token_that_begins_with_the_space_behind_a_call_is_told() {
        let read = |calls: &mut CallParser, text: &str| {
            let bytes = text.as_bytes().to_vec();
            let top = Vec::new();
            calls.read(text, vec![TokenLogprob { id: 0, text: text.into(), bytes, logprob: Some(-1.0), top }])
        };
        let mut calls = CallParser::new(&["look".into()]).unwrap();
        let call = read(&mut calls, "<tool_call>{\"name\": \"look\"}</tool_call>");
        assert!(matches!(&call[..], [AnswerPart::Call(_)]), "{call:?}");
        assert!(read(&mut calls, "\n").is_empty());
        let parts = read(&mut calls, " Done");
        let [AnswerPart::Text(text, tokens)] = &parts[..] else { panic!("{parts:?}") };
        let tokens: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!((text.as_str(), tokens), ("Done", vec![" Done"]));
        assert!(CallParser::new(&[]).is_none());
    }
}
