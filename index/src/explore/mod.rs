//! Read-only views of an index for people who look around in it: neighborhoods, lookups by text, example questions.
//!
//! Every view is bounded by its arguments and by constants here, whatever the index holds.

mod neighborhood;
mod passage_view;
mod phrase_lookup;
mod question_forms;
mod questions;

pub use neighborhood::{EdgeKind, GraphNode, Neighborhood, NodeEdge, NodeKind};
pub use passage_view::{ChunkSiblings, TripleSource};
pub use phrase_lookup::{PhraseLookup, PhraseMatch, PhraseMatchKind};
pub use questions::{ExampleQuestion, QuestionFact};

#[cfg(test)]
mod tests;
