//! Forms that output can be constrained to.

use llguidance::api::TopLevelGrammar;

use super::{GrammarError, Json};

/// Form of an output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputForm {
    /// JSON.
    Json(Json),
    /// Text that this regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text described by this Lark grammar, from its rule `start` on.
    Lark(String),
}

/// Maximum size of an expression, a grammar, or all choices together, in bytes.
const MAX_BYTES: usize = 64 << 10;

/// Notations of Lark grammars that are refused: settings that can disable the library's checks, JSON schemas, which may
/// contain such settings, references to other grammars, and tokens by their IDs.
const REFUSED: [&str; 4] = ["%llguidance", "%json", "@", "<["];

impl From<Json> for OutputForm {
    fn from(json: Json) -> Self {
        OutputForm::Json(json)
    }
}

impl OutputForm {
    /// Returns the size of its texts, in bytes. JSON schemas have their own limit and count as 0.
    pub fn text_bytes(&self) -> usize {
        match self {
            OutputForm::Json(_) => 0,
            OutputForm::Regex(text) | OutputForm::Lark(text) => text.len(),
            OutputForm::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// The form as llguidance expects it.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] when the form is empty, too large, or uses a notation that is not allowed.
    pub(super) fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        let bytes = self.text_bytes();
        if bytes > MAX_BYTES {
            return refuse(format!("the form has {bytes} bytes: at most {MAX_BYTES} are allowed"));
        }
        match self {
            OutputForm::Json(json) => Ok(TopLevelGrammar::from_json_schema(json.schema()?)),
            OutputForm::Regex(pattern) if pattern.is_empty() => refuse("the expression is empty".to_owned()),
            OutputForm::Regex(pattern) => Ok(TopLevelGrammar::from_regex(pattern)),
            OutputForm::Choice(texts) if texts.is_empty() || texts.iter().any(String::is_empty) => {
                refuse("a choice needs at least one text, and none may be empty".to_owned())
            }
            OutputForm::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
                Ok(TopLevelGrammar::from_regex(&format!("({})", texts.join("|"))))
            }
            OutputForm::Lark(grammar) if grammar.contains("::=") => {
                refuse("rules with `::=` are not supported: write a Lark grammar with a rule `start`".to_owned())
            }
            OutputForm::Lark(grammar) => match REFUSED.iter().find(|notation| grammar.contains(**notation)) {
                Some(notation) => refuse(format!("`{notation}` is not supported in a grammar")),
                None => Ok(TopLevelGrammar::from_lark(grammar.clone())),
            },
        }
    }
}

fn refuse<T>(reason: String) -> Result<T, GrammarError> {
    Err(GrammarError::Schema(reason))
}

/// Returns the regular expression that matches exactly `text`.
fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter {
        letter if letter.is_ascii() && !letter.is_ascii_alphanumeric() => format!("\\x{:02x}", u32::from(letter)),
        letter => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_grammar_may_say_is_refused_with_the_reason() {
        for (form, reason) in [
            (OutputForm::Regex(String::new()), "empty"),
            (OutputForm::Regex("a".repeat(MAX_BYTES + 1)), "bytes"),
            (OutputForm::Choice(Vec::new()), "at least one"),
            (OutputForm::Choice(vec!["a".into(), String::new()]), "empty"),
            (OutputForm::Lark("root ::= \"a\"".into()), "::="),
            (OutputForm::Lark("%llguidance {}\nstart: \"a\"".into()), "%llguidance"),
            (OutputForm::Lark("start: <[5]>".into()), "<["),
        ] {
            let refused = form.grammar().map(drop).map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|message| message.contains(reason)), "{form:?} gave {refused:?}");
        }
        assert_eq!(escaped("a/b (c)\n\u{e9}"), "a\\x2fb\\x20\\x28c\\x29\\x0a\u{e9}");
    }
}
