//! The shapes of the index's own types, which know no schema.
#![expect(dead_code, reason = "only their shapes are used")]

use serde_json::Value;
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
    /// What else its document says; absent where it says nothing.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
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
    /// Its personalised PageRank, of which up to `missing` of the walk is not known.
    mass: f64,
    /// Its own weight in the reset vector, before that is scaled to sum 1.
    reset: f64,
    /// The likeliest way there from a seed phrase, the seed first; in episodes, and where `explain` is asked for.
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

/// One triple found, in normalised words; in the mode `kag` in those of the first passage that states it.
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
    /// Whether the index is too large for walks over the whole graph: the walk stayed around where it started, no more
    /// than 200 passages had a weight of their own, and similarities of passages were scaled by a sample of them.
    local: bool,
    /// The most that is missing of the mass of the walk, over all nodes together; 0 where there was no walk.
    missing: f64,
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

/// How passages and triples were ranked together: everything that their graph was made of.
#[derive(Debug, ToSchema)]
pub(crate) struct Associated {
    /// The numbers it was made with.
    options: KagOptions,
    /// What the question is about.
    entities: Vec<KeyEntity>,
    /// The passages that were found, most like the question first.
    chunks: Vec<AssociatedChunk>,
    /// The triples that were found, most like the question first.
    triples: Vec<AssociatedTriple>,
}

/// How passages and triples are ranked together in the mode `kag`. Whatever is not given has its default.
#[derive(Debug, ToSchema)]
pub(crate) struct KagOptions {
    /// Passages in the graph, if not fewer than `k`; 10 when not given.
    #[schema(minimum = 1, maximum = 1000)]
    chunks: Option<usize>,
    /// Phrases that are found for each entity; 5 when not given.
    #[schema(minimum = 1, maximum = 1000)]
    entities: Option<usize>,
    /// Triples in the graph, if not fewer than `k`; 10 when not given.
    #[schema(minimum = 1, maximum = 1000)]
    triples: Option<usize>,
    /// Share of the mass that follows edges, below 1; 0.5 when not given.
    #[schema(minimum = 0, maximum = 1)]
    damping: Option<f64>,
    /// Relevance above which a triple is joined to the question; 0.5 when not given.
    #[schema(minimum = 0, maximum = 1)]
    threshold: Option<f64>,
    /// Steps of the walk; 20 when not given.
    #[schema(minimum = 1, maximum = 1000)]
    iterations: Option<u32>,
    /// How a cosine becomes a relevance; a sigmoid of slope 10 around 0.4 when not given.
    relevance: Option<Relevance>,
}

/// How a cosine becomes a relevance between 0 and 1.
#[derive(Debug, ToSchema)]
pub(crate) struct Relevance {
    /// `sigmoid`, or `cosine`: the cosine itself, 0 if it is negative.
    kind: String,
    /// How sharply a sigmoid rises.
    slope: Option<f64>,
    /// The cosine at which a sigmoid is one half.
    centre: Option<f64>,
}

/// An entity that a question is about; the walk starts from the question and from these.
#[derive(Debug, ToSchema)]
pub(crate) struct KeyEntity {
    /// Its name, normalised.
    name: String,
    /// Whether it came with the request; otherwise it is a phrase of the graph that stands in the question.
    given: bool,
    /// The phrases of the graph most like it and the question together.
    phrases: Vec<FoundPhrase>,
    /// Mass after the walk.
    mass: f64,
}

/// A phrase that was found for an entity.
#[derive(Debug, ToSchema)]
pub(crate) struct FoundPhrase {
    /// The phrase, normalised.
    phrase: String,
    /// Its cosine with the entity and the question together.
    similarity: f32,
}

/// A passage in the graph.
#[derive(Debug, ToSchema)]
pub(crate) struct AssociatedChunk {
    /// Id of the passage.
    passage: String,
    /// Its title, normalised.
    title: String,
    /// Its cosine with the question.
    similarity: f32,
    /// Weight of its edge to the question.
    relevance: f64,
    /// Mass after the walk.
    mass: f64,
}

/// A triple in the graph, in normalised words.
#[derive(Debug, ToSchema)]
pub(crate) struct AssociatedTriple {
    /// What the triple is about.
    subject: String,
    /// What it says of the two.
    relation: String,
    /// What the subject is related to.
    object: String,
    /// Its cosine with the question.
    similarity: f32,
    /// Weight of its edge to the question; 0, and no edge, where it is not above the threshold.
    relevance: f64,
    /// The passages it was extracted from, by their place in `chunks`, from 0.
    chunks: Vec<usize>,
    /// Mass after the walk.
    mass: f64,
}

/// What a document's metadata must say: a comparison of the value at a key, or several conditions together, 8 levels deep and
/// with 1000 values at most. Only strings, numbers and booleans are compared, each with its own kind. A key that is missing,
/// or whose value is of another kind, matches `ne` and `nin`, and nothing else.
#[derive(Debug, ToSchema)]
pub(crate) struct Condition {
    /// Which comparison, or how `filters` are taken together.
    #[schema(rename = "type")]
    kind: ConditionKind,
    /// Where the value stands in the metadata, of a comparison.
    key: Option<String>,
    /// What it is compared with: a string, a number or a boolean; of `in` and `nin` a list of them.
    value: Option<Value>,
    /// The conditions of `and` and `or`.
    #[schema(no_recursion, min_items = 1)]
    filters: Option<Vec<Condition>>,
}

/// Kinds of conditions.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
pub(crate) enum ConditionKind {
    /// The same.
    Eq,
    /// Not the same.
    Ne,
    /// Above, of numbers and strings.
    Gt,
    /// The same or above.
    Gte,
    /// Below.
    Lt,
    /// The same or below.
    Lte,
    /// One of several.
    In,
    /// None of several.
    Nin,
    /// All conditions.
    And,
    /// Any condition.
    Or,
}
