//! Passage search by BM25 and by vectors.

use std::collections::HashMap;

use super::SearchContext;
use crate::error::IndexError;
use crate::evidence::{Evidence, HitPath, HitRank};
use crate::fusion::{RRF_K, RankedList, depth_of_rankings, reciprocal_rank};
use crate::graph::scale::Scale;
use crate::mode::{Mode, Ranking};
use crate::scored::Scored;

/// Passages, best first, with the rank of each in the underlying lists.
#[derive(Debug)]
pub(super) struct PassageList {
    pub(super) ranked: Vec<(u32, f32)>,
    bm25: HashMap<u32, HitRank>,
    dense: HashMap<u32, HitRank>,
}

impl PassageList {
    /// Ranks of a passage in the underlying lists.
    pub(super) fn path(&self, number: u32) -> HitPath {
        let bm25 = self.bm25.get(&number).copied();
        let dense = self.dense.get(&number).copied();
        HitPath { bm25, dense, ..HitPath::default() }
    }
}

impl SearchContext<'_> {
    pub(super) fn by_passages(&self) -> Result<Evidence, IndexError> {
        let list = self.passages(self.candidates())?;
        self.check("the passages were read")?;
        let mut budget = self.budget();
        let hits = self.ranked_hits(&list.ranked, |_, number| list.path(number), &mut budget)?;
        Ok(self.evidence(hits, &budget))
    }

    /// Returns the best `limit` passages under the query's ranking.
    pub(super) fn passages(&self, limit: usize) -> Result<PassageList, IndexError> {
        let ranking = self.query.ranking;
        let depth = if ranking == Ranking::Fused { depth_of_rankings(limit) } else { limit };
        // usearch and tantivy reserve memory for the length asked for.
        let depth = depth.min(self.index.snapshot.store.len());
        let bm25 = if ranking.wants_bm25() { self.by_words(depth)? } else { Vec::new() };
        let dense = if ranking.wants_dense() { self.by_vector(depth)? } else { Vec::new() };
        let mut ranked = match ranking {
            Ranking::Bm25 => pairs(&bm25),
            Ranking::Dense => pairs(&dense),
            Ranking::Fused => fuse(&bm25, &dense),
        };
        ranked.truncate(limit);
        Ok(PassageList { ranked, bm25: places(&bm25), dense: places(&dense) })
    }

    fn by_words(&self, limit: usize) -> Result<Vec<Scored>, IndexError> {
        self.check("the search for words")?;
        self.index.snapshot.lexical.search(self.text, limit, self.allowed)
    }

    /// Searches by vector. With [`Query::scaled`](crate::Query), scores of a purely dense ranking lie in [0, 1].
    fn by_vector(&self, limit: usize) -> Result<Vec<Scored>, IndexError> {
        let dense = &self.index.snapshot.dense;
        let vector = self.vector()?;
        self.check("the vector search")?;
        let mut found = dense.search(vector, limit, self.query.deadline, self.allowed)?;
        // Fusion reads ranks alone, so scaling its lists would scan every vector for nothing.
        if self.query.scaled
            && (self.query.mode, self.query.ranking) == (Mode::Passage, Ranking::Dense)
            && let Some((low, high)) = dense.bounds(vector)
        {
            let scale = Scale::new(low, high);
            found.iter_mut().for_each(|scored| scored.score = scale.apply(scored.score));
        }
        Ok(found)
    }
}

fn pairs(list: &[Scored]) -> Vec<(u32, f32)> {
    list.iter().map(|scored| (scored.number, scored.score)).collect()
}

fn fuse(bm25: &[Scored], dense: &[Scored]) -> Vec<(u32, f32)> {
    let numbers = |list: &[Scored]| list.iter().map(|scored| scored.number).collect::<Vec<_>>();
    let bm25 = numbers(bm25);
    let dense = numbers(dense);
    let fused = reciprocal_rank(&[RankedList::new(&bm25), RankedList::new(&dense)], RRF_K);
    fused.into_iter().map(|(number, score)| (number, score as f32)).collect()
}

fn places(list: &[Scored]) -> HashMap<u32, HitRank> {
    list.iter().zip(1..).map(|(scored, rank)| (scored.number, HitRank { rank, score: scored.score })).collect()
}
