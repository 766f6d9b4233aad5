//! Options of vLLM's interface, shared by chat and completions.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_agent::{EpisodeOptions, Policy, TurnEnds};
use waymark_models::grammar::{Json, OutputForm};

use super::body;
use super::error::ApiError;

/// Maximum number of stop tokens.
const MAX_STOP_TOKENS: usize = 64;

/// Form of the answer, by vLLM's names. Exactly one field is given.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// JSON schema, as an object or as text, with the limits of `response_format`.
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    /// Regular expression that matches the whole answer.
    pub regex: Option<String>,
    /// Texts of which the answer is one.
    pub choice: Option<Vec<String>>,
    /// Lark grammar whose rule `start` describes the answer.
    pub grammar: Option<String>,
    /// If `true`, the answer is a JSON object.
    pub json_object: Option<bool>,
}

/// Form of the answer, by the names of a request.
#[derive(Debug, Default)]
pub(crate) struct FormFields {
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<String>,
    pub(crate) guided_choice: Option<Vec<String>>,
    pub(crate) guided_grammar: Option<String>,
}

impl FormFields {
    /// Returns the form of the answer with the path of its field, if the request gives one. `other` is the form by
    /// `response_format`, which excludes these fields.
    ///
    /// # Errors
    /// Names the field that is invalid, or one too many.
    pub(crate) fn form(self, other: Option<Json>) -> Result<Option<(&'static str, OutputForm)>, ApiError> {
        let StructuredOutputs { json, regex, choice, grammar, json_object } =
            self.structured_outputs.clone().unwrap_or_default();
        let any_object = json_object.unwrap_or(false).then_some(OutputForm::Json(Json::Object));
        let forms = [
            ("response_format", other.map(OutputForm::Json)),
            ("structured_outputs.json", schema("structured_outputs.json", json)?),
            ("structured_outputs.regex", regex.map(OutputForm::Regex)),
            ("structured_outputs.choice", choice.map(OutputForm::Choice)),
            ("structured_outputs.grammar", grammar.map(OutputForm::Lark)),
            ("structured_outputs.json_object", any_object),
            ("guided_json", schema("guided_json", self.guided_json)?),
            ("guided_regex", self.guided_regex.map(OutputForm::Regex)),
            ("guided_choice", self.guided_choice.map(OutputForm::Choice)),
            ("guided_grammar", self.guided_grammar.map(OutputForm::Lark)),
        ];
        let mut given = forms.into_iter().filter_map(|(param, form)| Some((param, form?)));
        let Some((param, form)) = given.next() else {
            let empty = self.structured_outputs.is_some();
            let message = "`structured_outputs` must hold one of `json`, `regex`, `choice`, `grammar`, `json_object`";
            return if empty { Err(ApiError::invalid("structured_outputs", message)) } else { Ok(None) };
        };
        match given.next() {
            None => Ok(Some((param, form))),
            Some((second, _)) => {
                Err(ApiError::invalid(second, format!("`{second}` and `{param}` exclude each other: give one of them")))
            }
        }
    }
}

/// Reads a JSON schema that may be written as text.
fn schema(param: &str, json: Option<Value>) -> Result<Option<OutputForm>, ApiError> {
    let schema = match json {
        None => return Ok(None),
        Some(Value::String(text)) => {
            // The check of the body does not look into its strings.
            body::check_text(&text).map_err(|reason| ApiError::invalid(param, format!("`{param}` {reason}")))?;
            serde_json::from_str(&text)
                .map_err(|error| ApiError::invalid(param, format!("`{param}` is not valid JSON: {error}")))?
        }
        Some(schema) => schema,
    };
    Ok(Some(OutputForm::Json(Json::Schema(schema))))
}

/// Tokens that end an answer, by the names of a request.
#[derive(Debug, Default)]
pub(crate) struct EndFields {
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) min_tokens: Option<u32>,
}

