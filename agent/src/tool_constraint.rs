//! Constraint for replies that must be a tool call: its frame is fixed, and its arguments follow their schema.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark_engine::{Constraint, ConstraintState};
use waymark_models::chat::Tool;
use waymark_models::grammar::{Json, Vocabulary};
use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use super::AgentError;
use super::answer_closing::mask;
use super::tool_call::{CLOSE, OPEN};

/// Allows exactly one call of one of several tools, and nothing else.
#[derive(Debug, Clone)]
pub(super) struct ToolConstraint {
    rule: Arc<ToolCallRule>,
    /// Number of bytes of the frame that are written before the constraint begins.
    written: usize,
}

/// Form of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallForm<'a> {
    /// Names of the tools whose parameters must be enforced. Other tools take any object if no grammar can enforce
    /// their parameters. `None` names all tools.
    pub(super) strict: Option<&'a [String]>,
    /// If `true`, the call stands between its tags. If `false`, it is JSON alone.
    pub(super) tagged: bool,
}

#[derive(Debug)]
struct ToolCallRule {
    tokens: Arc<TokenBytes>,
    eos: Vec<u32>,
    ways: Vec<ToolCallForm>,
    /// Text after the arguments.
    after: String,
}

/// A call of one tool.
#[derive(Debug)]
struct ToolCallForm {
    /// Text before the arguments. No tool's text is a prefix of another's, because it includes the closing quote of the
    /// name.
    before: String,
    arguments: Arc<dyn Constraint>,
}

impl ToolConstraint {
    /// Creates a constraint for calls of `tools`, whose arguments follow their parameters. `eos` are the tokens that
    /// end a reply.
    ///
    /// # Errors
    /// [`AgentError::Tool`] for parameters of strict tools that cannot be enforced.
    pub(super) fn new<'a>(
        tools: impl Iterator<Item = &'a Tool>,
        form: CallForm<'_>,
        vocabulary: &Vocabulary,
        tokens: Arc<TokenBytes>,
        eos: &[u32],
    ) -> Result<ToolConstraint, AgentError> {
        let way = |tool: &Tool| -> Result<ToolCallForm, AgentError> {
            let refused = |reason| AgentError::Tool { name: tool.name.clone(), reason };
            let held = form.strict.is_none_or(|names| names.contains(&tool.name));
            let grammar = match vocabulary.compile(&arguments(tool)) {
                Err(_) if !held => vocabulary.compile(&Json::Object),
                grammar => grammar,
            };
            let arguments: Arc<dyn Constraint> = Arc::new(grammar.map_err(refused)?);
            let open = if form.tagged { format!("{OPEN}\n") } else { String::new() };
            let before = format!("{open}{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str()));
            Ok(ToolCallForm { before, arguments })
        };
        let ways = tools.map(way).collect::<Result<_, _>>()?;
        let after = if form.tagged { format!("}}\n{CLOSE}") } else { "}".to_owned() };
        Ok(ToolConstraint { rule: Arc::new(ToolCallRule { tokens, eos: eos.to_vec(), ways, after }), written: 0 })
    }

    /// Returns the constraint of the text after the opening tag.
    pub(super) fn opened(&self) -> ToolConstraint {
        ToolConstraint { rule: Arc::clone(&self.rule), written: OPEN.len() }
    }
}

/// Returns the schema of a tool's arguments: always an object, even if the parameters do not say so.
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

impl Constraint for ToolConstraint {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(ToolCallProgress {
            rule: Arc::clone(&self.rule),
            at: ToolCallState::Before { written: self.written, ways: (0..self.rule.ways.len()).collect() },
        })
    }
}

#[derive(Debug)]
struct ToolCallProgress {
    rule: Arc<ToolCallRule>,
    at: ToolCallState,
}

#[derive(Debug)]
enum ToolCallState {
    /// Before the arguments: number of bytes written, and the tools whose text begins so.
    Before { written: usize, ways: Vec<usize> },
    /// In the arguments. `whole` is `true` when they are complete, so that no further token can follow the object.
    Inside { arguments: Box<dyn ConstraintState>, whole: bool },
    /// After the arguments: number of bytes written.
    After(usize),
}

