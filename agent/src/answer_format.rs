//! Constraints on the format of an answer (JSON, a regular expression, a grammar, a choice of texts or a tool call),
//! enforced token by token.

use std::slice;
use std::sync::Arc;

use serde_json::Value;
use waymark_engine::Constraint;
use waymark_models::grammar::{GrammarError, Json, OutputForm, Vocabulary};
use waymark_models::tokenizer::TokenBytes;

use super::answer_closing::{AnswerClosing, ClosingTag};
use super::answer_opening::{AnswerOpening, OpeningMarks};
use super::segment::{SegmentKind, Tags};

/// Reason for refusing a schema that prescribes a text with `<`.
const UNSUPPORTED_TEXT: &str =
    "an enumeration, a constant or a property name contains `<`, which an answer between tags must not contain";

/// Prepared tags around the answers of a protocol, in a vocabulary; shared by all answer formats.
#[derive(Debug, Clone)]
pub(super) struct AnswerTags {
    opens: Arc<OpeningMarks>,
    /// End of an answer. `None` if it ends with its turn.
    ends: Option<Arc<ClosingTag>>,
    /// Closing tag; empty if there is none.
    close: &'static str,
}

impl AnswerTags {
    /// Prepares the tags of a protocol. `None` if the whole turn is the answer.
    pub(super) fn new(tags: &Tags, tokens: &Arc<TokenBytes>) -> Option<AnswerTags> {
        let tag = tags.pairs.iter().find(|tag| tag.kind == SegmentKind::Answer)?;
        let opens = Arc::new(OpeningMarks::new(tag, tags, Arc::clone(tokens)));
        let ends = (!tag.close.is_empty()).then(|| Arc::new(ClosingTag::new(tag.close, Arc::clone(tokens))));
        Some(AnswerTags { opens, ends, close: tag.close })
    }
}

/// Constraints for the turns of one protocol.
#[derive(Debug, Clone)]
pub(super) struct AnswerFormat {
    /// Constraint of a turn from its beginning.
    pub(super) turn: Arc<dyn Constraint>,
    /// Constraint of the text after the tag that opens an answer.
    pub(super) answer: Arc<dyn Constraint>,
    /// Constraint of a turn in which an answer may begin. `None` if the whole turn is the answer.
    pub(super) opening: Option<AnswerOpening>,
    /// Tag that ends an answer; empty if the turn does.
    close: &'static str,
}

impl AnswerFormat {
    /// Creates the constraints for answers of the form `form`: on the text between the answer tags, or on the whole
    /// turn without tags.
    pub(super) fn new(
        form: &OutputForm,
        around: Option<AnswerTags>,
        vocabulary: &Vocabulary,
        eos: &[u32],
    ) -> Result<AnswerFormat, GrammarError> {
        let rule: Arc<dyn Constraint> = Arc::new(vocabulary.compile_form(form)?);
        match form {
            OutputForm::Json(Json::Object) => {}
            OutputForm::Json(Json::Schema(schema)) => check_between(schema, around.as_ref())?,
            OutputForm::Regex(text) | OutputForm::Lark(text) => check_text(slice::from_ref(text), around.as_ref())?,
            OutputForm::Choice(texts) => check_text(texts, around.as_ref())?,
        }
        Ok(AnswerFormat::between(rule, around, eos))
    }

    /// Creates the constraints of answers that follow `rule`.
    pub(super) fn between(rule: Arc<dyn Constraint>, around: Option<AnswerTags>, eos: &[u32]) -> AnswerFormat {
        let Some(AnswerTags { opens, ends, close }) = around else { return AnswerFormat::whole(rule) };
        // An answer without a closing tag ends as plain JSON does: with the turn.
        let answer: Arc<dyn Constraint> = match ends {
            None => rule,
            Some(ends) => Arc::new(AnswerClosing::new(rule, ends, eos.to_vec())),
        };
        let opening = AnswerOpening::new(opens, Arc::clone(&answer));
        let turn: Arc<dyn Constraint> = Arc::new(opening.clone());
        AnswerFormat { turn, answer, opening: Some(opening), close }
    }

    /// Creates the constraints of turns that follow `rule` as a whole.
    pub(super) fn whole(rule: Arc<dyn Constraint>) -> AnswerFormat {
        AnswerFormat { turn: Arc::clone(&rule), answer: rule, opening: None, close: "" }
    }

    /// Returns `true` if a text closed by `close` is an answer.
    pub(super) fn ends(&self, close: &str) -> bool {
        self.close == close
    }
}

/// Checks that text that follows a schema can stand in an answer between tags.
///
/// # Errors
/// [`GrammarError::Schema`] if the schema prescribes a text that cannot.
pub(super) fn check_between(schema: &Value, around: Option<&AnswerTags>) -> Result<(), GrammarError> {
    let closed = around.is_some_and(|tags| tags.ends.is_some());
    if closed && prescribes_angle_bracket(schema) {
        return Err(GrammarError::Schema(UNSUPPORTED_TEXT.to_owned()));
    }
    Ok(())
}

/// Checks that texts of a form that is not JSON, which cannot escape a character, can stand in an answer between tags.
fn check_text(texts: &[String], around: Option<&AnswerTags>) -> Result<(), GrammarError> {
    let closed = around.is_some_and(|tags| tags.ends.is_some());
    if closed && texts.iter().any(|text| text.contains('<')) {
        return Err(GrammarError::Schema("it contains `<`, which an answer between tags must not contain".to_owned()));
    }
    Ok(())
}

/// Returns `true` if a schema prescribes a text with `<`. Such a text cannot be escaped, and inside tags that character
/// is not allowed.
fn prescribes_angle_bracket(schema: &Value) -> bool {
    let fields = match schema {
        Value::Array(items) => return items.iter().any(prescribes_angle_bracket),
        Value::Object(fields) => fields,
        _ => return false,
    };
    fields.iter().any(|(name, value)| match (name.as_str(), value) {
        // Annotations prescribe no text.
        ("title" | "description" | "default" | "examples" | "$comment", _) => false,
        ("enum" | "const" | "required", value) => contains_angle_bracket(value),
        // A property may be called like a keyword, so names of properties are not read as keywords.
        ("properties", Value::Object(all)) => {
            all.iter().any(|(name, value)| name.contains('<') || prescribes_angle_bracket(value))
        }
        ("$defs" | "definitions" | "patternProperties", Value::Object(all)) => {
            all.values().any(prescribes_angle_bracket)
        }
        // Any other keyword may contain a schema.
        (_, value) => prescribes_angle_bracket(value),
    })
}

fn contains_angle_bracket(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('<'),
        Value::Array(items) => items.iter().any(contains_angle_bracket),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('<') || contains_angle_bracket(value)),
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
    use waymark_engine::{Engine, EngineConfig, MockBackend};

    #[test]
    fn what_no_answer_between_tags_can_hold_is_refused() {
        let tokens = Tokenizer::bytes().table();
        let eos = [257];
        let vocabulary = Vocabulary::new(&tokens, &eos).unwrap();
        let fits = |schema: &Value, tags: &Tags| {
            AnswerFormat::new(&Json::Schema(schema.clone()).into(), AnswerTags::new(tags, &tokens), &vocabulary, &eos)
                .is_ok()
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
