//! Interface to a fact filter, which callers supply.

use std::fmt;

/// Error returned by a [`FactFilter`].
pub type FilterError = Box<dyn std::error::Error + Send + Sync>;

/// Selects the facts to follow among those most similar to a query: HippoRAG 2's recognition memory. Installed by
/// [`Index::with_fact_filter`](crate::Index::with_fact_filter), and called from many threads at once.
pub trait FactFilter: fmt::Debug + Send + Sync {
    /// Returns the indices into `candidates` of the facts to keep, best first, possibly with repetitions. Candidates
    /// are subject, relation and object in normalized words, most similar first. If no fact is kept, passages are
    /// ranked by their own similarity.
    ///
    /// # Errors
    /// If the facts cannot be judged; the search then fails. An index out of range also fails the search.
    fn keep(&self, query: &str, candidates: &[[&str; 3]]) -> Result<Vec<usize>, FilterError>;
}