impl EndFields {
    /// Checks the fields and adds them to `options`, whose form and limits are complete. `vocab` is the number of token
    /// IDs.
    ///
    /// # Errors
    /// Names the field that is invalid, or that `policy` or another option excludes.
    pub(crate) fn apply(self, policy: &Policy, vocab: usize, options: &mut EpisodeOptions) -> Result<(), ApiError> {
        let stop_ids = self.stop_token_ids.unwrap_or_default();
        let ignores_eos = self.ignore_eos.unwrap_or(false);
        let min_tokens = self.min_tokens.unwrap_or(0) as usize;
        let given =
            [("stop_token_ids", !stop_ids.is_empty()), ("ignore_eos", ignores_eos), ("min_tokens", min_tokens > 0)];
        // A constraint that is complete allows nothing but the model's own ends: without them no token would be left.
        let is_constrained = options.form.is_some() || !options.calls.is_empty() || !options.strict.is_empty();
        for (param, _) in given.into_iter().filter(|(_, given)| *given) {
            if policy.budget.turns > 0 {
                return Err(ApiError::unsupported(
                    param,
                    "ends of turns other than those of a policy that searches are",
                ));
            }
            if is_constrained {
                return Err(ApiError::unsupported(
                    param,
                    "ends of an answer that is held to a form, or whose calls are strict, are",
                ));
            }
        }
        check_stop_tokens("stop_token_ids", &stop_ids, vocab)?;
        let policy_limit = policy.budget.sampled_tokens.min(policy.budget.turn_tokens);
        let (limit_name, limit) = match options.max_tokens {
            Some(max_tokens) if max_tokens <= policy_limit => ("the maximum of the request", max_tokens),
            _ => ("the limit of the policy", policy_limit),
        };
        if min_tokens > limit {
            let message = format!("`min_tokens` must be at most {limit_name}, {limit}, not {min_tokens}");
            return Err(ApiError::invalid("min_tokens", message));
        }
        options.ends = TurnEnds { stop_ids, ignores_eos, min_tokens };
        Ok(())
    }
}

/// Checks the tokens of `param` that end a turn.
///
/// # Errors
/// 400 if they are too many, or one is not in the vocabulary.
pub(crate) fn check_stop_tokens(param: &str, ids: &[u32], vocab: usize) -> Result<(), ApiError> {
    if ids.len() > MAX_STOP_TOKENS {
        let message = format!("`{param}` holds {} tokens, {MAX_STOP_TOKENS} at most", ids.len());
        return Err(ApiError::invalid(param, message));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(ApiError::invalid(param, format!("`{param}`: {id} is not a token ID below {vocab}")));
    }
    Ok(())
}

