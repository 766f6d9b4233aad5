//! What an answer must be, where a request says so: JSON, held to token by token.

use std::sync::Arc;

use serde_json::Value;
use waymark_models::grammar::{GrammarError, Json, Vocabulary};
use waymark_models::tokenizer::TokenBytes;

use super::closing::{Closing, Ends};
use super::opening::{Marks, Opening};
use super::protocol::{Kind, Tags};
use crate::engine::Constraint;

/// Why some schemas are refused.
const SPELLED: &str =
    "an enumeration, a constant or the name of a property holds `<`, which no answer between tags can";

/// What stands around the answers of a protocol, in a vocabulary: the same for whatever they must be.
#[derive(Debug, Clone)]
pub(super) struct Around {
    opens: Arc<Marks>,
    /// Nothing where an answer ends with its turn.
    ends: Option<Arc<Ends>>,
    /// The tag of that; empty where there is none.
    close: &'static str,
}

impl Around {
    /// Nothing where the whole turn is the answer.
    pub(super) fn new(tags: &Tags, tokens: &Arc<TokenBytes>) -> Option<Around> {
        let tag = tags.pairs.iter().find(|tag| tag.kind == Kind::Answer)?;
        let opens = Arc::new(Marks::new(tag, tags, Arc::clone(tokens)));
        let ends = (!tag.close.is_empty()).then(|| Arc::new(Ends::new(tag.close, Arc::clone(tokens))));
        Some(Around { opens, ends, close: tag.close })
    }
}

/// The rules for the turns of one protocol.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// For a turn from its beginning.
    pub(super) turn: Arc<dyn Constraint>,
    /// For what follows the tag that opens an answer.
    pub(super) answer: Arc<dyn Constraint>,
    /// The tag that ends an answer; empty where the turn does.
    close: &'static str,
}

impl Shape {
    /// Answers that are `json`: the whole turn where nothing stands around them, else what stands between the two.
    pub(super) fn new(
        json: &Json,
        around: Option<Around>,
        vocabulary: &Vocabulary,
        eos: &[u32],
    ) -> Result<Shape, GrammarError> {
        let rule: Arc<dyn Constraint> = Arc::new(vocabulary.compile(json)?);
        let Some(Around { opens, ends, close }) = around else {
            return Ok(Shape::whole(rule));
        };
        if let Json::Schema(schema) = json
            && ends.is_some()
            && spells(schema)
        {
            return Err(GrammarError::Schema(SPELLED.to_owned()));
        }
        // What nothing closes ends as JSON by itself does: with the turn.
        let answer: Arc<dyn Constraint> = match ends {
            None => rule,
            Some(ends) => Arc::new(Closing::new(rule, ends, eos.to_vec())),
        };
        let turn: Arc<dyn Constraint> = Arc::new(Opening::new(opens, Arc::clone(&answer)));
        Ok(Shape { turn, answer, close })
    }

    /// Turns that are written after `rule` as a whole.
    pub(super) fn whole(rule: Arc<dyn Constraint>) -> Shape {
        Shape { turn: Arc::clone(&rule), answer: rule, close: "" }
    }

    /// Whether what ends with `close` is an answer.
    pub(super) fn ends(&self, close: &str) -> bool {
        self.close == close
    }
}

/// Whether a schema names a text with `<`. Such a text is written as it stands or not at all, and inside tags that sign stands
/// nowhere.
fn spells(schema: &Value) -> bool {
    let fields = match schema {
        Value::Array(items) => return items.iter().any(spells),
        Value::Object(fields) => fields,
        _ => return false,
    };
    fields.iter().any(|(name, value)| match (name.as_str(), value) {
        ("title" | "description" | "default" | "examples" | "$comment", _) => false,
        ("enum" | "const" | "required", value) => holds(value),
        ("properties", Value::Object(all)) => all.iter().any(|(name, value)| name.contains('<') || spells(value)),
        ("$defs" | "definitions" | "patternProperties", Value::Object(all)) => all.values().any(spells),
        (_, value) => spells(value),
    })
}

fn holds(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('<'),
        Value::Array(items) => items.iter().any(holds),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('<') || holds(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use waymark_models::tokenizer::Tokenizer;

    use super::super::protocol::Protocol;
    use super::super::{Plain, RouteRag, Runtime, tag};
    use super::*;
    use crate::engine::{Engine, EngineConfig, MockBackend};

    #[test]
    fn what_no_answer_between_tags_can_hold_is_refused() {
        let (tokens, eos) = (Tokenizer::bytes().table(), [257]);
        let vocabulary = Vocabulary::new(&tokens, &eos).unwrap();
        let fits = |schema: &Value, tags: &Tags| {
            Shape::new(&Json::Schema(schema.clone()), Around::new(tags, &tokens), &vocabulary, &eos).is_ok()
        };
        for (schema, between) in [
            (json!({"enum": ["<1 year", ">1 year"]}), false),
            (json!({"type": "array", "items": {"const": "<br>"}}), false),
            (json!({"type": "object", "properties": {"a<b": {"type": "string"}}}), false),
            (json!({"type": "string", "description": "a < b"}), true),
            (json!({"type": "object", "properties": {"description": {"enum": ["a"]}}}), true),
            (json!({"type": "object", "properties": {"title": {"enum": ["<"]}}}), false),
        ] {
            assert_eq!(fits(&schema, &tag::TAGS), between, "{schema}");
            assert!(fits(&schema, Plain.tags()), "{schema}");
        }
    }

    #[test]
    fn what_stands_around_answers_is_found_once() {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let backend = Box::new(MockBackend::random(1, tokenizer.vocab()));
        let engine = Engine::start(backend, EngineConfig::default(), tokenizer.table()).unwrap();
        let runtime = Runtime::new(engine, tokenizer, None, vec![257], None);
        let [first, again] = [&runtime, &runtime.clone()].map(|runtime| runtime.around(&RouteRag).unwrap());
        assert!(Arc::ptr_eq(&first.opens, &again.opens) && first.close == "</answer>");
        assert!(runtime.around(&Plain).is_none());
    }
}
