//! A reply that must be a call of a tool: its words are given, its arguments are held to their schema.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark_models::chat::Tool;
use waymark_models::grammar::{Json, Vocabulary};
use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use super::AgentError;
use super::call::{CLOSE, OPEN};
use super::closing::mask;
use crate::engine::{Constraint, Follow};

/// One call, of one of several tools, and nothing else.
#[derive(Debug, Clone)]
pub(super) struct Calling(Arc<Rule>);

#[derive(Debug)]
struct Rule {
    tokens: Arc<TokenBytes>,
    eos: Vec<u32>,
    ways: Vec<Way>,
    /// What follows the arguments.
    after: String,
}

/// A call of one tool.
#[derive(Debug)]
struct Way {
    /// What stands before the arguments. None begins another: the name in it is closed.
    before: String,
    arguments: Arc<dyn Constraint>,
}

impl Calling {
    /// Calls of `tools`, each with the arguments that its parameters describe. `eos` are the tokens that end a reply.
    pub(super) fn new<'a>(
        tools: impl Iterator<Item = &'a Tool>,
        vocabulary: &Vocabulary,
        tokens: Arc<TokenBytes>,
        eos: &[u32],
    ) -> Result<Calling, AgentError> {
        let way = |tool: &Tool| -> Result<Way, AgentError> {
            let refused = |reason| AgentError::Tool { name: tool.name.clone(), reason };
            let arguments: Arc<dyn Constraint> = Arc::new(vocabulary.compile(&arguments(tool)).map_err(refused)?);
            let before = format!("{OPEN}\n{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str()));
            Ok(Way { before, arguments })
        };
        let ways = tools.map(way).collect::<Result<_, _>>()?;
        let after = format!("}}\n{CLOSE}");
        Ok(Calling(Arc::new(Rule { tokens, eos: eos.to_vec(), ways, after })))
    }
}

/// What the arguments of a tool are: an object, even where its parameters do not say so.
fn arguments(tool: &Tool) -> Json {
    match &tool.parameters {
        Some(Value::Object(fields)) if !fields.contains_key("type") => {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), json!("object"));
            Json::Schema(Value::Object(fields))
        }
        Some(schema) => Json::Schema(schema.clone()),
        None => Json::Object,
    }
}

impl Constraint for Calling {
    fn begin(&self) -> Box<dyn Follow> {
        Box::new(Reply {
            rule: Arc::clone(&self.0),
            at: Place::Before { written: 0, ways: (0..self.0.ways.len()).collect() },
        })
    }
}

#[derive(Debug)]
struct Reply {
    rule: Arc<Rule>,
    at: Place,
}

#[derive(Debug)]
enum Place {
    /// How much is there of what stands before the arguments, and which ways begin so.
    Before { written: usize, ways: Vec<usize> },
    /// The arguments, and whether they are whole: an object is when nothing can follow it.
    Inside { arguments: Box<dyn Follow>, whole: bool },
    /// How much is there of what follows them.
    After(usize),
}

impl Rule {
    /// What is left to be written of `text` after so many bytes of it.
    fn rest(text: &str, written: usize) -> &[u8] {
        text.as_bytes().get(written..).unwrap_or_default()
    }

    fn goes_on(&self, way: usize, written: usize, bytes: &[u8]) -> bool {
        Self::rest(&self.ways[way].before, written).starts_with(bytes)
    }

    fn ends(&self, written: usize) -> TokenMask {
        let rest = Self::rest(&self.after, written);
        if !rest.is_empty() {
            return mask(&self.tokens, |bytes| rest.starts_with(bytes));
        }
        let mut words = vec![0; self.tokens.len().div_ceil(u32::BITS as usize)];
        for &id in &self.eos {
            if let Some(word) = words.get_mut((id / u32::BITS) as usize) {
                *word |= 1 << (id % u32::BITS);
            }
        }
        TokenMask::from_words(words, self.tokens.len())
    }
}

