//! Jinja environment for chat templates, after `transformers/utils/chat_template_utils.py`.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::template_error;
use crate::ModelError;

/// Maximum number of steps per rendering: enough for thousands of messages, and few enough to stop an endless loop.
const FUEL: u64 = 10_000_000;

/// Maximum depth of nested blocks and macro calls, where a call counts four. The library's own limit of 500 can overflow
/// the 2 MiB stack of a thread in a program without optimization.
const MAX_DEPTH: usize = 250;

pub(super) fn environment() -> Result<Environment<'static>, ModelError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    Ok(environment)
}

/// Test `iterable` of Jinja2. `none` passes the built-in test of minijinja, but it has no length, which templates take
/// after this test of `tools`.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Equivalent of `json.dumps(value, ensure_ascii=False, indent=indent)`. The built-in filter of minijinja escapes `<`,
/// `>`, `&` and `'` for use inside HTML, and the model would see those escapes.
// minijinja calls filters with owned values.
#[allow(clippy::needless_pass_by_value)]
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let indent = indent.filter(|indent: &Value| !indent.is_none());
    let text = minijinja::filters::tojson(value, indent, Kwargs::from_iter(Vec::<(&str, Value)>::new()))?;
    Ok(Value::from(without_html_escapes(text.as_str().unwrap_or_default())))
}

fn without_html_escapes(json: &str) -> String {
    const ESCAPES: [(&str, char); 4] = [("u003c", '<'), ("u003e", '>'), ("u0026", '&'), ("u0027", '\'')];
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        if let Some((name, plain)) = ESCAPES.iter().find(|(name, _)| after.starts_with(name)) {
            text.push(*plain);
            rest = &after[name.len()..];
        } else {
            // Any other escape stays, together with the escaped character, which may be a backslash itself.
            let len = after.chars().next().map_or(0, char::len_utf8);
            text.push('\\');
            text.push_str(&after[..len]);
            rest = &after[len..];
        }
    }
    text.push_str(rest);
    text
}

/// Neutralizes `{% generation %}` … `{% endgeneration %}`, which marks the assistant's text for training scripts
/// and renders nothing.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        let Some((tag, after)) = after.split_once("%}") else {
            rest = after;
            continue;
        };
        let statement = match tag.trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        text.push_str(&statement);
        text.push_str("%}");
        rest = after;
    }
    text.push_str(rest);
    text
}
