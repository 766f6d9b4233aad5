//! A knowledge association graph as it is shown with what it found.

use serde::{Deserialize, Serialize};

use crate::options::KagOptions;

/// How chunks and triples were ranked together: everything that the graph was made of, so that anybody can make it
/// again and walk over it (TeaRAG §4.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KagTrace {
    /// The numbers it was made with.
    pub options: KagOptions,
    /// What the question is about.
    pub entities: Vec<KeyEntity>,
    /// The chunks that were found, most like the question first.
    pub chunks: Vec<KagChunk>,
    /// The triples that were found, most like the question first.
    pub triples: Vec<KagTriple>,
}

/// An entity that a question is about. The walk starts from the question and from these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyEntity {
    /// Its name, in normal form.
    pub name: String,
    /// Whether it came with the query; otherwise it is a phrase of the graph that stands in the question.
    pub given: bool,
    /// The phrases of the graph most like it and the question together.
    pub phrases: Vec<LinkedPhrase>,
    /// Mass after the walk.
    pub mass: f64,
}

/// A phrase that was found for a key entity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkedPhrase {
    /// The phrase.
    pub phrase: String,
    /// Its cosine with `Key entity: {entity}. Query: {question}`.
    pub similarity: f32,
}

/// A chunk in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KagChunk {
    /// Id of the passage.
    pub passage: String,
    /// Its title in normal form, an entity of the graph unless it is empty.
    pub title: String,
    /// Its cosine with the question.
    pub similarity: f32,
    /// Weight of its edge to the question (eq. 1).
    pub relevance: f64,
    /// Mass after the walk.
    pub mass: f64,
}

/// A triple in the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KagTriple {
    /// What the triple is about.
    pub subject: String,
    /// What it says of the two.
    pub relation: String,
    /// What the subject is related to.
    pub object: String,
    /// Its cosine with the question.
    pub similarity: f32,
    /// Weight of its edge to the question (eq. 2): 0, and no edge, where it is not above the threshold.
    pub relevance: f64,
    /// The chunks it was extracted from, by their place in [`KagTrace::chunks`], from 0.
    pub chunks: Vec<usize>,
    /// Mass after the walk.
    pub mass: f64,
}
