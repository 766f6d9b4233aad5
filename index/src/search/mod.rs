//! Search in an index, one file per mode.

#[cfg(test)]
mod golden;
mod graph;
mod hybrid;
mod hypergraph;
mod passage;
mod related_titles;
mod rerank;
mod triples;
mod word_weights;

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::condition::{AllowedPassages, TopPassages};
use crate::embed::{QueryAnnouncement, announce_query, embed_unit};
use crate::error::IndexError;
use crate::evidence::{Evidence, EvidenceBudget, Hit};
use crate::index::Index;
use crate::kag;
use crate::mode::Mode;
use crate::query::Query;

/// Name of the stage that embeds the query.
pub(crate) const EMBEDDED: &str = "the query was embedded";

impl Index {
    /// Searches on the calling thread. The same query on the same snapshot always returns the same evidence.
    ///
    /// * [`Mode::Passage`]: [`Ranking::Fused`](crate::Ranking::Fused) fuses lists of at least twice `k` (see
    ///   [`crate::fusion`]) and breaks ties in BM25 order. The other rankings order by score and break ties in corpus
    ///   order.
    /// * [`Mode::Graph`]: ranks by the mass of a PageRank walk from the phrases of the facts most similar to the query
    ///   (HippoRAG 2), ties in corpus order. Without a fact to follow, ranks passages by their own similarity, scaled
    ///   to \[0, 1\] over all passages. In an index of more passages than
    ///   [`OpenOptions::walk_below`](crate::OpenOptions) the walk is local: only the 200 most similar passages have a
    ///   weight of their own in the reset vector (with [`GraphVariant::Waymark`](crate::GraphVariant) also up to 200 by
    ///   their words, and those of related titles), and similarities are scaled by a sample plus the
    ///   most similar. [`GraphTrace::local`](crate::GraphTrace) and [`GraphTrace::missing`](crate::GraphTrace) report
    ///   this and the missing mass.
    /// * [`Mode::Hybrid`]: fuses the lists of both modes, each twice `k` deep, by reciprocal rank; ties in the order of
    ///   the graph's list.
    /// * [`Mode::Triples`]: searches as [`Mode::Graph`], and also returns the facts that the filter kept, or those
    ///   given to the filter if it kept none; without a filter, the facts most similar to the query.
    /// * [`Mode::Kag`]: joins passages and facts similar to the query and its entities into one graph by the names they
    ///   share, and ranks both by a walk from the query (TeaRAG); ties list passages first, then the more similar. `k`
    ///   counts passages and facts together.
    /// * [`Mode::Hypergraph`]: returns facts by the positions that they have among the facts of the five entities most
    ///   similar to the query and among the five facts most similar to it (Graph-R1), and the first passage that states
    ///   each fact.
    ///
    /// With a reranker ([`Query::rerank`](crate::Query)), the modes passage, graph and hybrid rank more candidates than
    /// they return, and order these by the reranker's score, ties in the order before; [`Mode::Kag`] takes its
    /// relevances from the reranker.
    ///
    /// A condition (`only` of the query) restricts the result: it contains no passage of another document and no triple
    /// stated by such passages only, and triples do not name such passages. Lists by words and by vectors contain
    /// allowed passages from the start, with the same scores as without a condition, so a search returns as many
    /// passages as it would without one, provided enough are allowed and reached. A walk covers the whole graph and
    /// drops other passages afterwards; its trace may therefore mention facts, phrases and paths of other documents.
    /// The facts from which a walk starts are searched without the condition too, so fewer triples than requested may
    /// remain; [`Mode::Kag`] and [`Mode::Hypergraph`] match facts of allowed passages only. A condition is for
    /// relevance, not for access control. Each condition is evaluated once per document and snapshot, as long as it is
    /// among the eight most recently used.
    ///
    /// A query of white space finds nothing.
    ///
    /// # Errors
    /// If a number is out of range ([`Query::check`]), the mode is not in [`Index::modes`], the deadline has passed
    /// before a stage, the query asks for a reranker that the index does not have, or the embedder, the fact filter,
    /// the reranker or a file fails.
    pub fn search(&self, query: &Query) -> Result<Evidence, IndexError> {
        self.snapshot.check_faults()?;
        let found = catch_unwind(AssertUnwindSafe(|| self.search_mapped(query)));
        // Checked first, because both a result and a panic may come from zeros in place of a file's content.
        self.snapshot.check_faults()?;
        found.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Announces the text of a query to the embedder, if a search for it embeds it. While several searches wait for a
    /// thread, the embedder can then embed their queries together.
    #[must_use = "dropping the announcement withdraws the query"]
    pub fn announce_query(&self, query: &Query) -> Option<QueryAnnouncement> {
        let text = query.text.trim();
        if text.is_empty() || !query.wants_vector() {
            return None;
        }
        announce_query(self.embed.as_ref(), self.query_prompt(), text, query.embed_context())
    }

    /// Embeds texts of a query into vectors of length 1.
    ///
    /// # Errors
    /// [`IndexError::Deadline`] if the embedder fails after the query's deadline, otherwise [`IndexError::Embed`].
    pub(crate) fn embed_query(&self, query: &Query, texts: &[&str]) -> Result<Vec<Vec<f32>>, IndexError> {
        let embedded = embed_unit(self.embed.as_ref(), self.query_prompt(), texts, query.embed_context());
        embedded.map_err(|source| match query.is_late() {
            true => IndexError::Deadline { stage: EMBEDDED },
            false => IndexError::Embed { what: "the query".to_owned(), source },
        })
    }

    /// Searches without regard to faults in the mapped files.
    fn search_mapped(&self, query: &Query) -> Result<Evidence, IndexError> {
        query.check().map_err(IndexError::BadQuery)?;
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
        // Embedding the query and walking the graph would find nothing either.
        if allowed.is_some_and(|allowed| allowed.len() == 0) {
            return Ok(Evidence::of(self.manifest().snapshot, query.mode, Vec::new()));
        }
        let search = SearchContext { index: self, query, text, allowed, vector: OnceCell::new() };
        match (query.mode, self.graph()) {
            (Mode::Passage, _) => search.by_passages(),
            (Mode::Graph, Some(graph)) => search.by_graph(graph),
            (Mode::Hybrid, Some(graph)) => search.by_hybrid(graph),
            (Mode::Triples, Some(graph)) => search.by_triples(graph),
            (Mode::Kag, Some(graph)) => kag::search(self, graph, query, text, allowed),
            (Mode::Hypergraph, Some(graph)) => search.by_hypergraph(graph),
            _ => Err(unsupported),
        }
    }
}

/// Query being answered, with what its stages share.
struct SearchContext<'a> {
    index: &'a Index,
    query: &'a Query,
    /// Search text without surrounding white space; not empty.
    text: &'a str,
    /// Passages that may be found. `None` allows all.
    allowed: Option<&'a AllowedPassages>,
    /// Vector of the query, embedded on first use.
    vector: OnceCell<Vec<f32>>,
}

impl SearchContext<'_> {
    /// Returns the vector of the query, of length 1.
    fn vector(&self) -> Result<&[f32], IndexError> {
        if let Some(vector) = self.vector.get() {
            return Ok(vector);
        }
        self.check(EMBEDDED)?;
        let mut vectors = self.index.embed_query(self.query, &[self.text])?;
        Ok(self.vector.get_or_init(|| vectors.swap_remove(0)))
    }

    /// Selects the best `limit` allowed passages.
    fn wanted(&self, limit: usize) -> TopPassages<'_> {
        TopPassages { limit, among: self.allowed }
    }

    fn check(&self, stage: &'static str) -> Result<(), IndexError> {
        self.query.enter_stage(stage)
    }

    /// Budget of the results to read.
    fn budget(&self) -> EvidenceBudget {
        EvidenceBudget::new(self.query.bytes)
    }

    fn evidence(&self, hits: Vec<Hit>, budget: &EvidenceBudget) -> Evidence {
        let evidence = Evidence::of(self.index.manifest().snapshot, self.query.mode, hits);
        Evidence { left_out: budget.left_out(), ..evidence }
    }
}
