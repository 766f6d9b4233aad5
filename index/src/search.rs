//! A query's way through an index.

use std::collections::HashMap;
use std::time::Instant;

use crate::embed::embed_unit;
use crate::error::IndexError;
use crate::evidence::{Evidence, Hit, Path, Place};
use crate::fusion::{RRF_K, Ranked, depth, reciprocal_rank};
use crate::index::Index;
use crate::query::{Query, Ranking};
use crate::scored::Scored;

impl Index {
    /// Searches, on the calling thread. The same query on the same snapshot always has the same answer.
    ///
    /// With [`Ranking::Fused`], BM25 and dense lists of twice `k` are fused (see [`crate::fusion`]), equal scores in the
    /// order of BM25; the other rankings order by score, and equal scores as in the corpus. A query of nothing but white
    /// space finds nothing.
    ///
    /// # Errors
    /// If a number is out of its range ([`Query::check`]), the mode is not one of [`Index::modes`], the deadline has passed before a stage, or the embedder or
    /// a file fails.
    pub fn search(&self, query: &Query) -> Result<Evidence, IndexError> {
        query.check()?;
        if !self.modes().contains(&query.mode) {
            return Err(IndexError::Unsupported { mode: query.mode });
        }
        let hits = if query.text.trim().is_empty() { Vec::new() } else { self.passages(query)? };
        Ok(Evidence::of(self.manifest().snapshot, query.mode, hits))
    }

    fn passages(&self, query: &Query) -> Result<Vec<Hit>, IndexError> {
        let limit =
            if query.ranking == Ranking::Fused { depth(query.k) } else { query.k }.min(self.snapshot.store.len());
        let bm25 = if query.ranking.wants_bm25() { self.by_words(query, limit)? } else { Vec::new() };
        let dense = if query.ranking.wants_dense() { self.by_vector(query, limit)? } else { Vec::new() };
        check(query.deadline, "the passages were read")?;
        let ranked: Vec<(u32, f32)> = match query.ranking {
            Ranking::Bm25 => pairs(&bm25),
            Ranking::Dense => pairs(&dense),
            Ranking::Fused => fuse(&bm25, &dense),
        };
        let (bm25, dense) = (places(&bm25), places(&dense));
        let hits = ranked.into_iter().zip(1..).take(query.k).map(|((number, score), rank)| {
            let path = Path { bm25: bm25.get(&number).copied(), dense: dense.get(&number).copied(), graph: None };
            Ok(Hit { rank, score, passage: self.snapshot.store.passage(number)?, path })
        });
        hits.collect()
    }

    fn by_words(&self, query: &Query, limit: usize) -> Result<Vec<Scored>, IndexError> {
        check(query.deadline, "the search for words")?;
        self.snapshot.lexical.search(&query.text, limit)
    }

    /// Dense search; with [`Query::scaled`], the scores of a purely dense ranking lie in [0, 1].
    fn by_vector(&self, query: &Query, limit: usize) -> Result<Vec<Scored>, IndexError> {
        check(query.deadline, "the query was embedded")?;
        let embedded = embed_unit(self.embed.as_ref(), &[query.text.trim()]);
        let vectors = embedded.map_err(|source| IndexError::Embed { what: "the query".to_owned(), source })?;
        check(query.deadline, "the vector search")?;
        let mut found = self.snapshot.dense.search(&vectors[0], limit, query.deadline)?;
        if query.scaled
            && query.ranking == Ranking::Dense
            && let Some(bounds) = self.snapshot.dense.bounds(&vectors[0])
        {
            found.iter_mut().for_each(|scored| scored.score = scale(scored.score, bounds));
        }
        Ok(found)
    }
}

fn check(deadline: Option<Instant>, stage: &'static str) -> Result<(), IndexError> {
    match deadline {
        Some(deadline) if Instant::now() >= deadline => Err(IndexError::Deadline { stage }),
        _ => Ok(()),
    }
}

/// HippoRAG's `min_max_normalize`: where all are equal, all are 1.
fn scale(score: f32, (low, high): (f32, f32)) -> f32 {
    if high > low { (score - low) / (high - low) } else { 1.0 }
}

fn pairs(list: &[Scored]) -> Vec<(u32, f32)> {
    list.iter().map(|scored| (scored.number, scored.score)).collect()
}

fn fuse(bm25: &[Scored], dense: &[Scored]) -> Vec<(u32, f32)> {
    let numbers = |list: &[Scored]| list.iter().map(|scored| scored.number).collect::<Vec<_>>();
    let (bm25, dense) = (numbers(bm25), numbers(dense));
    let fused = reciprocal_rank(&[Ranked::new(&bm25), Ranked::new(&dense)], RRF_K);
    fused.into_iter().map(|(number, score)| (number, score as f32)).collect()
}

fn places(list: &[Scored]) -> HashMap<u32, Place> {
    list.iter().zip(1..).map(|(scored, rank)| (scored.number, Place { rank, score: scored.score })).collect()
}
