//! `/v1/index/neighbors`: the heaviest edges of a node.

use axum::extract::RawQuery;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::graph::phrase::normalize;
use waymark_index::graph::{Graph, GraphFact};
use waymark_index::{EdgeKind, GraphNode, Index, NodeEdge, NodeKind};

use super::node::IndexNode;
use super::{RESPONSE_BYTES, broken, params};
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, Code, ErrorBody};
use crate::api::indexes::IndexedState;

/// Default number of edges.
const DEFAULT_EDGES: usize = 24;

/// Maximum number of edges.
const MAX_EDGES: usize = 200;

/// Maximum number of passages named per fact.
const PASSAGES_PER_FACT: usize = 10;

/// Node with its heaviest edges.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexNeighbors {
    /// Always `index.neighbors`.
    pub object: &'static str,
    /// Snapshot of the index.
    pub snapshot: u64,
    /// Node at the center.
    pub node: IndexNode,
    /// Edges, heaviest first.
    pub edges: Vec<IndexEdge>,
    /// Number of all edges of the node, of the requested kind.
    pub total: usize,
    /// If `true`, the node has more edges than returned.
    pub has_more: bool,
}

/// Edge of the graph.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexEdge {
    /// Neighbor.
    pub node: IndexNode,
    /// Weight of the edge, as the walk of a graph search uses it.
    pub weight: f32,
    /// Reasons for the edge.
    pub kinds: Vec<IndexEdgeKind>,
    /// Facts that join the two phrases, at most 8.
    pub facts: Vec<IndexFact>,
    /// Cosine of the two phrases, if they are synonyms.
    #[schema(required)]
    pub cosine: Option<f32>,
}

/// Reason for an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexEdgeKind {
    /// A fact joins the two phrases.
    Fact,
    /// The two phrases are similar.
    Synonym,
    /// The passage names the phrase.
    Mention,
}

/// Fact, in normalized words.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexFact {
    /// Subject of the fact.
    pub subject: String,
    /// Relation between subject and object.
    pub relation: String,
    /// Object of the fact.
    pub object: String,
    /// IDs of the first ten passages that state the fact, in corpus order.
    pub passages: Vec<String>,
}

/// Query parameters.
struct NeighborQuery {
    node: NamedNode,
    kind: Option<NodeKind>,
    limit: usize,
}

/// Node as named in a request.
enum NamedNode {
    Phrase(String),
    Passage(String),
}

/// Returns the heaviest edges of a phrase or of a passage.
#[utoipa::path(get, path = "/v1/index/neighbors", operation_id = "indexNeighbors", tag = "index",
    params(
        ("phrase" = Option<String>, Query, description = "text of a phrase; exactly one of `phrase` and `passage` is required"),
        ("passage" = Option<String>, Query, description = "ID of a passage"),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
        ("kind" = Option<String>, Query, description = "kind of neighbors to return: `phrase` or `passage`; defaults to both"),
        ("limit" = Option<usize>, Query, description = "maximum number of edges, from 1 to 200; defaults to 24", minimum = 1, maximum = 200),
    ),
    responses(
        (status = 200, description = "the node and its edges", body = IndexNeighbors),
        (status = 400, description = "the server has no index, the index has no graph, or a parameter is invalid", body = ErrorBody),
        (status = 404, description = "no such node", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
    ))]
