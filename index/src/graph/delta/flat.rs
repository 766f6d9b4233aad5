//! Graph in compressed rows with the node numbers of a new base snapshot, for walks over the whole graph.

use super::super::{AdjacentNode, Graph};

/// Edges of all phrases and passages in use, numbered without gaps as a build numbers them.
#[derive(Debug)]
pub(crate) struct FlatGraph {
    pub(crate) offsets: Vec<u64>,
    pub(crate) targets: Vec<u32>,
    pub(crate) weights: Vec<f32>,
    /// Phrases in order.
    pub(crate) phrases: Vec<u32>,
    /// Passages in order.
    pub(crate) passages: Vec<u32>,
}

impl FlatGraph {
    pub(crate) fn of(graph: &Graph) -> FlatGraph {
        let phrases = graph.phrases_in_order();
        let passages: Vec<u32> = graph.documents.live_numbers().collect();
        let adjacency = graph.adjacency();
        let mut places = vec![u32::MAX; adjacency.nodes()];
        let nodes = phrases.iter().map(|&phrase| graph.phrase_node(phrase));
        let nodes: Vec<u32> = nodes.chain(passages.iter().map(|&passage| graph.passage_node(passage))).collect();
        nodes.iter().zip(0..).for_each(|(&node, place)| places[node as usize] = place);
        let mut flat = FlatGraph { offsets: vec![0], targets: Vec::new(), weights: Vec::new(), phrases, passages };
        for node in nodes {
            let (targets, weights) = adjacency.row(node);
            flat.targets.extend(targets.iter().map(|&target| places[target as usize]));
            flat.weights.extend_from_slice(weights);
            flat.offsets.push(flat.targets.len() as u64);
        }
        flat
    }

    /// Returns the place of a phrase. `None` if no passage names it.
    pub(crate) fn phrase(&self, graph: &Graph, phrase: u32) -> Option<u32> {
        let found = self.phrases.binary_search_by(|&other| graph.phrase_order(other, phrase));
        found.ok().map(|place| place as u32)
    }

    /// Returns the place of a passage. `None` if it is not in use.
    pub(crate) fn passage(&self, passage: u32) -> Option<u32> {
        let found = self.passages.binary_search(&passage);
        found.ok().map(|place| (self.phrases.len() + place) as u32)
    }
}

impl Graph {
    /// Returns `true` if a node is a phrase.
    pub(crate) fn is_phrase(&self, node: u32) -> bool {
        matches!(self.node(node), AdjacentNode::Phrase(_))
    }
}
