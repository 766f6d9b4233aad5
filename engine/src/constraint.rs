//! Constraints on the tokens of a turn: the interface to grammars.

use std::fmt;

use waymark_models::grammar;
use waymark_models::sampler::TokenMask;

/// A rule for the text of turns, shared by any number of them.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Returns the state of the rule at the beginning of a turn.
    fn begin(&self) -> Box<dyn ConstraintState>;
}

/// State of a rule in one turn. The engine calls its methods for every token, on separate threads. If a mask is late,
/// only this turn misses a step. A panic fails this turn only.
pub trait ConstraintState: fmt::Debug + Send {
    /// Returns the tokens that may come next. `None` allows all of them.
    ///
    /// # Errors
    /// The reason why the set cannot be determined; the turn fails with it.
    fn allowed(&mut self) -> Result<Option<TokenMask>, String>;

    /// Accepts the token that was chosen from the allowed ones.
    ///
    /// # Errors
    /// The reason why the turn cannot continue after this token.
    fn accept(&mut self, id: u32) -> Result<(), String>;
}

impl Constraint for grammar::Grammar {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(grammar::Grammar::begin(self))
    }
}

impl ConstraintState for grammar::GrammarWriter {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        grammar::GrammarWriter::allowed(self).map(Some).map_err(|error| error.to_string())
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        grammar::GrammarWriter::accept(self, id).map_err(|error| error.to_string())
    }
}