impl Follow for Reply {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let rule = &self.rule;
        match &mut self.at {
            Place::Before { written, ways } => {
                let goes_on = |bytes: &[u8]| ways.iter().any(|&way| rule.goes_on(way, *written, bytes));
                Ok(Some(mask(&rule.tokens, goes_on)))
            }
            Place::Inside { arguments, whole } => {
                let mask = arguments.allowed()?;
                *whole = mask.as_ref().is_some_and(|mask| rule.eos.iter().any(|&id| mask.allows(id)));
                Ok(if *whole { Some(rule.ends(0)) } else { mask })
            }
            Place::After(written) => Ok(Some(rule.ends(*written))),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let Reply { rule, at } = self;
        let rule = &**rule;
        let bytes = rule.tokens.get(id);
        match at {
            Place::Before { written, ways } => {
                ways.retain(|&way| rule.goes_on(way, *written, bytes));
                *written += bytes.len();
                if ways.is_empty() {
                    return Err("this begins no call".to_owned());
                }
                let done = ways.iter().map(|&way| &rule.ways[way]).find(|way| way.before.len() == *written);
                if let Some(way) = done {
                    *at = Place::Inside { arguments: way.arguments.begin(), whole: false };
                }
            }
            Place::Inside { whole: true, .. } => *at = Place::After(bytes.len()),
            Place::Inside { arguments, .. } => arguments.accept(id)?,
            Place::After(written) => *written += bytes.len(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::tokenizer::{Specials, Tokenizer};

    use super::*;

    const EOS: u32 = 257;

    fn tool(name: &str, parameters: Option<Value>) -> Tool {
        Tool { name: name.to_owned(), description: None, parameters }
    }

    /// How much of `text` can be written, and whether it can end there.
    fn written(tools: &[Tool], text: &str) -> (String, bool) {
        let tokenizer = Tokenizer::bytes();
        let vocabulary = Vocabulary::new(&tokenizer.table(), &[EOS]).unwrap();
        let rule = Calling::new(tools.iter(), &vocabulary, tokenizer.table(), &[EOS]).unwrap();
        let mut reply = rule.begin();
        let ids = tokenizer.encode(text, Specials::Literal).unwrap();
        for (at, id) in ids.into_iter().enumerate() {
            let mask = reply.allowed().unwrap().unwrap();
            assert!(!mask.is_empty(), "{text}");
            if !mask.allows(id) {
                return (text[..at].to_owned(), mask.allows(EOS));
            }
            reply.accept(id).unwrap();
        }
        (text.to_owned(), reply.allowed().unwrap().unwrap().allows(EOS))
    }

    #[test]
    fn a_call_is_all_that_can_be_written() {
        let day = json!({"type": "object", "properties": {"day": {"$ref": "#/$defs/day"}}, "required": ["day"],
                         "additionalProperties": false, "$defs": {"day": {"enum": ["today", "<b>"]}}});
        let tools = [tool("get", Some(day)), tool("get_all", None)];
        for (text, stays, ends) in [
            ("Sure", "", false),
            ("<tool_call>\n{\"name\": \"got\"", "<tool_call>\n{\"name\": \"g", false),
            (
                "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"day\": \"<b>\"}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"day\": \"<b>\"}}\n</tool_call>",
                true,
            ),
            (
                "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"day\": \"x",
                "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"day\": \"",
                false,
            ),
            (
                "<tool_call>\n{\"name\": \"get_all\", \"arguments\": {}}\n</tool_call>\nand",
                "<tool_call>\n{\"name\": \"get_all\", \"arguments\": {}}\n</tool_call>",
                true,
            ),
        ] {
            assert_eq!(written(&tools, text), (stays.to_owned(), ends), "{text}");
        }
    }

    #[test]
    fn parameters_that_cannot_be_held_to_are_refused_with_the_name() {
        let tokenizer = Tokenizer::bytes();
        let vocabulary = Vocabulary::new(&tokenizer.table(), &[EOS]).unwrap();
        let bad = [tool("get", Some(json!({"type": "object", "properties": {"a": {"type": "nonsense"}}})))];
        let refused = Calling::new(bad.iter(), &vocabulary, tokenizer.table(), &[EOS]).unwrap_err().to_string();
        assert!(refused.contains("`get`"), "{refused}");
    }
}
