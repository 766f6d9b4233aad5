//! The `include` option: optional parts of a response.

use serde::{Deserialize, Serialize};

use crate::api::error::ApiError;

/// Results of each search.
const RESULTS: &str = "file_search_call.results";
/// Tokens of the answer with their log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Reasoning in a sealed form.
const SEALED: &str = "reasoning.encrypted_content";

/// Parts of OpenAI's interface that this server does not implement.
const UNIMPLEMENTED: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Optional parts of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Show {
    /// If `true`, the results of each search are returned.
    pub(super) results: bool,
    /// If `true`, the tokens of the answer are returned.
    pub(super) logprobs: bool,
    /// If `true`, reasoning is also returned in a sealed form.
    #[serde(default)]
    pub(super) sealed: bool,
}

impl Show {
    /// Parses the names in `include`.
    ///
    /// # Errors
    /// Names the first entry that is unknown or not implemented.
    pub(super) fn read<S: AsRef<str>>(include: &[S]) -> Result<Show, ApiError> {
        let mut show = Show::default();
        for (at, name) in include.iter().enumerate() {
            let param = format!("include[{at}]");
            match name.as_ref() {
                RESULTS => show.results = true,
                LOGPROBS => show.logprobs = true,
                SEALED => show.sealed = true,
                name if UNIMPLEMENTED.contains(&name) => {
                    return Err(ApiError::unsupported(&param, &format!("`{name}` is")));
                }
                name => {
                    let message =
                        format!("`{param}`: unknown name `{name}`: expected `{RESULTS}`, `{LOGPROBS}` or `{SEALED}`");
                    return Err(ApiError::invalid(&param, message));
                }
            }
        }
        Ok(show)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::api::error::Code;

    #[test]
    fn names_are_known_or_refused() {
        assert_eq!(
            Show::read(&[LOGPROBS, RESULTS, SEALED]).unwrap(),
            Show { results: true, logprobs: true, sealed: true }
        );
        assert_eq!(Show::read::<&str>(&[]).unwrap(), Show::default());
        for (name, code) in [("web_search_call.results", Code::UnsupportedParameter), ("x", Code::InvalidValue)] {
            let error = Show::read(&[RESULTS, name]).unwrap_err();
            assert_eq!((error.code, error.param.as_deref()), (code, Some("include[1]")));
        }
    }
}
