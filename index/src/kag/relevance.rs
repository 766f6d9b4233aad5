//! Relevance of chunks and triples for a question: from the reranker, or else from their similarity.

use crate::error::IndexError;
use crate::evidence::RerankRank;
use crate::index::Index;
use crate::query::Query;
use crate::rerank::{Rerank, cut_to_beginning, rerank_checked};
use crate::scored::Scored;

/// Chunk or fact found for a question.
pub(super) struct RelevantItem {
    pub(super) number: u32,
    /// Cosine with the question.
    pub(super) similarity: f32,
    /// Rank by similarity, from 1.
    pub(super) rank: usize,
    /// Weight of the edge to the question (eq. 1, 2).
    pub(super) relevance: f64,
    /// Score of the reranker. `None` if there is none.
    pub(super) rerank: Option<RerankRank>,
}

/// Source of relevances for a question.
pub(super) struct RelevanceSource<'a> {
    query: &'a Query,
    text: &'a str,
    reranker: Option<&'a dyn Rerank>,
}

impl<'a> RelevanceSource<'a> {
    /// Takes the reranker of the index, unless the query forbids that.
    pub(super) fn new(index: &'a Index, query: &'a Query, text: &'a str) -> Result<Self, IndexError> {
        let reranker = match (query.rerank.wanted, index.reranker.as_deref()) {
            (Some(false), _) => None,
            (Some(true), None) => return Err(IndexError::NoReranker),
            (_, reranker) => reranker,
        };
        Ok(RelevanceSource { query, text, reranker })
    }

    /// Number of chunks or facts to find if `wanted` are to remain: a reranker chooses among more.
    pub(super) fn candidates(&self, wanted: usize) -> usize {
        if self.reranker.is_some() { wanted.max(self.query.rerank.depth) } else { wanted }
    }

    /// Computes the relevance of the items found, which are in the order of their similarity. With a reranker, returns
    /// the `wanted` best in the order of their relevance; ties keep the order of similarity.
    pub(super) fn judge(
        &self,
        found: Vec<Scored>,
        wanted: usize,
        text: impl Fn(u32) -> Result<String, IndexError>,
    ) -> Result<Vec<RelevantItem>, IndexError> {
        let mut items: Vec<RelevantItem> =
            found.into_iter().zip(1..).map(|(found, rank)| self.item(found, rank)).collect();
        let Some(reranker) = self.reranker else { return Ok(items) };
        self.query.enter_stage("the candidates were reranked")?;
        let texts = items.iter().map(|item| text(item.number).map(cut_to_beginning));
        let texts = texts.collect::<Result<Vec<String>, IndexError>>()?;
        let scores = rerank_checked(reranker, self.text, &texts).map_err(|source| IndexError::Rerank { source })?;
        let mut order: Vec<_> = items.drain(..).zip(scores).collect();
        order.sort_by(|(_, a), (_, b)| a.best_first(b));
        order.truncate(wanted);
        let judged = order.into_iter().map(|(item, score)| {
            let RelevantItem { rank, similarity, .. } = item;
            let rerank = RerankRank { rank, score: similarity, relevance: score.relevance, logit: score.logit };
            // The reranker's relevance is the sigmoid of its score, as in TeaRAG (eq. 9–11).
            RelevantItem { relevance: f64::from(score.relevance).clamp(0.0, 1.0), rerank: Some(rerank), ..item }
        });
        Ok(judged.collect())
    }

    fn item(&self, found: Scored, rank: usize) -> RelevantItem {
        let Scored { number, score: similarity } = found;
        RelevantItem { number, similarity, rank, relevance: self.query.kag.relevance.of(similarity), rerank: None }
    }
}
