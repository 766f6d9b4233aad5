//! The graph itself, and the walk over it.

use std::collections::{BTreeMap, HashMap};

use crate::options::KagOptions;

/// A chunk that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkNode<'a> {
    /// Its cosine with the question.
    pub(crate) similarity: f32,
    /// Its title in normal form; empty if it has none.
    pub(crate) title: &'a str,
}

/// A triple that was found.
#[derive(Debug, Clone)]
pub(crate) struct TripleNode<'a> {
    /// Its cosine with the question.
    pub(crate) similarity: f32,
    /// Its head, in normal form.
    pub(crate) head: &'a str,
    /// Its tail, in normal form; like the head empty where that has no ASCII letter or digit.
    pub(crate) tail: &'a str,
    /// The chunks it was extracted from, by their place among those found.
    pub(crate) sources: Vec<usize>,
}

/// A ranked thing, by its place among those found.
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
    /// The `k` chunks and triples with the most mass; of equal ones chunks first, then as they were found.
    pub(crate) fn best(&self, k: usize) -> Vec<(RankedItem, f64)> {
        let chunks = self.chunks.iter().enumerate().map(|(place, &mass)| (RankedItem::ChunkNode(place), mass));
        let triples = self.triples.iter().enumerate().map(|(place, &mass)| (RankedItem::Triple(place), mass));
        let mut items: Vec<(RankedItem, f64)> = chunks.chain(triples).collect();
        items.sort_by(|a, b| b.1.total_cmp(&a.1));
        items.truncate(k);
        items
    }
}

/// The knowledge association graph (TeaRAG §4.2): the question, chunks, triples, and entities known by their names, in
/// this order.
#[derive(Debug)]
pub(crate) struct AssociationGraph {
    chunks: usize,
    triples: usize,
    /// Names of the entities, key entities first, in the order in which they came up.
    entities: Vec<String>,
    /// How many of them are key entities.
    keys: usize,
    /// Both ends and the weight of each edge, the smaller end first, in order.
    edges: Vec<(usize, usize, f64)>,
}

/// Weight of an edge between things that occur together. "Assigned", says the text, so two reasons for one edge do not
/// make it heavier.
const TOGETHER: f64 = 1.0;

impl AssociationGraph {
    /// Joins what was found for a question about `keys`, entities in normal form.
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
            builder.join(0, 1 + place, options.relevance.of(chunk.similarity));
            if !chunk.title.is_empty() {
                let title = builder.entity(chunk.title);
                builder.join(1 + place, title, TOGETHER);
            }
        }
        for (place, triple) in triples.iter().enumerate() {
            let node = 1 + chunks.len() + place;
            let relevance = options.relevance.of(triple.similarity);
            if relevance > options.threshold {
                builder.join(0, node, relevance);
            }
            // All that is empty in normal form would be one entity, which joins what has nothing in common.
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
        let edges = builder.edges.into_iter().map(|((a, b), weight)| (a, b, weight)).collect();
        AssociationGraph { chunks: chunks.len(), triples: triples.len(), entities: builder.entities, keys, edges }
    }

    fn nodes(&self) -> usize {
        1 + self.chunks + self.triples + self.entities.len()
    }

    /// Personalised PageRank (§4.2): `p ← α·M·p + (1 - α)·v` from `p = v`, a fixed number of times. `M` is the matrix of
    /// weights with columns that sum to 1; `v` is 1 for the question, 0.5 for each key entity, and not scaled. What lies
    /// on a node without edges goes nowhere.
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
    /// Number of the first entity.
    first: usize,
}

impl AssociationBuilder {
    /// The node of the entity with this name.
    fn entity(&mut self, name: &str) -> usize {
        if let Some(&node) = self.named.get(name) {
            return node;
        }
        let node = self.first + self.entities.len();
        self.entities.push(name.to_owned());
        self.named.insert(name.to_owned(), node);
        node
    }

    /// Gives an edge its weight; none, if that is 0 or it would join a node to itself.
    fn join(&mut self, a: usize, b: usize, weight: f64) {
        if a != b && weight > 0.0 {
            self.edges.insert((a.min(b), a.max(b)), weight);
        }
    }
}

#[cfg(test)]
mod tests;