pub(crate) async fn list(
    IndexedState(state): IndexedState,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<IndexNeighbors>, ApiError> {
    let index = state.library()?.live.current();
    let query = NeighborQuery::parse(query.as_deref())?;
    run_blocking(move || neighbors(&index, &query).map(axum::Json)).await
}

fn neighbors(index: &Index, query: &NeighborQuery) -> Result<IndexNeighbors, ApiError> {
    let graph = index.graph().ok_or_else(|| ApiError::new(Code::NotConfigured, "this index has no graph"))?;
    let center = query.node.find(index, graph)?;
    let found = graph.neighborhood(center, query.kind, query.limit);
    let mut edges = Vec::with_capacity(found.edges.len());
    let mut bytes = 0;
    for edge in &found.edges {
        let edge = IndexEdge::of(index, graph, edge)?;
        bytes += edge.bytes();
        // The heaviest edge is always shown, however large it is.
        if bytes > RESPONSE_BYTES && !edges.is_empty() {
            break;
        }
        edges.push(edge);
    }
    let has_more = edges.len() < found.total;
    let node = IndexNode::of(index, center)?;
    let snapshot = index.manifest().snapshot;
    Ok(IndexNeighbors { object: "index.neighbors", snapshot, node, edges, total: found.total, has_more })
}

impl NamedNode {
    fn find(&self, index: &Index, graph: &Graph) -> Result<GraphNode, ApiError> {
        match self {
            NamedNode::Phrase(text) => {
                let number = graph.phrase_id(&normalize(text)).ok_or_else(|| absent("phrase", text))?;
                Ok(GraphNode { kind: NodeKind::Phrase, number })
            }
            NamedNode::Passage(id) => {
                let number = index.number(id).map_err(|error| broken(&error))?.ok_or_else(|| absent("passage", id))?;
                Ok(GraphNode { kind: NodeKind::Passage, number })
            }
        }
    }
}

fn absent(kind: &str, name: &str) -> ApiError {
    ApiError::new(Code::NodeNotFound, format!("the {kind} `{name}` does not exist")).with_param(kind)
}

impl IndexEdge {
    fn of(index: &Index, graph: &Graph, edge: &NodeEdge) -> Result<IndexEdge, ApiError> {
        let facts = edge.facts.iter().map(|&fact| IndexFact::of(index, graph, fact)).collect::<Result<_, _>>()?;
        Ok(IndexEdge {
            node: IndexNode::of(index, edge.node)?,
            weight: edge.weight,
            kinds: edge.kinds.iter().map(|&kind| kind.into()).collect(),
            facts,
            cosine: edge.cosine,
        })
    }

    /// Returns the approximate size of the edge as JSON, in bytes.
    fn bytes(&self) -> usize {
        let text = |fact: &IndexFact| {
            // Three bytes for the quotation marks and the comma of an ID, 64 for the names of the fields.
            let ids: usize = fact.passages.iter().map(|id| id.len() + 3).sum();
            fact.subject.len() + fact.relation.len() + fact.object.len() + ids + 64
        };
        self.node.bytes() + self.facts.iter().map(text).sum::<usize>() + 64
    }
}

impl IndexFact {
    fn of(index: &Index, graph: &Graph, number: u32) -> Result<IndexFact, ApiError> {
        let GraphFact { subject, relation, object } = graph.fact(number);
        let id = |&passage: &u32| index.passage_name(passage).map(|name| name.id);
        let passages = graph.passages_of_fact(number).iter().take(PASSAGES_PER_FACT).map(id).collect::<Result<_, _>>();
        Ok(IndexFact {
            subject: graph.phrase(subject).to_owned(),
            relation: relation.to_owned(),
            object: graph.phrase(object).to_owned(),
            passages: passages.map_err(|error| broken(&error))?,
        })
    }
}

impl From<EdgeKind> for IndexEdgeKind {
    fn from(kind: EdgeKind) -> IndexEdgeKind {
        match kind {
            EdgeKind::Fact => IndexEdgeKind::Fact,
            EdgeKind::Synonym => IndexEdgeKind::Synonym,
            EdgeKind::Mention => IndexEdgeKind::Mention,
        }
    }
}

impl NeighborQuery {
    fn parse(query: Option<&str>) -> Result<NeighborQuery, ApiError> {
        let mut phrase = None;
        let mut passage = None;
        let mut kind = None;
        let mut limit = DEFAULT_EDGES;
        params::each(query, |name, value| {
            match name {
                "phrase" => phrase = Some(value.to_owned()),
                "passage" => passage = Some(value.to_owned()),
                "kind" => kind = Some(kind_named(value)?),
                "limit" => limit = params::number(name, value, 1..=MAX_EDGES)?,
                name => return Err(ApiError::unknown(name)),
            }
            Ok(())
        })?;
        let node = match (phrase, passage) {
            (Some(text), None) => NamedNode::Phrase(text),
            (None, Some(id)) => NamedNode::Passage(id),
            (None, None) => return Err(ApiError::missing("phrase")),
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "passage",
                    "`passage` cannot be combined with `phrase`: send one of them",
                ));
            }
        };
        Ok(NeighborQuery { node, kind, limit })
    }
}

fn kind_named(value: &str) -> Result<NodeKind, ApiError> {
    match value {
        "phrase" => Ok(NodeKind::Phrase),
        "passage" => Ok(NodeKind::Passage),
        _ => {
            // Truncated, because the message repeats the value and a client may send any length.
            let shown: String = value.chars().take(40).collect();
            Err(ApiError::invalid("kind", format!("`kind` must be `phrase` or `passage`, not `{shown}`")))
        }
    }
}
