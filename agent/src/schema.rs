//! Schemas of the index's types, which do not know OpenAPI themselves.
#![expect(dead_code, reason = "only their shapes are used")]

use serde_json::Value;
use utoipa::ToSchema;

/// A passage found.
#[derive(Debug, ToSchema)]
#[schema(as = Hit)]
pub struct HitSchema {
    /// Rank from 1. If triples are ranked together with passages, the rank in the common list.
    rank: usize,
    /// Score by which the list is ordered: a cosine, a BM25 score, a sum of reciprocal ranks, or the mass of a graph
    /// walk.
    score: f32,
    /// The passage.
    passage: PassageSchema,
    /// Metadata of its document. Absent if there is none.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// Retrieval path to the passage.
    path: EvidencePathSchema,
}

/// A passage.
#[derive(Debug, ToSchema)]
#[schema(as = Passage)]
pub struct PassageSchema {
    /// ID from the corpus.
    id: String,
    /// Its title; may be empty.
    title: String,
    /// Its text.
    text: String,
}

/// Retrieval path of a passage: its rank in each list that contained it.
#[derive(Debug, ToSchema)]
#[schema(as = EvidencePath)]
pub struct EvidencePathSchema {
    /// Rank in the BM25 list.
    bm25: Option<PlaceSchema>,
    /// Rank in the dense list.
    dense: Option<PlaceSchema>,
    /// Rank in the result of the graph walk.
    graph: Option<ArrivalSchema>,
}

/// Rank and score in a list.
#[derive(Debug, ToSchema)]
#[schema(as = Place)]
pub struct PlaceSchema {
    /// Rank from 1.
    rank: usize,
    /// Score in the units of the list.
    score: f32,
}

/// Result of a graph walk for a passage.
#[derive(Debug, ToSchema)]
#[schema(as = Arrival)]
pub struct ArrivalSchema {
    /// Rank in the graph's list, from 1.
    rank: usize,
    /// Personalized PageRank of the passage, of which up to `missing` of the walk is unknown.
    mass: f64,
    /// Weight of the passage in the reset vector, before normalization to sum 1.
    reset: f64,
    /// Most likely path from a seed phrase to the passage, seed first. Present in episodes, and if `explain` is set.
    via: Option<Vec<StepSchema>>,
}

/// An edge of a path in the graph.
#[derive(Debug, ToSchema)]
#[schema(as = Step)]
pub struct StepSchema {
    /// Phrase at which the edge begins.
    phrase: String,
    /// Weight of the edge, summed over parallel edges.
    weight: f32,
}

/// A triple found, in normalized words; in the mode `kag`, in those of the first passage that states it.
#[derive(Debug, ToSchema)]
#[schema(as = TripleHit)]
pub struct TripleHitSchema {
    /// Rank from 1.
    rank: usize,
    /// Score by which the list is ordered.
    score: f32,
    /// Subject of the triple.
    subject: String,
    /// Relation between subject and object.
    relation: String,
    /// Object of the triple.
    object: String,
    /// IDs of the first ten passages that state it.
    passages: Vec<String>,
}

/// Explanation of a graph search: query, facts, phrases. The result of the walk is in each hit.
#[derive(Debug, ToSchema)]
#[schema(as = Walk)]
pub struct WalkSchema {
    /// `route_rag`, `hippo_rag` or `graph_r1`.
    variant: String,
    /// Probability of following an edge.
    damping: f64,
    /// Weight of passage similarities in the reset vector.
    passage_weight: f64,
    /// Facts most similar to the query, best first, including those that a filter dropped.
    facts: Vec<SeedFactSchema>,
    /// Indexes in `facts`, from 0, that a filter kept, in its order and with its repetitions. Absent without a filter.
    kept: Option<Vec<usize>>,
    /// Phrases at which the walk started, by descending linking score.
    phrases: Vec<SeedPhraseSchema>,
    /// If `true`, no fact remained, and passages are ranked by their own similarity.
    fallback: bool,
    /// If `true`, the index is too large for walks over the whole graph: the walk stayed near its start, at most 200
    /// passages had a weight of their own, and passage similarities were scaled by a sample.
    local: bool,
    /// Upper bound of the walk's missing mass, over all nodes together; 0 without a walk.
    missing: f64,
}

/// A fact linked to a query, in normalized words.
#[derive(Debug, ToSchema)]
#[schema(as = SeedFact)]
pub struct SeedFactSchema {
    /// Subject of the fact.
    subject: String,
    /// Relation between subject and object.
    relation: String,
    /// Object of the fact.
    object: String,
    /// Cosine between the query and the fact.
    similarity: f32,
    /// The similarity, scaled to [0, 1] over all facts of the index.
    score: f32,
    /// If `true`, the filter kept it, or there is no filter.
    kept: bool,
}

/// A phrase at which a walk started.
#[derive(Debug, ToSchema)]
#[schema(as = SeedPhrase)]
pub struct SeedPhraseSchema {
    /// Normalized phrase.
    phrase: String,
    /// Number of passages that state a triple with it.
    passages: usize,
    /// Linking score, by which phrases are cut off.
    linking: f64,
    /// Weight in the reset vector, before normalization to sum 1.
    weight: f64,
}

