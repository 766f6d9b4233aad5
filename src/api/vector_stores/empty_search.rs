//! Searches of a vector store without documents.

use futures::future::BoxFuture;
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_index::{Evidence, Mode};

/// Searcher that finds nothing, in any mode and with any ranking.
#[derive(Debug)]
pub(in crate::api) struct EmptySearch;

impl Search for EmptySearch {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move { Ok(Evidence::of(0, query.wanted.mode, Vec::new())) })
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::ALL.to_vec()
    }

    fn reranks(&self) -> bool {
        true
    }
}
