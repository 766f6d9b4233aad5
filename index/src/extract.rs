//! The seam to what finds triples in passages (open information extraction): the index does not know how.

use std::fmt;

use crate::error::IndexError;
use crate::evidence::Passage;
use crate::triple::Triple;

/// The passages of an index in the making, by their number.
pub trait Passages: Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The passage with this number, below [`Passages::len`].
    ///
    /// # Errors
    /// If it cannot be read.
    fn passage(&self, number: u32) -> Result<Passage, IndexError>;
}

/// Takes the triples of one passage; called once for each number asked for, in any order.
pub type TripleSink<'a> = dyn FnMut(u32, Vec<Triple>) -> Result<(), IndexError> + 'a;

/// Finds the triples of passages.
pub trait Extract: fmt::Debug + Send + Sync {
    /// Names the source in the manifest: `builtin`, `import openie.jsonl`, `endpoint gpt-4o-mini`.
    fn id(&self) -> String;

    /// Whether the triples of one passage depend on the other passages, as where titles are linked. Then a change to
    /// some passages asks for all of them again.
    fn reads_corpus(&self) -> bool;

    /// Finds the triples of the passages with the given `numbers`; the others are there to be looked at.
    ///
    /// # Errors
    /// Whatever keeps a passage from being read or its triples from being found, and what `sink` says.
    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError>;
}