/// Explanation of a joint ranking of passages and triples: all inputs of its graph.
#[derive(Debug, ToSchema)]
#[schema(as = Associated)]
pub struct AssociatedSchema {
    /// Options of the ranking.
    options: KagOptionsSchema,
    /// Entities of the question.
    entities: Vec<KeyEntitySchema>,
    /// Passages found, most similar to the question first.
    chunks: Vec<AssociatedChunkSchema>,
    /// Triples found, most similar to the question first.
    triples: Vec<AssociatedTripleSchema>,
}

/// Options of the joint ranking of passages and triples in the mode `kag`. Missing fields have their defaults.
#[derive(Debug, ToSchema)]
#[schema(as = KagOptions)]
pub struct KagOptionsSchema {
    /// Number of passages in the graph, at least `k`. Default 10.
    #[schema(minimum = 1, maximum = 1000)]
    chunks: Option<usize>,
    /// Number of phrases per entity. Default 5.
    #[schema(minimum = 1, maximum = 1000)]
    entities: Option<usize>,
    /// Number of triples in the graph, at least `k`. Default 10.
    #[schema(minimum = 1, maximum = 1000)]
    triples: Option<usize>,
    /// Share of the mass that follows edges, below 1. Default 0.5.
    #[schema(minimum = 0, maximum = 1)]
    damping: Option<f64>,
    /// Relevance above which a triple is connected to the question. Default 0.5.
    #[schema(minimum = 0, maximum = 1)]
    threshold: Option<f64>,
    /// Number of steps of the walk. Default 20.
    #[schema(minimum = 1, maximum = 1000)]
    iterations: Option<u32>,
    /// Conversion of a cosine to a relevance. Default: a sigmoid of slope 10 around 0.4.
    relevance: Option<RelevanceSchema>,
}

/// Conversion of a cosine to a relevance between 0 and 1.
#[derive(Debug, ToSchema)]
#[schema(as = Relevance)]
pub struct RelevanceSchema {
    /// `sigmoid`, or `cosine`: the cosine itself, 0 if it is negative.
    kind: String,
    /// Slope of the sigmoid.
    slope: Option<f64>,
    /// Cosine at which the sigmoid is one half.
    centre: Option<f64>,
}

/// An entity of a question. The walk starts from the question and from its entities.
#[derive(Debug, ToSchema)]
#[schema(as = KeyEntity)]
pub struct KeyEntitySchema {
    /// Normalized name.
    name: String,
    /// If `true`, the entity was given in the request; otherwise it is a phrase of the graph that occurs in the
    /// question.
    given: bool,
    /// Phrases of the graph most similar to the entity and the question together.
    phrases: Vec<FoundPhraseSchema>,
    /// Mass after the walk.
    mass: f64,
}

/// A phrase found for an entity.
#[derive(Debug, ToSchema)]
#[schema(as = FoundPhrase)]
pub struct FoundPhraseSchema {
    /// Normalized phrase.
    phrase: String,
    /// Cosine with the entity and the question together.
    similarity: f32,
}

/// A passage in the graph.
#[derive(Debug, ToSchema)]
#[schema(as = AssociatedChunk)]
pub struct AssociatedChunkSchema {
    /// ID of the passage.
    passage: String,
    /// Normalized title.
    title: String,
    /// Cosine with the question.
    similarity: f32,
    /// Weight of its edge to the question.
    relevance: f64,
    /// Mass after the walk.
    mass: f64,
}

/// A triple in the graph, in normalized words.
#[derive(Debug, ToSchema)]
#[schema(as = AssociatedTriple)]
pub struct AssociatedTripleSchema {
    /// Subject of the triple.
    subject: String,
    /// Relation between subject and object.
    relation: String,
    /// Object of the triple.
    object: String,
    /// Cosine with the question.
    similarity: f32,
    /// Weight of its edge to the question. 0, without an edge, at or below the threshold.
    relevance: f64,
    /// Passages from which it was extracted, as indexes in `chunks`, from 0.
    chunks: Vec<usize>,
    /// Mass after the walk.
    mass: f64,
}

/// Filter on a document's metadata: a comparison of the value at a key, or several conditions together, with at most 8
/// levels and 1000 values. Strings, numbers and booleans are compared, each with its own type. A key that is missing,
/// or has a value of another type, matches only `ne` and `nin`.
#[derive(Debug, ToSchema)]
#[schema(as = Condition)]
pub struct ConditionSchema {
    /// Comparison, or combination of `filters`.
    #[schema(rename = "type")]
    kind: ConditionKindSchema,
    /// Key in the metadata, for a comparison.
    key: Option<String>,
    /// Value to compare with: a string, a number or a boolean; a list of them for `in` and `nin`.
    value: Option<Value>,
    /// Conditions of `and` and `or`.
    #[schema(no_recursion, min_items = 1)]
    filters: Option<Vec<ConditionSchema>>,
}

/// Kind of a condition.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[schema(as = ConditionKind)]
pub enum ConditionKindSchema {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater than, for numbers and strings.
    Gt,
    /// Greater than or equal.
    Gte,
    /// Less than.
    Lt,
    /// Less than or equal.
    Lte,
    /// Equal to one of several values.
    In,
    /// Equal to none of several values.
    Nin,
    /// All conditions match.
    And,
    /// At least one condition matches.
    Or,
}
