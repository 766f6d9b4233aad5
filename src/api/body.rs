//! Request bodies: size, type and depth checks, and JSON parsing with errors that name the field.

use std::fmt::Display;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ApiError, Code};
use super::hint::Hint;
use super::state::AppState;

/// Maximum nesting of arrays and objects in a body. Below the parser's own limit, and far above what any request needs.
const MAX_DEPTH: usize = 64;

/// Key under which `serde_json` parses a string as more JSON, whose nesting nobody has checked.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Request type of the HTTP interface. Each one is declared with `deny_unknown_fields`, and so is every type inside
/// unless it collects unknown fields and refuses them itself. Without these declarations, unknown fields would be
/// accepted.
pub(crate) trait WireRequest: DeserializeOwned {
    /// Fields of the OpenAI interface that this server does not implement, as dotted paths, each with the values (as
    /// compact JSON) that have no effect and are therefore accepted. `null` is always accepted.
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[];
    /// Fields of the OpenAI interface that are accepted without effect. Those that name no field of this type are
    /// refused as unknown.
    const HINTS: &'static [Hint] = &[];
}

/// Treatment of hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HintRule {
    /// Hints are checked, and have no effect.
    Accept,
    /// Hints are refused by name, unless they are null (`serve --strict`).
    Refuse,
}

/// Raw body of a request, declared as JSON and within the size limit.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) Bytes);

impl FromRequest<AppState> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_headers(request.headers(), state.config.body_limit)?;
        let time = state.config.connection.body;
        // The connection's timeouts cover the head and the response; the body is timed by its reader.
        let read = tokio::time::timeout(time, Bytes::from_request(request, state)).await.map_err(|_| {
            ApiError::new(
                Code::RequestTimeout,
                format!("the body did not arrive within {} seconds", time.as_secs_f64()),
            )
        })?;
        let bytes = read.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(state.config.body_limit),
            _ => ApiError::new(Code::InvalidJson, "the body could not be read"),
        })?;
        Ok(Raw(bytes))
    }
}

/// Parsed and checked JSON body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: WireRequest> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        let rule = if state.config.strict { HintRule::Refuse } else { HintRule::Accept };
        parse(&bytes, rule).map(JsonBody)
    }
}

/// Refuses requests whose headers show that the body is too large, compressed or not JSON.
fn check_headers(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // Refused by its declared length, before a byte of it is read.
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    // Refused by its name: the compressed bytes would only be refused as text that is not UTF-8.
    let is_compressed = |encoding: &&HeaderValue| !encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    if let Some(encoding) = headers.get_all(header::CONTENT_ENCODING).iter().find(is_compressed) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let message = format!("the body must be sent without compression, not with `content-encoding: {encoding}`");
        return Err(ApiError::new(Code::UnsupportedMediaType, message));
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(ApiError::new(Code::UnsupportedMediaType, "the body must be sent with `content-type: application/json`"))
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(Code::RequestTooLarge, format!("the body is larger than the limit of {limit} bytes"))
}

/// Parses a request: checks hints, checks unimplemented fields against `UNIMPLEMENTED` and refuses unknown ones.
pub(crate) fn parse<T: WireRequest>(bytes: &[u8], rule: HintRule) -> Result<T, ApiError> {
    let mut value = json(bytes)?;
    if !value.is_object() {
        return Err(ApiError::new(Code::InvalidJson, "the body must be a JSON object"));
    }
    for hint in T::HINTS {
        check_hint(&value, *hint, rule)?;
    }
    for (path, harmless) in T::UNIMPLEMENTED {
        refuse_unimplemented(&mut value, path, harmless)?;
    }
    shaped(value)
}

/// Parses a body as JSON, without a schema.
pub(crate) fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ApiError::new(Code::InvalidJson, format!("the body is not valid UTF-8: {error}")))?;
    // Refused before anything is built from it.
    check_text(text).map_err(|reason| ApiError::new(Code::InvalidJson, format!("the body {reason}")))?;
    serde_json::from_str(text)
        .map_err(|error| ApiError::new(Code::InvalidJson, format!("the body is not valid JSON: {error}")))
}

/// Deserializes a value. Errors name the path of the offending field.
pub(crate) fn shaped<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| refusal(&error.path().to_string(), error.inner()))
}

