//! What a text may be, token by token: JSON, or the JSON that a schema describes.
//!
//! A [`Vocabulary`] knows the tokens and is made once. It compiles a [`Json`] into a [`Grammar`], which any number of texts
//! may be written after; each has a [`Writer`] of its own, which says before every token which ones may follow. The work
//! is llguidance's; what is bounded here is how much of it one schema can ask for.

mod json;
mod vocabulary;
mod writer;

pub use json::Json;
pub use vocabulary::Vocabulary;
pub use writer::{Grammar, Writer};

/// Why a text cannot be held to a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema is too large, too deep, wrong, or uses what cannot be enforced.
    #[error("{0}")]
    Schema(String),
    /// The vocabulary allows no such thing.
    #[error("the vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// A text left its grammar, or following it took more work than one token may.
    #[error("the text cannot be held to its schema: {0}")]
    Text(String),
}

/// The first line of what the library says: more of it tells of its insides.
fn said(error: &impl std::fmt::Display) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim_end_matches('.');
    line.chars().take(LONGEST).collect()
}
