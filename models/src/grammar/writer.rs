//! Compiled grammars, and the state of one output that follows a grammar.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use super::{GrammarError, first_line};
use crate::sampler::TokenMask;

/// A compiled grammar. Starting an output is cheap.
pub struct Grammar(Mutex<Matcher>);

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    pub(super) fn new(parser: TokenParser) -> Result<Grammar, GrammarError> {
        let mut matcher = Matcher::new(Ok(parser));
        // Computing the first mask reveals schemas that are unsatisfiable or exceed the work limits.
        let mask = matcher.compute_mask().map_err(|error| GrammarError::Schema(first_line(&error)))?;
        if mask.num_set() == 0 {
            return Err(GrammarError::Schema("no text fulfils the schema".into()));
        }
        Ok(Grammar(Mutex::new(matcher)))
    }

    /// Starts an output.
    pub fn begin(&self) -> GrammarWriter {
        // llguidance catches its own panics, and the prototype is only cloned, so a poisoned lock holds a valid
        // value.
        GrammarWriter(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }
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