/// Returns `enable_thinking` of `chat_template_kwargs`, if it is given. `takes` is `true` if the policy's prompt has
/// such a switch.
///
/// # Errors
/// Names the variable that is unknown or cannot be set.
pub(crate) fn thinking(kwargs: Option<Map<String, Value>>, takes: bool) -> Result<Option<bool>, ApiError> {
    let mut thinking = None;
    for (name, value) in kwargs.into_iter().flatten() {
        let param = format!("chat_template_kwargs.{name}");
        match (name.as_str(), value) {
            ("enable_thinking", Value::Null) => {}
            ("enable_thinking", Value::Bool(_)) if !takes => {
                return Err(ApiError::unsupported(&param, "prompts with a switch for thinking are"));
            }
            ("enable_thinking", Value::Bool(on)) => thinking = Some(on),
            ("enable_thinking", _) => return Err(ApiError::invalid(&param, format!("`{param}` must be a boolean"))),
            _ => return Err(ApiError::unknown(&param)),
        }
    }
    Ok(thinking)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::error::Code;

    #[test]
    fn one_form_is_read_by_any_of_its_names() {
        let form = |fields: FormFields| fields.form(None).unwrap();
        let schema = json!({"type": "integer"});
        let expected = OutputForm::Json(Json::Schema(schema.clone()));
        let text = FormFields { guided_json: Some(schema.to_string().into()), ..FormFields::default() };
        assert_eq!(form(text), Some(("guided_json", expected.clone())));
        let outputs = StructuredOutputs { json: Some(schema), ..StructuredOutputs::default() };
        let nested = FormFields { structured_outputs: Some(outputs), ..FormFields::default() };
        assert_eq!(form(nested), Some(("structured_outputs.json", expected)));
        assert_eq!(form(FormFields::default()), None);
    }

    #[test]
    fn a_minimum_above_the_maximum_is_refused_with_both_values() {
        let mut policy = Policy::builtin("plain").unwrap();
        let refusal = |policy: &Policy, max_tokens| {
            let fields = EndFields { min_tokens: Some(5), ..EndFields::default() };
            let mut options = EpisodeOptions { max_tokens, ..EpisodeOptions::default() };
            let error = fields.apply(policy, 100, &mut options).err()?;
            assert_eq!((error.code, error.param.as_deref()), (Code::InvalidValue, Some("min_tokens")));
            Some(error.message)
        };
        assert_eq!(refusal(&policy, None), None);
        assert_eq!(refusal(&policy, Some(5)), None);
        let of_request = "`min_tokens` must be at most the maximum of the request, 1, not 5";
        assert_eq!(refusal(&policy, Some(1)).as_deref(), Some(of_request));
        policy.budget.sampled_tokens = 4;
        let of_policy = "`min_tokens` must be at most the limit of the policy, 4, not 5";
        assert_eq!(refusal(&policy, None).as_deref(), Some(of_policy));
        assert_eq!(refusal(&policy, Some(9)).as_deref(), Some(of_policy));
    }

    #[test]
    fn two_forms_and_none_are_refused_by_name() {
        let refused = |fields: FormFields, other| fields.form(other).unwrap_err().param.unwrap();
        let regex = || FormFields { guided_regex: Some("a".into()), ..FormFields::default() };
        assert_eq!(refused(regex(), Some(Json::Object)), "guided_regex");
        let both = FormFields { guided_choice: Some(vec!["a".into()]), ..regex() };
        assert_eq!(refused(both, None), "guided_choice");
        let empty = FormFields { structured_outputs: Some(StructuredOutputs::default()), ..FormFields::default() };
        assert_eq!(refused(empty, None), "structured_outputs");
        let broken = FormFields { guided_json: Some("{".into()), ..FormFields::default() };
        assert_eq!(refused(broken, None), "guided_json");
    }

    #[test]
    fn a_schema_as_text_is_checked_like_a_body() {
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        let hidden = r#"{"const":{"$serde_json::private::RawValue":"[]"}}"#;
        for (text, reason) in [(deep.as_str(), "nested deeper"), (hidden, "reserved")] {
            let fields = FormFields { guided_json: Some(text.into()), ..FormFields::default() };
            let refused = fields.form(None).unwrap_err();
            assert_eq!((refused.code, refused.param.as_deref()), (Code::InvalidValue, Some("guided_json")));
            assert!(refused.message.contains(reason), "{}", refused.message);
        }
    }

    #[test]
    fn unknown_variables_of_templates_are_refused_by_name() {
        let read = |kwargs: Value, takes| thinking(Some(kwargs.as_object().unwrap().clone()), takes);
        assert_eq!(read(json!({"enable_thinking": false}), true).unwrap(), Some(false));
        assert_eq!(read(json!({"enable_thinking": null}), false).unwrap(), None);
        for (kwargs, takes, param) in [
            (json!({"enable_thinking": true}), false, "chat_template_kwargs.enable_thinking"),
            (json!({"enable_thinking": "no"}), true, "chat_template_kwargs.enable_thinking"),
            (json!({"documents": []}), true, "chat_template_kwargs.documents"),
        ] {
            assert_eq!(read(kwargs, takes).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
