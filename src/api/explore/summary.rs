//! `/v1/index`: name and size of the index.

use std::time::UNIX_EPOCH;

use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{GraphInfo, IndexInfo, Mode};

use crate::api::error::{ApiError, ErrorBody};
use crate::api::indexes::{INDEX, IndexOnly};

/// Summary of the served index.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexSummary {
    /// Always `index`.
    pub object: &'static str,
    /// Name of the index's directory. Null if it has no name.
    #[schema(required)]
    pub name: Option<String>,
    /// Names by which requests may refer to the index.
    pub names: Vec<String>,
    /// Snapshot being searched.
    pub snapshot: u64,
    /// Name of the corpus.
    pub corpus: String,
    /// Number of passages. Each passage is a document of `/v1/documents`.
    pub passages: u64,
    /// Embedder of the passages.
    pub embedder: IndexEmbedder,
    /// Supported search modes.
    #[schema(value_type = Vec<String>)]
    pub modes: Vec<Mode>,
    /// Graph of the index. Null if there is none.
    #[schema(required)]
    pub graph: Option<IndexGraph>,
    /// Size on disk in bytes.
    pub bytes: u64,
    /// Time at which the snapshot was committed, in seconds since 1970. Null if unknown.
    #[schema(required)]
    pub committed: Option<u64>,
    /// If `true`, documents can be added and removed.
    pub writable: bool,
    /// If `true`, a newer snapshot exists but cannot be opened.
    pub stale: bool,
}

/// Embedder of an index.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexEmbedder {
    /// ID of the embedder.
    pub id: String,
    /// Numbers per vector.
    pub dims: usize,
}

/// Size of the graph of an index.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexGraph {
    /// Source of the triples: `corpus`, the ID of the extractor, or both joined by ` and `.
    pub source: String,
    /// Number of distinct phrases.
    pub phrases: u64,
    /// Number of distinct facts.
    pub facts: u64,
    /// Number of triples over all passages.
    pub triples: u64,
    /// Number of connected node pairs.
    pub edges: u64,
}

impl From<GraphInfo> for IndexGraph {
    fn from(GraphInfo { source, triples, phrases, facts, edges }: GraphInfo) -> IndexGraph {
        IndexGraph { source, phrases, facts, triples, edges }
    }
}

/// Describes the served index.
#[utoipa::path(get, path = "/v1/index", operation_id = "describeIndex", tag = "index",
    params(("index" = Option<String>, Query, description = "name of the index; defaults to `default`")),
    responses(
    (status = 200, description = "name and size of the index", body = IndexSummary),
    (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
))]
pub(crate) async fn get(IndexOnly(state): IndexOnly) -> Result<axum::Json<IndexSummary>, ApiError> {
    let library = state.library()?;
    let index = library.live.current();
    let IndexInfo { snapshot, corpus, passages, embedder, dims, graph, modes, bytes, .. } = index.info();
    let since = index.published().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    // An index called `default` has only that name.
    let own = state.index.clone().filter(|name| name != INDEX);
    let default = (!state.is_other).then(|| INDEX.to_owned());
    Ok(axum::Json(IndexSummary {
        object: "index",
        name: state.index.clone(),
        names: default.into_iter().chain(own).collect(),
        snapshot,
        corpus,
        passages,
        embedder: IndexEmbedder { id: embedder, dims },
        modes,
        graph: graph.map(IndexGraph::from),
        bytes,
        committed: since.map(|since| since.as_secs()),
        writable: library.writable(),
        stale: library.live.state().stale,
    }))
}
