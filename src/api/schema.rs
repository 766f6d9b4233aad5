//! The shapes of the index's own types, which know no schema.
#![expect(dead_code, reason = "only their shapes are used")]

use utoipa::ToSchema;

/// One passage found.
#[derive(Debug, ToSchema)]
pub(crate) struct Hit {
    /// Place in the list, from 1. Where triples are ranked together with passages, places in the list of both.
    rank: usize,
    /// What the list is ordered by: a cosine, a BM25 score, a sum of reciprocal ranks, or the mass of a walk.
    score: f32,
    /// The passage.
    passage: Passage,
    /// How it was found.
    path: EvidencePath,
}

/// A passage.
#[derive(Debug, ToSchema)]
pub(crate) struct Passage {
    /// The id that the corpus gave it.
    id: String,
    /// Its title; may be empty.
    title: String,
    /// Its text.
    text: String,
}

/// How a passage was found: its place in each list that held it.
#[derive(Debug, ToSchema)]
pub(crate) struct EvidencePath {
    /// Its place in the BM25 list.
    bm25: Option<Place>,
    /// Its place in the dense list.
    dense: Option<Place>,
    /// Where the walk over the graph reached it.
    graph: Option<Arrival>,
}

/// A place in a ranked list.
#[derive(Debug, ToSchema)]
pub(crate) struct Place {
    /// From 1.
    rank: usize,
    /// In the units of that list.
    score: f32,
}

/// What a walk over the graph brought to a passage.
#[derive(Debug, ToSchema)]
pub(crate) struct Arrival {
    /// Place in the graph's list, from 1.
    rank: usize,
    /// Its personalised PageRank.
    mass: f64,
    /// Its own weight in the reset vector, before that is scaled to sum 1.
    reset: f64,
    /// The likeliest way there from a seed phrase, the seed first; only where `explain` is asked for.
    via: Option<Vec<Step>>,
}

/// One edge of a way over the graph.
#[derive(Debug, ToSchema)]
pub(crate) struct Step {
    /// The phrase the edge leaves.
    phrase: String,
    /// Weight of the edge, all parallel ones together.
    weight: f32,
}

/// One triple found, in normalised words.
#[derive(Debug, ToSchema)]
pub(crate) struct TripleHit {
    /// Place in the list, from 1.
    rank: usize,
    /// What the list is ordered by.
    score: f32,
    /// What the triple is about.
    subject: String,
    /// What it says of the two.
    relation: String,
    /// What the subject is related to.
    object: String,
    /// Ids of the passages that state it; the first ten of them.
    passages: Vec<String>,
}

/// How a graph search went: query → facts → phrases; where it arrived stands with each hit.
#[derive(Debug, ToSchema)]
pub(crate) struct Walk {
    /// `route_rag`, `hippo_rag` or `graph_r1`.
    variant: String,
    /// Probability of following an edge.
    damping: f64,
    /// Weight of the passages' own similarity in the reset vector.
    passage_weight: f64,
    /// The facts most like the query, best first, those that a filter dropped included.
    facts: Vec<SeedFact>,
    /// Places in `facts`, from 0, that a filter kept, in its order and repeated as it repeats them; absent without one.
    kept: Option<Vec<usize>>,
    /// The phrases that the walk started from, by falling linking score.
    phrases: Vec<SeedPhrase>,
    /// Whether no fact was left, so that the passages are ranked by their own similarity.
    fallback: bool,
}

/// A fact that a query was linked to, in normalised words.
#[derive(Debug, ToSchema)]
pub(crate) struct SeedFact {
    /// What the fact is about.
    subject: String,
    /// What it says of the two.
    relation: String,
    /// What the subject is related to.
    object: String,
    /// Cosine between the query and the fact.
    similarity: f32,
    /// The same, scaled to [0, 1] over all facts of the index.
    score: f32,
    /// Whether it was kept by the filter; always, where there is none.
    kept: bool,
}

/// A phrase that a walk started from.
#[derive(Debug, ToSchema)]
pub(crate) struct SeedPhrase {
    /// The phrase, normalised.
    phrase: String,
    /// How many passages state a triple with it.
    passages: usize,
    /// What phrases are cut by.
    linking: f64,
    /// Its weight in the reset vector, before that is scaled to sum 1.
    weight: f64,
}
