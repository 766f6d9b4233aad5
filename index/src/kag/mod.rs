//! Search in the mode `kag`: TeaRAG's knowledge association graph (§4.1, §4.2). Chunks and triples found for a question
//! are joined by the entities they name, and ranked together by a personalized PageRank from the question.
//!
//! The published text omits its constants and the code is not available; [`KagOptions`](crate::KagOptions) holds them,
//! with defaults of our own.

mod association_graph;
mod question_entities;
mod relevance;
mod search;

pub(crate) use search::search;
