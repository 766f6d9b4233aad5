//! Explanation of a search in the mode `kag`: the knowledge association graph, as returned with its evidence.

use serde::{Deserialize, Serialize};

use crate::options::KagOptions;

/// Chunks, triples and entities that a `kag` search ranked together, with every number needed to rebuild the graph and
/// repeat the walk (TeaRAG §4.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Associated))]
pub struct KagTrace {
    /// Options of the search.
    pub options: KagOptions,
    /// Key entities of the question.
    pub entities: Vec<KeyEntity>,
    /// Chunks in the graph, most similar to the question first, or most relevant first if they were reranked.
    pub chunks: Vec<KagChunk>,
    /// Triples in the graph, most similar to the question first, or most relevant first if they were reranked.
    pub triples: Vec<KagTriple>,
}

/// Entity that a question is about. The walk starts from the question and from its key entities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyEntity {
    /// Name in normal form.
    pub name: String,
    /// If `true`, the query named the entity; otherwise the entity is a phrase of the graph that occurs in the
    /// question.
    pub given: bool,
    /// Phrases of the graph most similar to the entity and the question together.
    pub phrases: Vec<LinkedPhrase>,
    /// Mass after the walk.
    pub mass: f64,
}

/// Phrase found for a key entity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = FoundPhrase))]
pub struct LinkedPhrase {
    /// Text of the phrase.
    pub phrase: String,
    /// Cosine with `Key entity: {entity}. Query: {question}`.
    pub similarity: f32,
}

/// Chunk in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AssociatedChunk))]
pub struct KagChunk {
    /// ID of the passage.
    pub passage: String,
    /// Title in normal form. The title is an entity of the graph, unless it is empty.
    pub title: String,
    /// Cosine with the question.
    pub similarity: f32,
    /// Weight of the edge to the question (eq. 1): from the reranker, or else from the similarity.
    pub relevance: f64,
    /// Mass after the walk.
    pub mass: f64,
}

/// Triple in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AssociatedTriple))]
pub struct KagTriple {
    /// Subject of the triple.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the triple.
    pub object: String,
    /// Cosine with the question.
    pub similarity: f32,
    /// Weight of the edge to the question (eq. 2). 0 means no edge, because the relevance is not above the threshold.
    pub relevance: f64,
    /// Indices into `chunks` of the chunks that state the triple.
    pub chunks: Vec<usize>,
    /// Mass after the walk.
    pub mass: f64,
}
