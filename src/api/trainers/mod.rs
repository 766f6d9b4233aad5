//! The retrievers of the reference systems, as their published trainers and evaluations call them, so that these can
//! point at Waymark.
//!
//! | file | route | whose |
//! |---|---|---|
//! | `search_r1` | `POST /retrieve` | Search-R1 |
//! | `route_rag` | `POST /search` | RouteRAG |
//! | `graph_r1` | `POST /query` | GraphRAG-R1 |
//!
//! Requests and answers have the forms of the originals; errors are this server's own. `batch` searches the queries of
//! one request side by side.

mod batch;
pub mod graph_r1;
pub mod route_rag;
pub mod search_r1;

use waymark_index::Passage;

/// A passage as HippoRAG, RouteRAG and GraphRAG-R1 store and return one: title, line break, text.
fn contents(passage: &Passage) -> String {
    format!("{}\n{}", passage.title, passage.text)
}