/// Refuses JSON whose arrays and objects are nested deeper than [`MAX_DEPTH`], also within strings that the parser
/// would take for JSON.
///
/// # Errors
/// The reason, as the rest of a sentence about the text.
pub(crate) fn check_text(text: &str) -> Result<(), String> {
    let mut depth = 0usize;
    let mut string = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match (byte, string) {
            _ if escaped => escaped = false,
            (b'\\', Some(_)) => escaped = true,
            (b'"', None) => string = Some(at),
            (b'"', Some(begin)) => {
                string = None;
                if is_raw_value(&text[begin..=at]) {
                    return Err(format!("holds the text `{RAW_VALUE}`, which is reserved"));
                }
            }
            (b'[' | b'{', None) => depth += 1,
            (b']' | b'}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("is nested deeper than {MAX_DEPTH} levels"));
        }
    }
    Ok(())
}

/// Returns `true` if a JSON string, with its quotation marks, stands for [`RAW_VALUE`], with or without escapes.
fn is_raw_value(quoted: &str) -> bool {
    // The longest escape of a character has six bytes.
    let is_as_long = (RAW_VALUE.len() + 2..=6 * RAW_VALUE.len() + 2).contains(&quoted.len());
    let has_dollar = || quoted.starts_with("\"$") || quoted.starts_with("\"\\u0024");
    is_as_long && has_dollar() && serde_json::from_str::<String>(quoted).is_ok_and(|text| text == RAW_VALUE)
}

/// Checks that an optional number is from `low` to `high`.
pub(crate) fn within<T>(param: &str, value: Option<T>, low: T, high: T) -> Result<Option<T>, ApiError>
where
    T: PartialOrd + Copy + Display,
{
    match value {
        // Written so that NaN is refused as well: JSON cannot hold NaN, but arithmetic can produce it.
        Some(value) if !(value >= low && value <= high) => {
            Err(ApiError::invalid(param, format!("`{param}` must be from {low} to {high}, not {value}")))
        }
        value => Ok(value),
    }
}

/// Deserializes a part of a body that was kept as raw JSON. `at` is the path of that part, used in errors.
pub(crate) fn read<T: DeserializeOwned>(part: Value, at: &str) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(part).map_err(|error| {
        let path = error.path().to_string();
        let join = if path.starts_with('[') { "" } else { "." };
        let path = if path == "." { at.to_owned() } else { format!("{at}{join}{path}") };
        refusal(&path, error.inner())
    })
}

/// Checks the value of a hint, if the body has one.
fn check_hint(body: &Value, hint: Hint, rule: HintRule) -> Result<(), ApiError> {
    let value = hint.path.split('.').try_fold(body, |at, step| at.get(step));
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(value) if rule == HintRule::Accept => hint.check(value),
        Some(_) => Err(ApiError::unimplemented(hint.path)),
    }
}

/// Removes the field at `path` if its value has no effect; refuses it otherwise.
fn refuse_unimplemented(body: &mut Value, path: &str, harmless: &[&str]) -> Result<(), ApiError> {
    let (parents, name) = path.rsplit_once('.').map_or((None, path), |(parents, name)| (Some(parents), name));
    let mut at = body;
    for step in parents.into_iter().flat_map(|parents| parents.split('.')) {
        let Some(next) = at.get_mut(step) else { return Ok(()) };
        at = next;
    }
    // `shift_remove` keeps the order of the other fields, and thereby which of several errors is reported.
    let Some(value) = at.as_object_mut().and_then(|object| object.shift_remove(name)) else { return Ok(()) };
    if value.is_null() || harmless.contains(&value.to_string().as_str()) {
        return Ok(());
    }
    Err(ApiError::unimplemented(path))
}

