//! Compiled grammars, and the state of one output that follows a grammar.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use super::{GrammarError, first_line};
use crate::sampler::TokenMask;

/// Maximum number of tokens written to try a grammar.
const TRIED: usize = 12;

/// A compiled grammar; clones share it. Starting an output is cheap.
#[derive(Clone)]
pub struct Grammar(Arc<Mutex<Matcher>>);

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    /// Creates a grammar. `is_blank` returns `true` for tokens of white space only, and for end tokens.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] when the beginning of an output shows that the schema is unsatisfiable or exceeds the
    /// work limits.
    pub(super) fn new(parser: TokenParser, is_blank: impl Fn(u32) -> bool) -> Result<Grammar, GrammarError> {
        let mut matcher = Matcher::new(Ok(parser));
        // Computing the first mask reveals schemas that are unsatisfiable or exceed the work limits.
        let mask = matcher.compute_mask().map_err(|error| GrammarError::Schema(first_line(&error)))?;
        if mask.num_set() == 0 {
            return Err(GrammarError::Schema("no text fulfills the schema".into()));
        }
        try_beginning(GrammarWriter(matcher.deep_clone()), is_blank)?;
        Ok(Grammar(Arc::new(Mutex::new(matcher))))
    }

    /// Starts an output.
    pub fn begin(&self) -> GrammarWriter {
        // llguidance catches its own panics, and the prototype is only cloned, so a poisoned lock holds a valid
        // value.
        GrammarWriter(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }
}

/// Writes the beginning of an output to detect masks that exceed the work limit. The first mask seldom does, because it
/// allows only an opening bracket or quote. An error while a client's output is written would be too late for a clear
/// refusal.
fn try_beginning(mut writer: GrammarWriter, is_blank: impl Fn(u32) -> bool) -> Result<(), GrammarError> {
    let of_schema = |error: GrammarError| match error {
        GrammarError::Text(reason) => GrammarError::Schema(reason),
        error => error,
    };
    for _ in 0..TRIED {
        let mask = writer.allowed().map_err(of_schema)?;
        let Some(next) = (0..mask.len() as u32).find(|&id| mask.allows(id) && !is_blank(id)) else { return Ok(()) };
        writer.accept(next).map_err(of_schema)?;
    }
    Ok(())
}

/// State of one output that follows a grammar.
pub struct GrammarWriter(Matcher);

impl fmt::Debug for GrammarWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl GrammarWriter {
    /// Tokens that may come next. Includes the end tokens once the output is complete.
    ///
    /// # Errors
    /// [`GrammarError::Text`] when computing the mask exceeds the work limit per token.
    pub fn allowed(&mut self) -> Result<TokenMask, GrammarError> {
        let mask = self.0.compute_mask_or_eos().map_err(|error| GrammarError::Text(first_line(&error)))?;
        let len = mask.len();
        Ok(TokenMask::from_words(mask.into(), len))
    }

    /// Accepts the next token.
    ///
    /// # Errors
    /// [`GrammarError::Text`] for a token that is not allowed.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        self.0.consume_token(id).map_err(|error| GrammarError::Text(first_line(&error)))
    }

    /// Returns `true` if the output is complete as it stands.
    ///
    /// # Errors
    /// The same as for [`allowed`](Self::allowed).
    pub fn complete(&mut self) -> Result<bool, GrammarError> {
        self.0.is_accepting().map_err(|error| GrammarError::Text(first_line(&error)))
    }
}
