//! Retrieval interfaces of the reference systems, compatible with their published trainers and evaluations, so
//! these can use Waymark as their retriever.
//!
//! | file | route | system |
//! |---|---|---|
//! | `search_r1` | `POST /retrieve` | Search-R1 |
//! | `route_rag` | `POST /search` | RouteRAG |
//! | `graphrag_r1` | `POST /query` | GraphRAG-R1 |
//!
//! Requests and responses have the formats of the originals; error responses are this server's own. `batch` runs the
//! queries of one request concurrently, and `batch_answer` writes their results.

mod batch;
mod batch_answer;
pub mod graphrag_r1;
pub mod route_rag;
pub mod search_r1;

use waymark_index::Passage;

/// Formats a passage as HippoRAG, RouteRAG and GraphRAG-R1 store and return it: title, line break, text.
fn contents(passage: &Passage) -> String {
    format!("{}\n{}", passage.title, passage.text)
}
