//! Neighborhood of a node of the graph: its heaviest edges, and the reasons for them.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::graph::{AdjacentNode, Graph};

/// Maximum number of facts reported per edge.
const FACTS_PER_EDGE: usize = 8;

/// Maximum number of facts read per edge to find those that join its two phrases. A passage may state many thousands.
const FACTS_READ_PER_EDGE: usize = 4096;

/// Maximum number of passages compared per edge.
const PASSAGES_COMPARED: usize = 256;

/// Kind of a node of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// Subject or object of facts.
    Phrase,
    /// Passage of the corpus.
    Passage,
}

/// Node of the graph, by its kind and its number within that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphNode {
    /// Kind of the node.
    pub kind: NodeKind,
    /// Number of the phrase or of the passage.
    pub number: u32,
}

/// Reason for an edge. An edge may have several, and its weight is their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeKind {
    /// A fact joins the two phrases.
    Fact,
    /// The two phrases are similar.
    Synonym,
    /// The passage names the phrase.
    Mention,
}

/// Edge from the node at the center to one of its neighbors.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEdge {
    /// Neighbor.
    pub node: GraphNode,
    /// Weight of the edge, as the walk of a graph search uses it.
    pub weight: f32,
    /// Reasons for the edge, in order.
    pub kinds: Vec<EdgeKind>,
    /// Numbers of the first facts that join the two phrases, at most 8.
    pub facts: Vec<u32>,
    /// Cosine of the two phrases, if they are synonyms.
    pub cosine: Option<f32>,
}

/// Heaviest edges of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighborhood {
    /// Edges by descending weight. Among equally heavy ones, phrases come before passages, each in order.
    pub edges: Vec<NodeEdge>,
    /// Number of all edges from the node to neighbors of the requested kind.
    pub total: usize,
}

impl Graph {
    /// Number of edges of a node. 0 for an unknown node.
    pub fn degree(&self, node: GraphNode) -> usize {
        self.row_of(node).0.len()
    }

    /// Returns the `limit` heaviest edges of a node, to neighbors of any kind or only of `kind`. Empty for an unknown
    /// node.
    pub fn neighborhood(&self, node: GraphNode, kind: Option<NodeKind>, limit: usize) -> Neighborhood {
        let (targets, weights) = self.row_of(node);
        let wanted = |&(target, _): &(u32, f32)| kind.is_none_or(|kind| self.node_at(target).kind == kind);
        let mut edges: Vec<(u32, f32)> = targets.iter().copied().zip(weights.iter().copied()).filter(wanted).collect();
        let total = edges.len();
        let heavier = |a: &(u32, f32), b: &(u32, f32)| -> Ordering {
            b.1.total_cmp(&a.1).then_with(|| self.node_order(a.0, b.0))
        };
        // Only the part that is returned has to be sorted: a hub may have a million edges.
        if limit < total {
            edges.select_nth_unstable_by(limit, heavier);
            edges.truncate(limit);
        }
        edges.sort_unstable_by(heavier);
        let edges = edges.into_iter().map(|(target, weight)| self.edge(node, self.node_at(target), weight)).collect();
        Neighborhood { edges, total }
    }

    fn row_of(&self, node: GraphNode) -> (&[u32], &[f32]) {
        let at = match node.kind {
            NodeKind::Phrase => self.phrase_node(node.number),
            NodeKind::Passage => self.passage_node(node.number),
        };
        self.adjacency().row(at)
    }

    /// Returns the node with this number in the adjacency.
    fn node_at(&self, number: u32) -> GraphNode {
        match self.node(number) {
            AdjacentNode::Phrase(number) => GraphNode { kind: NodeKind::Phrase, number },
            AdjacentNode::Passage(number) => GraphNode { kind: NodeKind::Passage, number },
        }
    }

    fn edge(&self, from: GraphNode, to: GraphNode, weight: f32) -> NodeEdge {
        if from.kind == NodeKind::Passage || to.kind == NodeKind::Passage {
            return NodeEdge { node: to, weight, kinds: vec![EdgeKind::Mention], facts: Vec::new(), cosine: None };
        }
        let facts = self.facts_between(from.number, to.number);
        let cosine = self.cosine(from.number, to.number);
        let mut kinds = Vec::new();
        // Without a synonym the edge comes from a fact, even if none was found within the limits.
        if !facts.is_empty() || cosine.is_none() {
            kinds.push(EdgeKind::Fact);
        }
        if cosine.is_some() {
            kinds.push(EdgeKind::Synonym);
        }
        NodeEdge { node: to, weight, kinds, facts, cosine }
    }

    /// Finds facts with these two phrases as subject and object, in either order.
    fn facts_between(&self, a: u32, b: u32) -> Vec<u32> {
        let mut lists = [self.passages_of(a), self.passages_of(b)];
        // The shorter list is walked, and the longer one is searched.
        lists.sort_unstable_by_key(|list| list.len());
        let [few, many] = lists;
        let mut found = BTreeSet::new();
        let mut left = FACTS_READ_PER_EDGE;
        for passage in few.iter().take(PASSAGES_COMPARED).filter(|passage| many.binary_search(passage).is_ok()) {
            for &fact in self.facts_of(*passage).iter().take(left) {
                left -= 1;
                let ends = self.fact(fact);
                if [ends.subject, ends.object] == [a, b] || [ends.subject, ends.object] == [b, a] {
                    found.insert(fact);
                }
            }
            if found.len() >= FACTS_PER_EDGE || left == 0 {
                break;
            }
        }
        let mut found: Vec<u32> = found.into_iter().collect();
        found.sort_unstable_by(|&a, &b| self.fact_order(a, b));
        found.truncate(FACTS_PER_EDGE);
        found
    }

    /// Returns the cosine of two phrases if one is among the synonyms of the other. The lists of synonyms are bounded,
    /// so only one of the two may hold the pair.
    fn cosine(&self, a: u32, b: u32) -> Option<f32> {
        let among = |from: u32, to: u32| {
            let (synonyms, cosines) = self.synonyms(from);
            let at = synonyms.binary_search_by(|&other| self.phrase_order(other, to)).ok()?;
            cosines.get(at).copied()
        };
        among(a, b).or_else(|| among(b, a))
    }
}