impl ToolCallRule {
    /// Returns the rest of `text` after `written` bytes.
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
        // Built by ID: tokens that end a reply have no bytes, so `mask` would forbid them.
        let mut words = vec![0; self.tokens.len().div_ceil(u32::BITS as usize)];
        for &id in &self.eos {
            if let Some(word) = words.get_mut((id / u32::BITS) as usize) {
                *word |= 1 << (id % u32::BITS);
            }
        }
        TokenMask::from_words(words, self.tokens.len())
    }
}

impl ConstraintState for ToolCallProgress {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let rule = &self.rule;
        match &mut self.at {
            ToolCallState::Before { written, ways } => {
                let goes_on = |bytes: &[u8]| ways.iter().any(|&way| rule.goes_on(way, *written, bytes));
                Ok(Some(mask(&rule.tokens, goes_on)))
            }
            ToolCallState::Inside { arguments, whole } => {
                let mask = arguments.allowed()?;
                *whole = mask.as_ref().is_some_and(|mask| rule.eos.iter().any(|&id| mask.allows(id)));
                Ok(if *whole { Some(rule.ends(0)) } else { mask })
            }
            ToolCallState::After(written) => Ok(Some(rule.ends(*written))),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let ToolCallProgress { rule, at } = self;
        let rule = &**rule;
        let bytes = rule.tokens.get(id);
        match at {
            ToolCallState::Before { written, ways } => {
                ways.retain(|&way| rule.goes_on(way, *written, bytes));
                *written += bytes.len();
                if ways.is_empty() {
                    return Err("the token does not continue a tool call".to_owned());
                }
                let done = ways.iter().map(|&way| &rule.ways[way]).find(|way| way.before.len() == *written);
                if let Some(way) = done {
                    *at = ToolCallState::Inside { arguments: way.arguments.begin(), whole: false };
                }
            }
            ToolCallState::Inside { whole: true, .. } => *at = ToolCallState::After(bytes.len()),
            ToolCallState::Inside { arguments, .. } => arguments.accept(id)?,
            ToolCallState::After(written) => *written += bytes.len(),
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

    const DEMANDED: CallForm<'static> = CallForm { strict: None, tagged: true };

    fn tool(name: &str, parameters: Option<Value>) -> Tool {
        Tool { name: name.to_owned(), description: None, parameters }
    }

    /// Returns the part of `text` that the constraint allows, and whether it may end there.
    fn written(tools: &[Tool], text: &str) -> (String, bool) {
        let tokenizer = Tokenizer::bytes();
        let vocabulary = Vocabulary::new(&tokenizer.table(), &[EOS]).unwrap();
        let rule = ToolConstraint::new(tools.iter(), DEMANDED, &vocabulary, tokenizer.table(), &[EOS]).unwrap();
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
    fn an_end_token_with_bytes_ends_no_call_inside_a_text() {
        let mut tokens = TokenBytes::clone(&Tokenizer::bytes().table());
        let end = tokens.len() as u32;
        tokens.push(b"<end>", false);
        let tokens = Arc::new(tokens);
        let vocabulary = Vocabulary::new(&tokens, &[end]).unwrap();
        let query = json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
        let tools = [tool("get", Some(query))];
        let rule = ToolConstraint::new(tools.iter(), DEMANDED, &vocabulary, tokens, &[end]).unwrap();
        let mut reply = rule.begin();
        for byte in b"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"query\": \"ab\"}}\n</tool_call>" {
            let id = u32::from(*byte);
            let mask = reply.allowed().unwrap().unwrap();
            assert!(mask.allows(id) && !mask.allows(end), "at {:?}", char::from(*byte));
            reply.accept(id).unwrap();
        }
        assert!(reply.allowed().unwrap().unwrap().allows(end));
    }

    #[test]
    fn parameters_that_cannot_be_held_to_are_refused_with_the_name() {
        let tokenizer = Tokenizer::bytes();
        let vocabulary = Vocabulary::new(&tokenizer.table(), &[EOS]).unwrap();
        let bad = [tool("get", Some(json!({"type": "object", "properties": {"a": {"type": "nonsense"}}})))];
        let made = |form| ToolConstraint::new(bad.iter(), form, &vocabulary, tokenizer.table(), &[EOS]);
        let refused = made(DEMANDED).unwrap_err().to_string();
        assert!(refused.contains("`get`"), "{refused}");
        let strict = ["get".to_owned()];
        assert!(made(CallForm { strict: Some(&strict), tagged: true }).is_err());
        assert!(made(CallForm { strict: Some(&[]), tagged: true }).is_ok(), "any object will do");
    }
}
