//! TeaRAG's knowledge association graph (§4.1, §4.2): the chunks and triples found for a question, joined by the
//! entities they name, and ranked together by a personalised PageRank from the question.
//!
//! The published text has lost its constants and its code is not to be had: what is not in the text is in
//! [`KagOptions`], with defaults of our own.

mod association_graph;
mod question_entities;
mod search;

pub(crate) use search::search;
