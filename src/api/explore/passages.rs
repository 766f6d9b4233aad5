//! `/v1/index/passages/{id}`: a passage with its triples, page by page.

use axum::extract::RawQuery;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use waymark_index::graph::phrase::normalize;
use waymark_index::{ChunkSiblings, GraphNode, Index, NodeKind, Triple, TripleSource};

use super::{RESPONSE_BYTES, broken, params};
use crate::api::blocking::run_blocking;
use crate::api::documents::absent;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::indexes::IndexedState;
use crate::api::pagination::{PAGE, limit};
use crate::api::path_param::PathParam;

/// Maximum number of triples to skip.
const MAX_OFFSET: u32 = 1_000_000_000;

/// Passage with a page of its triples.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexPassage {
    /// Always `index.passage`.
    pub object: &'static str,
    /// Snapshot of the index.
    pub snapshot: u64,
    /// ID of the passage.
    pub id: String,
    /// Title; may be empty.
    pub title: String,
    /// Text of the passage.
    pub text: String,
    /// Metadata of the document. Null if it has none.
    #[schema(required, value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Number of edges of the passage in the graph.
    pub degree: usize,
    /// ID of the previous chunk of the same document. Null if there is none.
    #[schema(required)]
    pub previous: Option<String>,
    /// ID of the next chunk of the same document. Null if there is none.
    #[schema(required)]
    pub next: Option<String>,
    /// Triples of the passage.
    pub triples: IndexTriplePage,
}

/// Page of triples.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexTriplePage {
    /// `given` by the document, `extracted`, or `none`.
    pub origin: &'static str,
    /// Number of all triples of the passage.
    pub total: usize,
    /// Number of triples before this page.
    pub offset: usize,
    /// If `true`, there are more triples: request them with `offset` increased by the length of `data`.
    pub has_more: bool,
    /// Triples, in the order in which they were stated.
    pub data: Vec<IndexTriple>,
}

/// Triple, as stated, with the phrases that it leads to.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexTriple {
    /// Subject of the triple.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the triple.
    pub object: String,
    /// Phrase of the subject, as `/v1/index/neighbors` takes it.
    pub subject_phrase: String,
    /// Phrase of the object, as `/v1/index/neighbors` takes it.
    pub object_phrase: String,
}

/// Query parameters.
struct TripleQuery {
    limit: usize,
    offset: usize,
}

/// Returns a passage with its triples. Slashes in its ID may be written as `/` or `%2F`.
///
/// A page of triples ends early if the triples exceed 1 MiB, so rely on `has_more` to detect the last page.
#[utoipa::path(get, path = "/v1/index/passages/{*id}", operation_id = "retrieveIndexPassage", tag = "index",
    params(
        ("id" = String, Path, description = "ID of the passage"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
        ("limit" = Option<usize>, Query, description = "maximum number of triples, from 1 to 100; defaults to 20", minimum = 1, maximum = 100),
        ("offset" = Option<usize>, Query, description = "number of triples to skip; at most 1,000,000,000; defaults to 0", minimum = 0, maximum = 1_000_000_000),
    ),
    responses(
        (status = 200, description = "the passage", body = IndexPassage),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such passage", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn get(
    IndexedState(state): IndexedState,
    PathParam(id): PathParam<String>,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<IndexPassage>, ApiError> {
    let index = state.library()?.live.current();
    let query = TripleQuery::parse(query.as_deref())?;
    run_blocking(move || passage(&index, &id, &query).map(axum::Json)).await
}

fn passage(index: &Index, id: &str, query: &TripleQuery) -> Result<IndexPassage, ApiError> {
    let read = |error| broken(&error);
    let number = index.number(id).map_err(read)?.ok_or_else(|| absent(id))?;
    let document = index.passage(id).map_err(read)?.ok_or_else(|| absent(id))?;
    let (source, triples) = index.stated_triples(number).map_err(read)?;
    let ChunkSiblings { previous, next } = index.chunk_siblings(id).map_err(read)?;
    let node = GraphNode { kind: NodeKind::Passage, number };
    Ok(IndexPassage {
        object: "index.passage",
        snapshot: index.manifest().snapshot,
        id: document.id,
        title: document.title,
        text: document.text,
        metadata: document.metadata,
        degree: index.graph().map_or(0, |graph| graph.degree(node)),
        previous,
        next,
        triples: page(source, &triples, query),
    })
}

fn page(source: TripleSource, triples: &[Triple], query: &TripleQuery) -> IndexTriplePage {
    let mut data: Vec<IndexTriple> = Vec::new();
    let mut bytes = 0;
    for triple in triples.iter().skip(query.offset).take(query.limit) {
        let triple = IndexTriple::from(triple);
        bytes += triple.bytes();
        // The first triple is sent however large it is, or no client could get past it.
        if bytes > RESPONSE_BYTES && !data.is_empty() {
            break;
        }
        data.push(triple);
    }
    let origin = match source {
        TripleSource::None => "none",
        TripleSource::Given => "given",
        TripleSource::Extracted => "extracted",
    };
    let has_more = query.offset.saturating_add(data.len()) < triples.len();
    IndexTriplePage { origin, total: triples.len(), offset: query.offset, has_more, data }
}

impl From<&Triple> for IndexTriple {
    fn from(triple: &Triple) -> IndexTriple {
        let [subject, relation, object] = triple.clone().into();
        // Names of the phrases in the graph, as `/v1/index/neighbors` takes them.
        let subject_phrase = normalize(&subject);
        let object_phrase = normalize(&object);
        IndexTriple { subject, relation, object, subject_phrase, object_phrase }
    }
}

impl IndexTriple {
    /// Returns the approximate size of the triple as JSON, in bytes.
    fn bytes(&self) -> usize {
        // Each phrase is about as long as the text that it comes from.
        2 * (self.subject.len() + self.object.len()) + self.relation.len() + 100
    }
}

impl TripleQuery {
    fn parse(query: Option<&str>) -> Result<TripleQuery, ApiError> {
        let mut parsed = TripleQuery { limit: PAGE, offset: 0 };
        params::each(query, |name, value| {
            match name {
                "limit" => parsed.limit = limit(value)?,
                "offset" => parsed.offset = params::number(name, value, 0..=MAX_OFFSET)? as usize,
                name => return Err(ApiError::unknown(name)),
            }
            Ok(())
        })?;
        Ok(parsed)
    }
}
