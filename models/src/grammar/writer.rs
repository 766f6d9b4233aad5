//! A compiled grammar, and one text that is written after it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use super::{GrammarError, said};
use crate::sampler::TokenMask;

/// A compiled grammar. Cheap to begin texts with.
pub struct Grammar(Mutex<Matcher>);

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    pub(super) fn new(parser: TokenParser) -> Result<Grammar, GrammarError> {
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask is where a schema that nothing fulfils, or that is too much, is found out.
        let mask = matcher.compute_mask().map_err(|error| GrammarError::Schema(said(&error)))?;
        if mask.num_set() == 0 {
            return Err(GrammarError::Schema("no text fulfils the schema".into()));
        }
        Ok(Grammar(Mutex::new(matcher)))
    }

    /// Begins a text.
    pub fn begin(&self) -> Writer {
        // What panics in the library is caught there; the prototype itself is never written after.
        Writer(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }
}

/// One text on its way.
pub struct Writer(Matcher);

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// The tokens that may come next; those that end the text, once it is complete.
    ///
    /// # Errors
    /// [`GrammarError::Text`] when finding out takes more work than one token may.
    pub fn allowed(&mut self) -> Result<TokenMask, GrammarError> {
        let mask = self.0.compute_mask_or_eos().map_err(|error| GrammarError::Text(said(&error)))?;
        let len = mask.len();
        Ok(TokenMask::from_words(mask.into(), len))
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// [`GrammarError::Text`] for a token that was not allowed.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        self.0.consume_token(id).map_err(|error| GrammarError::Text(said(&error)))
    }

    /// Whether the text is whole as it stands.
    ///
    /// # Errors
    /// As [`allowed`](Self::allowed).
    pub fn complete(&mut self) -> Result<bool, GrammarError> {
        self.0.is_accepting().map_err(|error| GrammarError::Text(said(&error)))
    }
}
