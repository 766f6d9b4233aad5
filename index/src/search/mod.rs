//! A query's way through an index: one file per mode.

#[cfg(test)]
mod golden;
mod graph;
mod hybrid;
mod passage;
mod triples;

use std::cell::OnceCell;

use crate::condition::{AllowedPassages, TopPassages};
use crate::embed::embed_unit;
use crate::error::IndexError;
use crate::evidence::{Evidence, Hit};
use crate::index::Index;
use crate::kag;
use crate::mode::Mode;
use crate::query::Query;

impl Index {
    /// Searches, on the calling thread. The same query on the same snapshot always has the same answer.
    ///
    /// * [`Mode::Passage`]: with [`Ranking::Fused`](crate::Ranking::Fused), lists of at least twice `k` are fused (see
    ///   [`crate::fusion`]), equal scores in the order of BM25; the other rankings order by score, and equal scores as
    ///   in the corpus.
    /// * [`Mode::Graph`]: by the mass of a walk from the phrases of the facts most like the query (HippoRAG 2), equal
    ///   ones as in the corpus. If there is no fact to follow, passages are ranked by their own similarity, scaled to
    ///   \[0, 1\] over all of them. In an index of more passages than [`OpenOptions::walk_below`](crate::OpenOptions)
    ///   the walk is a local one, of the passages only the 200 most similar have a weight of their own in where it
    ///   starts, and the scale is that of a sample and of these: the trace says so ([`GraphTrace::local`](crate::GraphTrace)), and
    ///   how much is missing of the walk from there.
    /// * [`Mode::Hybrid`]: both lists, twice `k` deep, by reciprocal rank fusion, equal scores in the order of the
    ///   graph's list.
    /// * [`Mode::Triples`]: as [`Mode::Graph`], and with the passages the facts that were followed, or if a filter kept
    ///   none, those that it was given.
    /// * [`Mode::Kag`]: passages and facts like the query and the entities it is about, joined by what they name and
    ///   ranked together by a walk from the query (TeaRAG); equal ones passages first, then the more alike. `k` counts
    ///   both.
    ///
    /// With a condition (`only` of the query) nothing but what it allows is found: no passage of another document, and no
    /// triple that only such passages state, nor their names with one. As many passages are found as without it, as long
    /// as so many are allowed and the search comes to them: the lists of words and vectors are of allowed passages from the
    /// start, with the scores that they have among all. Of a walk the passages that are not allowed are left out when it
    /// is over. It goes over the whole graph as ever, and so may what it tells of itself: the facts and phrases that it
    /// starts from, and the way to each passage. Facts are looked for among all, so that fewer triples may be left than are
    /// asked for. This is for finding, and keeps no secrets. The condition is held against every document once for each
    /// snapshot, as long as it is among the last eight that were asked for.
    ///
    /// A query of nothing but white space finds nothing.
    ///
    /// # Errors
    /// If a number is out of its range ([`Query::check`]), the mode is not one of [`Index::modes`], the deadline has
    /// passed before a stage, or the embedder, the filter of facts or a file fails.
    pub fn search(&self, query: &Query) -> Result<Evidence, IndexError> {
        query.check()?;
        let unsupported = IndexError::Unsupported { mode: query.mode };
        if !self.modes().contains(&query.mode) {
            return Err(unsupported);
        }
        let text = query.text.trim();
        if text.is_empty() {
            return Ok(Evidence::of(self.manifest().snapshot, query.mode, Vec::new()));
        }
        let allowed = self.snapshot.allowed(query)?;
        let allowed = allowed.as_deref();
        if allowed.is_some_and(|allowed| allowed.len() == 0) {
            return Ok(Evidence::of(self.manifest().snapshot, query.mode, Vec::new()));
        }
        let search = SearchContext { index: self, query, text, allowed, vector: OnceCell::new() };
        match (query.mode, self.graph()) {
            (Mode::Passage, _) => search.by_passages(),
            (Mode::Graph, Some(graph)) => search.by_graph(graph),
            (Mode::Hybrid, Some(graph)) => search.by_both(graph),
            (Mode::Triples, Some(graph)) => search.by_triples(graph),
            (Mode::Kag, Some(graph)) => kag::search(self, graph, query, text, allowed),
            _ => Err(unsupported),
        }
    }
}

/// One query being answered.
struct SearchContext<'a> {
    index: &'a Index,
    query: &'a Query,
    /// What is looked for, without the white space around it; not empty.
    text: &'a str,
    /// What may be found, if not everything may.
    allowed: Option<&'a AllowedPassages>,
    /// The query's vector, once it has been asked for.
    vector: OnceCell<Vec<f32>>,
}

impl SearchContext<'_> {
    /// The vector of the query, of length 1.
    fn vector(&self) -> Result<&[f32], IndexError> {
        if let Some(vector) = self.vector.get() {
            return Ok(vector);
        }
        self.check("the query was embedded")?;
        let embedded = embed_unit(self.index.embed.as_ref(), &[self.text]);
        let mut vectors = embedded.map_err(|source| IndexError::Embed { what: "the query".to_owned(), source })?;
        Ok(self.vector.get_or_init(|| vectors.swap_remove(0)))
    }

    /// So many passages of those that may be found.
    fn wanted(&self, limit: usize) -> TopPassages<'_> {
        TopPassages { limit, among: self.allowed }
    }

    fn check(&self, stage: &'static str) -> Result<(), IndexError> {
        self.query.enter_stage(stage)
    }

    fn evidence(&self, hits: Vec<Hit>) -> Evidence {
        Evidence::of(self.index.manifest().snapshot, self.query.mode, hits)
    }
}
