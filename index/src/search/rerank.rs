//! Reranking: the best candidates of a search, in the order of a reranker that reads each with the query.

use super::SearchContext;
use crate::error::IndexError;
use crate::evidence::{EvidenceBudget, Hit, HitPath, RerankRank};
use crate::mode::Mode;
use crate::rerank::{cut_to_beginning, rerank_checked};

/// Passage to return.
struct RankedCandidate {
    /// Index among the candidates.
    place: usize,
    number: u32,
    score: f32,
    rerank: Option<RerankRank>,
}

impl SearchContext<'_> {
    /// Number of candidates to rank: more than are returned if they are reranked.
    pub(super) fn candidates(&self) -> usize {
        if self.reranks() { self.query.rerank.depth.max(self.query.k) } else { self.query.k }
    }

    fn reranks(&self) -> bool {
        self.query.rerank.wanted == Some(true) && Mode::RERANKED.contains(&self.query.mode)
    }

    /// Converts candidates, pairs of a passage and its score, best first, to hits, as far as the budget reaches. `path`
    /// returns the ranks of the candidate at a place.
    pub(super) fn ranked_hits(
        &self,
        candidates: &[(u32, f32)],
        path: impl Fn(usize, u32) -> HitPath,
        budget: &mut EvidenceBudget,
    ) -> Result<Vec<Hit>, IndexError> {
        let ranked = if self.reranks() { self.reranked(candidates)? } else { self.unchanged(candidates) };
        let hits = ranked.into_iter().zip(1..).filter_map(|(candidate, rank)| {
            let RankedCandidate { place, number, score, rerank } = candidate;
            let path = HitPath { rerank, ..path(place, number) };
            budget.hit(|| self.index.hit(number, rank, score, path)).transpose()
        });
        hits.collect()
    }

    fn unchanged(&self, candidates: &[(u32, f32)]) -> Vec<RankedCandidate> {
        let places = candidates.iter().enumerate().take(self.query.k);
        places.map(|(place, &(number, score))| RankedCandidate { place, number, score, rerank: None }).collect()
    }

    /// Returns the best of the candidates, in the reranker's order; ties keep the order of `candidates`.
    fn reranked(&self, candidates: &[(u32, f32)]) -> Result<Vec<RankedCandidate>, IndexError> {
        let Some(reranker) = &self.index.reranker else { return Err(IndexError::NoReranker) };
        self.check("the passages were reranked")?;
        // A passage may have 64 MiB, of which a reranker reads a few hundred tokens.
        let texts = candidates.iter().map(|&(number, _)| self.index.text(number).map(cut_to_beginning));
        let texts = texts.collect::<Result<Vec<String>, IndexError>>()?;
        let scores = rerank_checked(reranker.as_ref(), self.text, &texts);
        let scores = scores.map_err(|source| IndexError::Rerank { source })?;
        let mut order: Vec<_> = candidates.iter().zip(scores).enumerate().collect();
        order.sort_by(|(_, (_, a)), (_, (_, b))| a.best_first(b));
        let least = self.query.rerank.cutoff.unwrap_or(f32::NEG_INFINITY);
        let kept = order.into_iter().filter(|(_, (_, score))| score.relevance >= least).take(self.query.k);
        let shown = kept.map(|(place, (&(number, score), found))| {
            let rerank = RerankRank { rank: place + 1, score, relevance: found.relevance, logit: found.logit };
            RankedCandidate { place, number, score: found.relevance, rerank: Some(rerank) }
        });
        Ok(shown.collect())
    }
}

#[cfg(test)]
mod tests;
