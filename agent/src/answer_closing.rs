//! Constraint for an answer between tags: an inner constraint, then the closing tag, and no tag before that.

use std::sync::Arc;

use waymark_engine::{Constraint, ConstraintState};
use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

/// A constraint whose text ends with a closing tag instead of the end of the sequence. Inside the text no token may
/// contain the first byte of a tag, because the byte would be read as the beginning of a tag; JSON can escape it.
#[derive(Debug, Clone)]
pub(super) struct AnswerClosing(Arc<ClosingRule>);

#[derive(Debug)]
struct ClosingRule {
    inner: Arc<dyn Constraint>,
    ends: Arc<ClosingTag>,
    eos: Vec<u32>,
}

/// A closing tag in a vocabulary, shared by all inner constraints.
#[derive(Debug)]
pub(super) struct ClosingTag {
    tokens: Arc<TokenBytes>,
    close: &'static [u8],
    /// Tokens of text in which no tag can begin.
    text: TokenMask,
    /// Tokens that continue the tag, by the number of its bytes already written.
    closes: Vec<TokenMask>,
}

impl ClosingTag {
    /// Prepares the closing tag `close`. Scans the whole vocabulary.
    pub(super) fn new(close: &'static str, tokens: Arc<TokenBytes>) -> ClosingTag {
        let close = close.as_bytes();
        let text = mask(&tokens, |bytes| close.first().is_none_or(|first| !bytes.contains(first)));
        // A token may write several bytes of the tag at once, so each position of the tag has its own mask.
        let closes = (0..close.len()).map(|at| mask(&tokens, |bytes| close[at..].starts_with(bytes))).collect();
        ClosingTag { tokens, close, text, closes }
    }
}

impl AnswerClosing {
    /// Creates a constraint for texts that follow `inner` and end with the tag. `eos` are the tokens by which `inner`
    /// signals that its text is complete.
    pub(super) fn new(inner: Arc<dyn Constraint>, ends: Arc<ClosingTag>, eos: Vec<u32>) -> AnswerClosing {
        AnswerClosing(Arc::new(ClosingRule { inner, ends, eos }))
    }
}

/// Returns a mask of the non-empty tokens whose bytes satisfy `such`.
pub(super) fn mask(tokens: &TokenBytes, such: impl Fn(&[u8]) -> bool) -> TokenMask {
    let mut mask = TokenMask::all(tokens.len());
    for id in 0..tokens.len() as u32 {
        let bytes = tokens.get(id);
        // Control tokens have no bytes, and none may appear in a constrained text.
        if bytes.is_empty() || !such(bytes) {
            mask.forbid(id);
        }
    }
    mask
}

impl Constraint for AnswerClosing {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(ClosingProgress { rule: Arc::clone(&self.0), at: ClosingState::Inside(self.0.inner.begin()) })
    }
}

#[derive(Debug)]
struct ClosingProgress {
    rule: Arc<ClosingRule>,
    at: ClosingState,
}

#[derive(Debug)]
enum ClosingState {
    Inside(Box<dyn ConstraintState>),
    /// Inside the tag: number of its bytes written.
    Closing(usize),
}

impl ConstraintState for ClosingProgress {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let rule = &self.rule;
        match &mut self.at {
            ClosingState::Closing(at) => Ok(rule.ends.closes.get(*at).cloned()),
            ClosingState::Inside(inner) => {
                let mut mask = inner.allowed()?.unwrap_or_else(|| TokenMask::all(rule.ends.tokens.len()));
                let whole = rule.eos.iter().any(|&id| mask.allows(id));
                mask.keep(&rule.ends.text);
                rule.eos.iter().for_each(|&id| mask.forbid(id));
                // Where the inner text may end, the tag takes the place of the end of the sequence.
                if let Some(begins) = rule.ends.closes.first().filter(|_| whole) {
                    mask.add(begins);
                }
                Ok(Some(mask))
            }
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let bytes = self.rule.ends.tokens.get(id);
        match &mut self.at {
            ClosingState::Closing(at) => *at += bytes.len(),
            // No token inside the text contains this byte, so it can only begin the tag.
            ClosingState::Inside(_) if bytes.first() == self.rule.ends.close.first() => {
                self.at = ClosingState::Closing(bytes.len())
            }
            ClosingState::Inside(inner) => inner.accept(id)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::grammar::{Json, Vocabulary};
    use waymark_models::tokenizer::{Specials, Tokenizer};

    use super::*;

    /// Returns the prefix of `text` that the constraint allows.
    fn written(json: &Json, text: &str) -> String {
        let tokenizer = Tokenizer::bytes();
        let eos = vec![257];
        let grammar = Vocabulary::new(&tokenizer.table(), &eos).unwrap().compile(json).unwrap();
        let ends = Arc::new(ClosingTag::new("</answer>", tokenizer.table()));
        let mut turn = AnswerClosing::new(Arc::new(grammar), ends, eos).begin();
        let ids = tokenizer.encode(text, Specials::Literal).unwrap();
        for (at, id) in ids.into_iter().enumerate() {
            let mask = turn.allowed().unwrap().unwrap();
            assert!(!mask.is_empty() && !mask.allows(257), "{text}");
            if !mask.allows(id) {
                return text[..at].to_owned();
            }
            turn.accept(id).unwrap();
        }
        text.to_owned()
    }

    #[test]
    fn the_tag_follows_a_whole_text_and_stands_nowhere_in_it() {
        let number = Json::Schema(serde_json::json!({"type": "integer"}));
        for (json, text, fits) in [
            (&Json::Object, r#"{"a": "b"}</answer>"#, r#"{"a": "b"}</answer>"#),
            (&Json::Object, r#"{"a": "b</answer>"#, r#"{"a": "b"#),
            (&Json::Object, r#"{"a": "<think>"}</answer>"#, r#"{"a": ""#),
            (&Json::Object, r#"{"a": "\u003cb>"}</answer>"#, r#"{"a": "\u003cb>"}</answer>"#),
            (&Json::Object, r#"{"a": "b"}</think>"#, r#"{"a": "b"}</"#),
            (&number, "127</answer>", "127</answer>"),
            (&number, "-</answer>", "-"),
        ] {
            assert_eq!(written(json, text), fits);
        }
    }

    #[test]
    fn an_end_token_with_bytes_does_not_take_the_place_of_the_tag() {
        let mut tokens = TokenBytes::clone(&Tokenizer::bytes().table());
        let end = tokens.len() as u32;
        tokens.push(b"[end]", false);
        let tokens = Arc::new(tokens);
        let number = Json::Schema(serde_json::json!({"type": "integer"}));
        let grammar = Vocabulary::new(&tokens, &[end]).unwrap().compile(&number).unwrap();
        let ends = Arc::new(ClosingTag::new("</answer>", tokens));
        let mut turn = AnswerClosing::new(Arc::new(grammar), ends, vec![end]).begin();
        turn.accept(u32::from(b'1')).unwrap();
        let mask = turn.allowed().unwrap().unwrap();
        assert!(mask.allows(u32::from(b'<')) && !mask.allows(end));
    }
}
