//! `POST /query`: the retrieval interface of GraphRAG-R1 (`server/server.py`).

use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::{AnswerCut, Evidence, GraphOverrides, GraphVariant, Mode, Query, SearchOptions, TripleHit};

use super::batch::{self, BatchResult};
use super::batch_answer::BatchAnswer;
use super::contents;
use crate::api::auth::Caller;
use crate::api::body::{JsonBody, WireRequest, within};
use crate::api::error::{ApiError, ErrorBody, Refusals};
use crate::api::indexes::CallerState;

/// Default number of passages per query.
const DEFAULT_K: usize = 5;

/// Maximum number of passages per query.
const MAX_K: usize = 20;

/// Queries, in the format of GraphRAG-R1's evaluation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphRagR1Request {
    /// Queries; at least one.
    #[schema(min_items = 1)]
    pub query: Vec<String>,
    /// Number of passages per query; defaults to 5.
    #[schema(minimum = 1, maximum = 20)]
    pub retrieval_num: Option<usize>,
}

impl WireRequest for GraphRagR1Request {}

/// Results, in the order of the queries.
#[derive(Debug, Serialize, ToSchema)]
pub struct GraphRagR1Response {
    /// One entry per query.
    pub result: Vec<DocsAndFacts>,
    /// Queries left out because of the size of the answer, if there are any; their results are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<AnswerCut>,
}

/// Results of one query.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocsAndFacts {
    /// Passages, best first: title, line break, text.
    pub docs: Vec<String>,
    /// Facts that led to the passages, best first: subject, relation, object, in normalized words.
    pub facts: Vec<[String; 3]>,
}

/// Finds passages and facts for a batch of queries, as GraphRAG-R1's server does.
///
/// Uses the graph search of GraphRAG-R1's fork of HippoRAG 2, which starts from twenty facts, and returns all of them.
#[utoipa::path(post, path = "/query", operation_id = "graphRagR1Query", tag = "trainers", request_body = GraphRagR1Request, responses(
    (status = 200, description = "passages and facts per query", body = GraphRagR1Response),
    Refusals,
    (status = 504, description = "a search took too long", body = ErrorBody),
))]
pub(crate) async fn query(
    CallerState(state): CallerState,
    caller: Caller,
    JsonBody(request): JsonBody<GraphRagR1Request>,
) -> Result<Response, ApiError> {
    state.searcher()?;
    if request.query.is_empty() {
        return Err(ApiError::invalid("query", "`query` is empty"));
    }
    let k = within("retrieval_num", request.retrieval_num, 1, MAX_K)?.unwrap_or(DEFAULT_K);
    batch::check("query", request.query.len(), k)?;
    let graph = GraphOverrides::from(GraphVariant::GraphRagR1);
    let search = SearchOptions {
        mode: Some(Mode::Triples),
        k: Some(k),
        // GraphRAG-R1's server returns every fact that the search started from.
        triples: Some(graph.options().linking_top_k),
        graph: Some(graph),
        ..SearchOptions::default()
    };
    let queries: Vec<Query> = request.query.iter().map(|text| search.query(text.trim())).collect();
    let limit = state.config.answer_bytes;
    let empty = r#"{"docs":[],"facts":[]}"#;
    let item = |found: BatchResult| DocsAndFacts::from(found.evidence);
    let answer = BatchAnswer { item, empty, queries: queries.len(), times: None, limit };
    answer.respond(batch::search(&state, caller, "query", queries)).await
}

impl From<Evidence> for DocsAndFacts {
    fn from(evidence: Evidence) -> Self {
        let fact = |TripleHit { subject, relation, object, .. }: TripleHit| [subject, relation, object];
        DocsAndFacts {
            docs: evidence.hits.iter().map(|hit| contents(&hit.passage)).collect(),
            facts: evidence.triples.into_iter().map(fact).collect(),
        }
    }
}
