//! Finds the likeliest path of a walk to a passage.

use std::cell::RefCell;
use std::collections::HashMap;

use super::ranker::left_out;
use super::seeds::Seed;
use crate::evidence::PathEdge;
use crate::graph::{Adjacency, Graph};
use crate::mode::GraphVariant;

/// Largest number of edges of a phrase in the middle of a path of three edges. Paths through phrases with more edges
/// are unlikely and very many, so they are skipped. Starting phrases and shorter paths are not limited.
const MAX_MIDDLE_EDGES: usize = 1024;

/// Finds paths of at most three edges from the seeds of one walk.
#[derive(Debug)]
pub(crate) struct PathTracer<'a> {
    graph: &'a Graph,
    edges: Adjacency<'a>,
    /// Node of the phrase that the walk ignores.
    excluded: Option<u32>,
    /// Summed edge weights of the phrases visited so far.
    degrees: RefCell<HashMap<u32, f64>>,
    /// Weight of each seed phrase, by its node.
    seeds: HashMap<u32, f64>,
    /// Nodes one edge away from a seed, each with its likeliest seed, the likelihood, and the weight of the edge.
    near: HashMap<u32, NearbyPhrase>,
}

#[derive(Debug, Clone, Copy)]
struct NearbyPhrase {
    seed: u32,
    chance: f64,
    weight: f32,
}

/// Best path found so far.
struct CandidatePath {
    chance: f64,
    steps: Vec<(u32, f32)>,
}

impl<'a> PathTracer<'a> {
    /// Prepares a tracer for the walk of a variant from these seeds. Seeds of weight 0 start no path.
    pub(crate) fn new(graph: &'a Graph, variant: GraphVariant, seeds: &[Seed]) -> PathTracer<'a> {
        let seeds =
            seeds.iter().filter(|seed| seed.weight > 0.0).map(|seed| (graph.phrase_node(seed.phrase), seed.weight));
        let mut tracer = PathTracer {
            graph,
            edges: graph.adjacency(),
            excluded: left_out(graph, variant).map(|phrase| graph.phrase_node(phrase)),
            degrees: RefCell::default(),
            seeds: seeds.collect(),
            near: HashMap::new(),
        };
        tracer.near = tracer.neighbors();
        tracer
    }

    /// Returns the nodes one edge away from a seed. Among equally likely seeds the first in order wins.
    fn neighbors(&self) -> HashMap<u32, NearbyPhrase> {
        let mut neighbors: HashMap<u32, NearbyPhrase> = HashMap::new();
        for (&seed, &chance) in &self.seeds {
            let start = chance / self.degree(seed);
            for (target, weight) in self.row(seed) {
                let candidate = NearbyPhrase { seed, chance: start * f64::from(weight), weight };
                // The map of seeds has no order, so ties are decided by the order of the nodes: paths must not differ
                // between runs.
                let best = neighbors.entry(target).or_insert(candidate);
                if candidate.chance > best.chance
                    || (candidate.chance == best.chance && self.graph.node_order(seed, best.seed).is_lt())
                {
                    *best = candidate;
                }
            }
        }
        neighbors
    }

    /// Edges of a node, without those that the walk ignores.
    fn row(&self, node: u32) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        let excluded = self.excluded;
        let (targets, weights) = if excluded == Some(node) { (&[][..], &[][..]) } else { self.edges.row(node) };
        let row = targets.iter().copied().zip(weights.iter().copied());
        row.filter(move |(target, _)| excluded != Some(*target))
    }

    /// Returns the summed weights of a node's edges.
    fn degree(&self, node: u32) -> f64 {
        let sum = || self.row(node).map(|(_, weight)| f64::from(weight)).sum();
        *self.degrees.borrow_mut().entry(node).or_insert_with(sum)
    }

    /// Returns `true` if paths may pass through this phrase.
    fn is_passable(&self, phrase: u32) -> bool {
        self.edges.row(phrase).0.len() <= MAX_MIDDLE_EDGES
    }

    /// Returns the likeliest path to a passage over at most two more phrases: the largest product of the seed's weight
    /// and of each edge's share among the edges of the phrase it leaves. Among equally likely paths the shortest wins,
    /// then the one whose last phrases come first. Empty if there is none.
    pub(crate) fn path_to(&self, passage: u32) -> Vec<PathEdge> {
        let mut best = CandidatePath { chance: 0.0, steps: Vec::new() };
        for (last, weight) in self.row(self.graph.passage_node(passage)) {
            // Chance that the walk leaves `last` along this edge.
            let share = f64::from(weight) / self.degree(last);
            if let Some(&start) = self.seeds.get(&last) {
                best.improve(start * share, &[(last, weight)]);
            }
            if let Some(near) = self.near.get(&last) {
                best.improve(near.chance * share, &[(near.seed, near.weight), (last, weight)]);
            }
            if !self.is_passable(last) {
                continue;
            }
            for (middle, step) in self.row(last).filter(|(target, _)| self.graph.is_phrase(*target)) {
                let Some(near) = self.near.get(&middle).filter(|_| self.is_passable(middle)) else { continue };
                let chance = near.chance * f64::from(step) / self.degree(middle) * share;
                best.improve(chance, &[(near.seed, near.weight), (middle, step), (last, weight)]);
            }
        }
        let step = |(node, weight): (u32, f32)| PathEdge { phrase: self.graph.node_text(node).to_owned(), weight };
        best.steps.into_iter().map(step).collect()
    }
}

impl CandidatePath {
    fn improve(&mut self, chance: f64, steps: &[(u32, f32)]) {
        if chance > self.chance || (chance == self.chance && steps.len() < self.steps.len()) {
            self.chance = chance;
            self.steps.clear();
            self.steps.extend_from_slice(steps);
        }
    }
}
