//! Nodes of the graph on the wire. Phrases and passages are named by their own IDs, which stay valid across snapshots.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_index::{GraphNode, Index, NodeKind};

use super::broken;
use crate::api::error::ApiError;

/// Maximum length of a label, in characters.
const LABEL_CHARS: usize = 200;

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexNodeKind {
    /// Subject or object of triples.
    Phrase,
    /// Passage of the corpus.
    Passage,
}

/// Node of the graph.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct IndexNode {
    /// Kind of the node.
    pub kind: IndexNodeKind,
    /// Normalized text of a phrase, or ID of a passage.
    pub id: String,
    /// Text to display, truncated to 200 characters: the phrase, or the title of the passage.
    pub label: String,
    /// Number of edges. 0 for a passage outside the graph.
    pub degree: usize,
}

impl IndexNode {
    /// Describes a node of `index`.
    ///
    /// # Errors
    /// 500 if the index is damaged.
    pub(super) fn of(index: &Index, node: GraphNode) -> Result<IndexNode, ApiError> {
        let degree = index.graph().map_or(0, |graph| graph.degree(node));
        match node.kind {
            NodeKind::Phrase => {
                let text = index.graph().map_or("", |graph| graph.phrase(node.number));
                Ok(IndexNode { kind: IndexNodeKind::Phrase, id: text.to_owned(), label: label(text), degree })
            }
            NodeKind::Passage => {
                let name = index.passage_name(node.number).map_err(|error| broken(&error))?;
                let label = label(if name.title.is_empty() { &name.id } else { &name.title });
                Ok(IndexNode { kind: IndexNodeKind::Passage, id: name.id, label, degree })
            }
        }
    }

    /// Returns the approximate size of the node as JSON, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.id.len() + self.label.len() + 64
    }
}

fn label(text: &str) -> String {
    text.chars().take(LABEL_CHARS).collect()
}
