//! The seam to a filter of facts: the index does not know what judges them.

use std::fmt;

/// What a filter says when it fails.
pub type FilterError = Box<dyn std::error::Error + Send + Sync>;

/// Decides which of the facts most like a query are worth following: HippoRAG 2's recognition memory. Called from many
/// threads at once; [`Index::with_fact_filter`](crate::Index::with_fact_filter) plugs it in.
pub trait FactFilter: fmt::Debug + Send + Sync {
    /// The places, in `candidates`, of the facts to keep: best first, as the filter orders them, repeated where it
    /// repeats them. `candidates` are subject, relation and object in normalised words, most similar first. If none is
    /// kept, passages are ranked by their own similarity.
    ///
    /// # Errors
    /// Whatever keeps the facts from being judged; the search then fails, and so does one whose filter names a place
    /// that is not there.
    fn keep(&self, query: &str, candidates: &[[&str; 3]]) -> Result<Vec<usize>, FilterError>;
}
