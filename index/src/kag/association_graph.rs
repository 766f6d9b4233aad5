//! Knowledge association graph, and the walk over it.

use std::collections::{BTreeMap, HashMap};

use crate::options::KagOptions;

/// Chunk in the graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkNode<'a> {
    /// Weight of the edge to the question (eq. 1).
    pub(crate) relevance: f64,
    /// Title in normal form; empty if there is none.
    pub(crate) title: &'a str,
}

/// Triple in the graph.
#[derive(Debug, Clone)]
pub(crate) struct TripleNode<'a> {
    /// Weight of the edge to the question, if it is above the threshold (eq. 2).
    pub(crate) relevance: f64,
    /// Head in normal form; empty if it has no ASCII letter or digit.
    pub(crate) head: &'a str,
    /// Tail in normal form; empty if it has no ASCII letter or digit.
    pub(crate) tail: &'a str,
    /// Indices of the found chunks that state the triple.
    pub(crate) sources: Vec<usize>,
}

/// Ranked chunk or triple, by its index among those found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankedItem {
    ChunkNode(usize),
    Triple(usize),
}

/// Mass per node after the walk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeMasses {
    pub(crate) question: f64,
    pub(crate) chunks: Vec<f64>,
    pub(crate) triples: Vec<f64>,
    pub(crate) entities: Vec<f64>,
}

impl NodeMasses {
    /// Returns the `k` chunks and triples with the most mass. Ties list chunks first, then keep the order in which
    /// items were found.
    pub(crate) fn best(&self, k: usize) -> Vec<(RankedItem, f64)> {
        let chunks = self.chunks.iter().enumerate().map(|(place, &mass)| (RankedItem::ChunkNode(place), mass));
        let triples = self.triples.iter().enumerate().map(|(place, &mass)| (RankedItem::Triple(place), mass));
        let mut items: Vec<(RankedItem, f64)> = chunks.chain(triples).collect();
        items.sort_by(|a, b| b.1.total_cmp(&a.1));
        items.truncate(k);
        items
    }
}

/// Knowledge association graph (TeaRAG §4.2). Nodes are the question, chunks, triples, and entities by name, in this
/// order.
#[derive(Debug)]
pub(crate) struct AssociationGraph {
    chunks: usize,
    triples: usize,
    /// Names of the entities in order of first use, key entities first.
    entities: Vec<String>,
    /// Number of key entities.
    keys: usize,
    /// Endpoints and weight of each edge, the smaller endpoint first, sorted.
    edges: Vec<(usize, usize, f64)>,
}

/// Weight of an edge between co-occurring nodes. The paper says "assigned", so a second reason for an edge does not add
/// weight.
const TOGETHER: f64 = 1.0;

impl AssociationGraph {
    /// Joins chunks and triples found for a question with the key entities `keys` in normal form.
    pub(crate) fn new(
        chunks: &[ChunkNode<'_>],
        triples: &[TripleNode<'_>],
        keys: &[String],
        options: &KagOptions,
    ) -> AssociationGraph {
        let mut builder =
            AssociationBuilder { first: 1 + chunks.len() + triples.len(), ..AssociationBuilder::default() };
        keys.iter().for_each(|key| _ = builder.entity(key));
        let keys = builder.entities.len();
        for (place, chunk) in chunks.iter().enumerate() {
            builder.join(0, 1 + place, chunk.relevance);
            if !chunk.title.is_empty() {
                let title = builder.entity(chunk.title);
                builder.join(1 + place, title, TOGETHER);
            }
        }
        for (place, triple) in triples.iter().enumerate() {
            let node = 1 + chunks.len() + place;
            if triple.relevance > options.threshold {
                builder.join(0, node, triple.relevance);
            }
            // An empty normal form would be one entity that connects unrelated triples.
            let ends: Vec<usize> = [triple.head, triple.tail]
                .into_iter()
                .filter(|name| !name.is_empty())
                .map(|name| builder.entity(name))
                .collect();
            if let [head, tail] = ends[..] {
                builder.join(head, tail, TOGETHER);
            }
            for &end in &ends {
                builder.join(node, end, TOGETHER);
            }
            for &source in triple.sources.iter().filter(|&&source| source < chunks.len()) {
                builder.join(1 + source, node, TOGETHER);
                for &end in &ends {
                    builder.join(1 + source, end, TOGETHER);
                }
            }
        }
        // In the order of the nodes, so that sums are rounded the same way every time.
        let edges = builder.edges.into_iter().map(|((a, b), weight)| (a, b, weight)).collect();
        AssociationGraph { chunks: chunks.len(), triples: triples.len(), entities: builder.entities, keys, edges }
    }

    fn nodes(&self) -> usize {
        1 + self.chunks + self.triples + self.entities.len()
    }

    /// Personalized PageRank (§4.2): `p ← α·M·p + (1 - α)·v` from `p = v`, for a fixed number of steps. `M` is the
    /// weight matrix with columns that sum to 1; `v` is 1 for the question and 0.5 for each key entity, without
    /// scaling. Mass on a node without edges is lost.
    pub(crate) fn walk(&self, options: &KagOptions) -> NodeMasses {
        let nodes = self.nodes();
        let first = 1 + self.chunks + self.triples;
        let mut start = vec![0.0; nodes];
        start[0] = 1.0;
        start[first..first + self.keys].fill(0.5);
        let mut sums = vec![0.0; nodes];
        for &(a, b, weight) in &self.edges {
            sums[a] += weight;
            sums[b] += weight;
        }
        let mut mass = start.clone();
        for _ in 0..options.iterations {
            let mut next: Vec<f64> = start.iter().map(|start| (1.0 - options.damping) * start).collect();
            for &(a, b, weight) in &self.edges {
                // Column-stochastic: mass leaves `b` in proportion to the weights of its edges.
                next[a] += options.damping * weight * mass[b] / sums[b];
                next[b] += options.damping * weight * mass[a] / sums[a];
            }
            mass = next;
        }
        let part = |from: usize, count: usize| mass[from..from + count].to_vec();
        NodeMasses {
            question: mass[0],
            chunks: part(1, self.chunks),
            triples: part(1 + self.chunks, self.triples),
            entities: part(first, self.entities.len()),
        }
    }
}

#[derive(Default)]
struct AssociationBuilder {
    entities: Vec<String>,
    named: HashMap<String, usize>,
    edges: BTreeMap<(usize, usize), f64>,
    /// Node number of the first entity.
    first: usize,
}

impl AssociationBuilder {
    /// Returns the node of the entity with this name, adding it if needed.
    fn entity(&mut self, name: &str) -> usize {
        if let Some(&node) = self.named.get(name) {
            return node;
        }
        let node = self.first + self.entities.len();
        self.entities.push(name.to_owned());
        self.named.insert(name.to_owned(), node);
        node
    }

    /// Sets the weight of an edge. Skips self-loops and weight 0.
    fn join(&mut self, a: usize, b: usize, weight: f64) {
        if a != b && weight > 0.0 {
            self.edges.insert((a.min(b), a.max(b)), weight);
        }
    }
}

#[cfg(test)]
mod tests;