/// Turns a serde error into a refusal that names the field. Only the message of a serde error tells the cases apart.
fn refusal(path: &str, error: &serde_json::Error) -> ApiError {
    let message = error.to_string();
    let field = message.split('`').nth(1).unwrap_or_default();
    let parent = if path == "." { "" } else { path };
    let within_parent = || if parent.is_empty() { field.to_owned() } else { format!("{parent}.{field}") };
    if message.starts_with("unknown field") {
        // The path of an unknown field ends in its name, unless its object was read as a whole.
        let is_named = parent == field || parent.ends_with(&format!(".{field}"));
        return ApiError::unknown(&if is_named { parent.to_owned() } else { within_parent() });
    }
    if message.starts_with("missing field") {
        return ApiError::missing(&within_parent());
    }
    let message = if parent.is_empty() { message } else { format!("`{parent}`: {message}") };
    let refusal = ApiError::new(Code::InvalidValue, message);
    if parent.is_empty() { refusal } else { refusal.with_param(parent) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        flag: Option<bool>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        list: Option<Vec<Inner>>,
        inner: Option<Inner>,
        #[serde(rename = "reasoning_effort")]
        _effort: Option<String>,
    }

    impl WireRequest for Outer {
        const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] =
            &[("tools", &["[]"]), ("inner.fancy", &["false"])];
        const HINTS: &'static [Hint] = &[Hint::EFFORT];
    }

    fn read_outer(body: &[u8]) -> Result<Outer, ApiError> {
        parse(body, HintRule::Accept)
    }

    fn refused(body: &str) -> (&'static str, Option<String>) {
        let error = parse::<Outer>(body.as_bytes(), HintRule::Accept).unwrap_err();
        (error.code.name(), error.param)
    }

    #[test]
    fn what_asks_for_nothing_is_taken() {
        let outer: Outer =
            read_outer(br#"{"name":"a","tools":[],"list":null,"inner":{"flag":true,"fancy":false}}"#).unwrap();
        assert_eq!((outer.name.as_str(), outer.list.is_none()), ("a", true));
        assert_eq!(outer.inner.unwrap().flag, Some(true));
        assert!(read_outer(br#"{"name":"a","tools":null}"#).is_ok());
    }

    #[test]
    fn hints_are_checked_or_refused_by_name() {
        let body = br#"{"name":"a","reasoning_effort":"low"}"#;
        assert!(parse::<Outer>(body, HintRule::Accept).is_ok());
        let error = parse::<Outer>(body, HintRule::Refuse).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (Code::UnsupportedParameter, Some("reasoning_effort")));
        assert!(parse::<Outer>(br#"{"name":"a","reasoning_effort":null}"#, HintRule::Refuse).is_ok());
        assert_eq!(refused(r#"{"name":"a","reasoning_effort":"huge"}"#).1.as_deref(), Some("reasoning_effort"));
    }

    #[test]
    fn json_within_a_string_is_never_parsed() {
        let hidden = |key: &str| format!(r#"{{"name":"a","list":[{{"{key}":"[]"}}]}}"#);
        for key in [RAW_VALUE, r"\u0024serde_json::private::RawValue", r"$\u0073erde_json::private::RawV\u0061lue"] {
            let refused = json(hidden(key).as_bytes()).unwrap_err();
            assert_eq!(refused.code, Code::InvalidJson, "{key}");
            assert!(refused.message.contains("reserved"), "{}", refused.message);
        }
        assert!(json(hidden("$serde_json::private::RawValues").as_bytes()).is_ok());
        assert!(json(hidden(r"\\u0024serde_json::private::RawValue").as_bytes()).is_ok());
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(refused(r#"{"name":"a","tools":[{}]}"#), ("unsupported_parameter", some("tools")));
        assert_eq!(refused(r#"{"name":"a","inner":{"fancy":true}}"#), ("unsupported_parameter", some("inner.fancy")));
        assert_eq!(refused(r#"{"name":"a","what":1}"#), ("unknown_parameter", some("what")));
        assert_eq!(refused(r#"{"name":"a","list":[{},{"x":1}]}"#), ("unknown_parameter", some("list[1].x")));
        assert_eq!(refused(r#"{"list":[]}"#), ("missing_required_parameter", some("name")));
        assert_eq!(refused(r#"{"name":"a","list":[{"flag":3}]}"#), ("invalid_value", some("list[0].flag")));
        assert_eq!(refused(r#"{"name":"a""#), ("invalid_json", None));
        assert_eq!(refused("[]"), ("invalid_json", None));
        let nested =
            |levels: usize| format!(r#"{{"name":"[[[\"[","what":{}1{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(refused(&nested(63)), ("unknown_parameter", some("what")));
        assert_eq!(refused(&nested(64)), ("invalid_json", None));
        let deep = format!(r#"{{"name":{}"#, "[".repeat(100_000));
        assert_eq!(refused(&deep), ("invalid_json", None));
        assert_eq!(read_outer(b"{\"name\":\"\xff\"}").unwrap_err().code, Code::InvalidJson);
    }
}
