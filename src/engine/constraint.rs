//! What a turn's tokens may be, where not anything: the seam to grammars.

use std::fmt;

use waymark_models::grammar;
use waymark_models::sampler::TokenMask;

/// A rule that any number of turns may be written after.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Begins a turn.
    fn begin(&self) -> Box<dyn Follow>;
}

/// The rule's side of one turn. It is asked before every token, on threads that hold up no other turn; a panic concerns
/// this turn alone.
pub trait Follow: fmt::Debug + Send {
    /// Which tokens may come next; any, where nothing is said.
    ///
    /// # Errors
    /// Why this cannot be found out; the turn fails with it.
    fn allowed(&mut self) -> Result<Option<TokenMask>, String>;

    /// Takes the token that was chosen among those.
    ///
    /// # Errors
    /// Why the turn cannot go on after it.
    fn accept(&mut self, id: u32) -> Result<(), String>;
}

impl Constraint for grammar::Grammar {
    fn begin(&self) -> Box<dyn Follow> {
        Box::new(grammar::Grammar::begin(self))
    }
}

impl Follow for grammar::Writer {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        grammar::Writer::allowed(self).map(Some).map_err(|error| error.to_string())
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        grammar::Writer::accept(self, id).map_err(|error| error.to_string())
    }
}
