//! `/v1/index/nodes`: phrases and passages found by text.

use axum::extract::RawQuery;
use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{GraphNode, Hit, Index, Mode, NodeKind, PhraseLookup, PhraseMatchKind, Query, Ranking};

use super::node::IndexNode;
use super::{RESPONSE_BYTES, broken, params};
use crate::api::auth::Caller;
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::indexes::IndexedState;

/// Default number of nodes of each kind.
const DEFAULT_NODES: usize = 10;

/// Maximum number of nodes of each kind.
const MAX_NODES: usize = 50;

/// Maximum length of the text to find, in characters.
const MAX_TEXT_CHARS: usize = 256;

/// Length of a preview, in characters.
const PREVIEW_CHARS: usize = 160;

/// Nodes found by text.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexNodeMatches {
    /// Always `index.nodes`.
    pub object: &'static str,
    /// Snapshot of the index.
    pub snapshot: u64,
    /// Text, as sent.
    pub query: String,
    /// Phrases, best first. Empty if the index has no graph.
    pub phrases: Vec<IndexNodeMatch>,
    /// Passages, best first: the one with this ID, then those that BM25 finds.
    pub passages: Vec<IndexNodeMatch>,
    /// If `false`, the index has more phrases than were read.
    pub complete: bool,
}

/// Node found by text.
#[derive(Debug, Serialize, ToSchema)]
pub struct IndexNodeMatch {
    /// The node.
    #[serde(flatten)]
    pub node: IndexNode,
    /// Matched part of the node.
    #[serde(rename = "match")]
    pub matched: IndexMatchKind,
    /// Beginning of the passage. Absent for phrases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
}

/// Matched part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexMatchKind {
    /// The whole phrase.
    Exact,
    /// The beginning of the phrase.
    Prefix,
    /// The beginning of a later word of the phrase.
    Inside,
    /// The ID of the passage.
    Id,
    /// Words of the passage.
    Text,
}

/// Query parameters.
struct NodeQuery {
    text: String,
    limit: usize,
}

/// Finds phrases and passages by text.
#[utoipa::path(get, path = "/v1/index/nodes", operation_id = "findIndexNodes", tag = "index",
    params(
        ("q" = String, Query, description = "text to find: the beginning of a word of a phrase, the ID of a passage, or words of a passage", min_length = 1, max_length = 256),
        ("index" = Option<String>, Query, description = "name of the index; defaults to `default`"),
        ("limit" = Option<usize>, Query, description = "maximum number of phrases and of passages, from 1 to 50; defaults to 10", minimum = 1, maximum = 50),
    ),
    responses(
        (status = 200, description = "the nodes", body = IndexNodeMatches),
        (status = 400, description = "the server has no index, or a parameter is invalid", body = ErrorBody),
        (status = 500, description = "the index is damaged", body = ErrorBody),
        (status = 503, description = "too many searches are waiting", body = ErrorBody),
        (status = 504, description = "the search took too long", body = ErrorBody),
    ))]
pub(crate) async fn find(
    IndexedState(state): IndexedState,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<IndexNodeMatches>, ApiError> {
    let library = state.library()?;
    let NodeQuery { text, limit } = NodeQuery::parse(query.as_deref())?;
    // BM25, because the text is a name or a part of one and needs no embedding.
    let search = Query { ranking: Ranking::Bm25, ..Query::new(text.as_str(), Mode::Passage, limit) };
    let hits = state.search(&caller, search).await?.hits;
    // Taken after the search: passages that another snapshot has removed meanwhile are left out.
    let index = library.live.current();
    run_blocking(move || {
        let found = index.graph().map(|graph| graph.find_phrases(&text, limit));
        let PhraseLookup { matches, complete } = found.unwrap_or(PhraseLookup { matches: Vec::new(), complete: true });
        let mut room = RESPONSE_BYTES;
        let mut phrases = Vec::with_capacity(matches.len());
        for found in matches {
            let node = IndexNode::of(&index, GraphNode { kind: NodeKind::Phrase, number: found.phrase })?;
            phrases.push(IndexNodeMatch { node, matched: found.kind.into(), preview: None });
        }
        phrases.retain(|found| fits(&mut room, found));
        let mut passages = passages(&index, &text, &hits, limit)?;
        passages.retain(|found| fits(&mut room, found));
        let snapshot = index.manifest().snapshot;
        Ok(axum::Json(IndexNodeMatches { object: "index.nodes", snapshot, query: text, phrases, passages, complete }))
    })
    .await
}

/// Describes the passage with the ID `text`, if there is one, and then the hits.
fn passages(index: &Index, text: &str, hits: &[Hit], limit: usize) -> Result<Vec<IndexNodeMatch>, ApiError> {
    let named = index.number(text).map_err(|error| broken(&error))?.map(|number| (number, IndexMatchKind::Id));
    let mut numbers: Vec<(u32, IndexMatchKind)> = named.into_iter().collect();
    for hit in hits {
        let number = index.number(&hit.passage.id).map_err(|error| broken(&error))?;
        // The passage with this ID may be among the hits as well.
        let new = number.filter(|number| numbers.first().is_none_or(|(first, _)| first != number));
        numbers.extend(new.map(|number| (number, IndexMatchKind::Text)));
    }
    let describe = |(number, matched)| {
        let node = IndexNode::of(index, GraphNode { kind: NodeKind::Passage, number })?;
        let document = index.passage(&node.id).map_err(|error| broken(&error))?;
        let preview = document.map(|document| document.text.chars().take(PREVIEW_CHARS).collect());
        Ok(IndexNodeMatch { node, matched, preview })
    };
    numbers.into_iter().take(limit).map(describe).collect()
}

/// Returns `true` if a node fits into the rest of the response, and takes its room.
fn fits(room: &mut usize, found: &IndexNodeMatch) -> bool {
    let bytes = found.node.bytes() + found.preview.as_ref().map_or(0, String::len);
    let left = room.checked_sub(bytes);
    // A node that is too large leaves its room to smaller ones.
    *room = left.unwrap_or(*room);
    left.is_some()
}

impl NodeQuery {
    fn parse(query: Option<&str>) -> Result<NodeQuery, ApiError> {
        let mut text = None;
        let mut limit = DEFAULT_NODES;
        params::each(query, |name, value| match name {
            "q" => {
                text = Some(value.to_owned());
                Ok(())
            }
            "limit" => params::number(name, value, 1..=MAX_NODES).map(|given| limit = given),
            name => Err(ApiError::unknown(name)),
        })?;
        let text = text.ok_or_else(|| ApiError::missing("q"))?;
        if text.trim().is_empty() {
            return Err(ApiError::invalid("q", "`q` is empty"));
        }
        // Looks no further than the limit, however long the text is.
        if text.chars().nth(MAX_TEXT_CHARS).is_some() {
            return Err(ApiError::invalid("q", format!("`q` is longer than {MAX_TEXT_CHARS} characters")));
        }
        Ok(NodeQuery { text, limit })
    }
}

impl From<PhraseMatchKind> for IndexMatchKind {
    fn from(kind: PhraseMatchKind) -> IndexMatchKind {
        match kind {
            PhraseMatchKind::Exact => IndexMatchKind::Exact,
            PhraseMatchKind::Prefix => IndexMatchKind::Prefix,
            PhraseMatchKind::Inside => IndexMatchKind::Inside,
        }
    }
}
