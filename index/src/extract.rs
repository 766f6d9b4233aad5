//! Interface to triple extraction (open information extraction), which callers supply.

use std::fmt;

use crate::error::IndexError;
use crate::evidence::Passage;
use crate::triple::Triple;

/// Passages of an index under construction, by their number.
pub trait Passages: Sync {
    /// Number of passages.
    fn len(&self) -> usize;

    /// Returns `true` if there is no passage.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the passage with this number, which must be below [`Passages::len`].
    ///
    /// # Errors
    /// If the passage cannot be read.
    fn passage(&self, number: u32) -> Result<Passage, IndexError>;
}

impl Passages for Vec<Passage> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        self.get(number as usize).cloned().ok_or_else(|| {
            let source = format!("there are only {} passages", Vec::len(self)).into();
            IndexError::Extract { what: format!("passage {number}"), source }
        })
    }
}

/// Callback that receives the triples of one passage. Called once per requested number, in any order.
pub type TripleSink<'a> = dyn FnMut(u32, Vec<Triple>) -> Result<(), IndexError> + 'a;

/// Extracts triples from passages.
pub trait Extract: fmt::Debug + Send + Sync {
    /// Name of the source, for the manifest: `builtin`, `import openie.jsonl`, `endpoint gpt-4o-mini`.
    fn id(&self) -> String;

    /// Returns `true` if the triples of one passage depend on the other passages, for example through known titles. A
    /// change to some passages then re-extracts all of them.
    fn reads_corpus(&self) -> bool;

    /// Extracts the triples of the passages with the given `numbers`. The other passages are context only.
    ///
    /// # Errors
    /// If a passage cannot be read, extraction fails, or `sink` returns an error.
    fn extract(&self, passages: &dyn Passages, numbers: &[u32], sink: &mut TripleSink<'_>) -> Result<(), IndexError>;
}
