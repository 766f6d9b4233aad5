//! A rule between tags: what it allows, then the closing tag, and no tag before that.

use std::sync::Arc;

use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use crate::engine::{Constraint, Follow};

/// A rule whose text ends with a tag instead of the end of the sequence. Inside the text nothing begins like a tag: it
/// would be read as one. JSON can spell that byte in another way.
#[derive(Debug, Clone)]
pub(super) struct Closing(Arc<Rule>);

#[derive(Debug)]
struct Rule {
    inner: Arc<dyn Constraint>,
    ends: Arc<Ends>,
    eos: Vec<u32>,
}

/// A closing tag in a vocabulary: the same for whatever stands before it.
#[derive(Debug)]
pub(super) struct Ends {
    tokens: Arc<TokenBytes>,
    close: &'static [u8],
    /// Tokens of text in which no tag can begin.
    text: TokenMask,
    /// By how much of the tag is there: the tokens that go on with it.
    closes: Vec<TokenMask>,
}

impl Ends {
    /// Of texts that `close` ends. Looks at the whole vocabulary.
    pub(super) fn new(close: &'static str, tokens: Arc<TokenBytes>) -> Ends {
        let close = close.as_bytes();
        let text = mask(&tokens, |bytes| close.first().is_none_or(|first| !bytes.contains(first)));
        let closes = (0..close.len()).map(|at| mask(&tokens, |bytes| close[at..].starts_with(bytes))).collect();
        Ends { tokens, close, text, closes }
    }
}

impl Closing {
    /// Texts after `inner`, each ended by the tag. `eos` are the tokens with which `inner` says that its text is whole.
    pub(super) fn new(inner: Arc<dyn Constraint>, ends: Arc<Ends>, eos: Vec<u32>) -> Closing {
        Closing(Arc::new(Rule { inner, ends, eos }))
    }
}

/// The tokens that have bytes, and such ones.
pub(super) fn mask(tokens: &TokenBytes, such: impl Fn(&[u8]) -> bool) -> TokenMask {
    let mut mask = TokenMask::all(tokens.len());
    for id in 0..tokens.len() as u32 {
        let bytes = tokens.get(id);
        if bytes.is_empty() || !such(bytes) {
            mask.forbid(id);
        }
    }
    mask
}

impl Constraint for Closing {
    fn begin(&self) -> Box<dyn Follow> {
        Box::new(Text { rule: Arc::clone(&self.0), at: Place::Inside(self.0.inner.begin()) })
    }
}

#[derive(Debug)]
struct Text {
    rule: Arc<Rule>,
    at: Place,
}

#[derive(Debug)]
enum Place {
    Inside(Box<dyn Follow>),
    /// How much of the tag is there.
    Closing(usize),
}

impl Follow for Text {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let rule = &self.rule;
        match &mut self.at {
            Place::Closing(at) => Ok(rule.ends.closes.get(*at).cloned()),
            Place::Inside(inner) => {
                let mut mask = inner.allowed()?.unwrap_or_else(|| TokenMask::all(rule.ends.tokens.len()));
                let whole = rule.eos.iter().any(|&id| mask.allows(id));
                mask.keep(&rule.ends.text);
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
            Place::Closing(at) => *at += bytes.len(),
            Place::Inside(_) if bytes.first() == self.rule.ends.close.first() => self.at = Place::Closing(bytes.len()),
            Place::Inside(inner) => inner.accept(id)?,
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

    /// How much of `text` can be written.
    fn written(json: &Json, text: &str) -> String {
        let (tokenizer, eos) = (Tokenizer::bytes(), vec![257]);
        let grammar = Vocabulary::new(&tokenizer.table(), &eos).unwrap().compile(json).unwrap();
        let ends = Arc::new(Ends::new("</answer>", tokenizer.table()));
        let mut turn = Closing::new(Arc::new(grammar), ends, eos).begin();
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
}
