//! Constrained decoding: token masks that hold output to JSON, a regular expression, a choice or a grammar.
//!
//! A [`Vocabulary`] holds the tokens and is built once per model. It compiles an [`OutputForm`] into a [`Grammar`],
//! which can constrain any number of outputs. Each output has a [`GrammarWriter`], which returns the allowed next
//! tokens. A vocabulary made by [`Vocabulary::for_request`] compiles each form of a request once. Parsing is done by
//! llguidance; this module limits how much work a schema may cause.

mod closing;
mod form;
mod json;
mod request_forms;
mod vocabulary;
mod writer;

pub use form::OutputForm;
pub use json::Json;
pub use vocabulary::Vocabulary;
pub use writer::{Grammar, GrammarWriter};

/// Error in constraining output to a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema is too large, too deep, invalid, or uses a keyword that cannot be enforced.
    #[error("{0}")]
    Schema(String),
    /// The vocabulary cannot be used for constrained decoding.
    #[error("the vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The output violated its grammar, or computing a mask exceeded the work limit per token.
    #[error("the text cannot be held to its schema: {0}")]
    Text(String),
    /// No thread could be started to compile a form, because the machine is short of threads or memory.
    #[error("the form cannot be compiled now: no thread could be started: {0}")]
    NoThread(String),
    /// The compiler of a form panicked. The panic hook has logged the location.
    #[error("the form cannot be compiled: its compiler ran into a bug")]
    Panicked,
}

/// First line of a library error; the remaining lines describe internals.
fn first_line(error: &impl std::fmt::Display) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim_end_matches('.');
    line.chars().take(LONGEST).collect()
}
