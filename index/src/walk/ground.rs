//! Walks over the graph of a snapshot, whole or local.

use std::sync::OnceLock;

use super::local::{LocalWalk, Scratches};
use super::reset::Seed;
use crate::graph::Graph;
use crate::pagerank::{Edges, Options, Walker};
use crate::query::{GraphOptions, GraphVariant};
use crate::scored::{Scored, best};

/// The most that may be missing of a whole walk's mass, over all nodes together. The masses of passages are then known
/// to about one part in a million.
const TOLERANCE: f64 = 1e-6;

/// The largest residual of a local walk, per unit of a node's weights.
const LOCAL_TOLERANCE: f64 = 1e-6;
/// Edges after which a local walk ends.
const LOCAL_WORK: usize = 2_000_000;

/// What a walk needs beside the graph.
#[derive(Debug)]
pub(crate) struct Ground {
    /// For walks over the whole graph; none where it is too large for them.
    whole: Option<Walker<f32>>,
    /// The same without the phrase that has no text, made when it is first asked for.
    without_empty: OnceLock<Walker<f32>>,
    scratches: Scratches,
}

/// The passages' own weights in a reset.
#[derive(Debug, Clone)]
pub(crate) enum OwnWeights {
    /// Of every passage, in order.
    Every(Vec<f32>),
    /// Of some; the others have none.
    Some(Vec<(u32, f32)>),
}

impl OwnWeights {
    /// The weight of a passage.
    pub(crate) fn of(&self, passage: u32) -> f32 {
        match self {
            OwnWeights::Every(weights) => weights.get(passage as usize).copied().unwrap_or_default(),
            OwnWeights::Some(weights) => {
                weights.iter().find(|(number, _)| *number == passage).map_or(0.0, |(_, weight)| *weight)
            }
        }
    }
}

impl Ground {
    /// For walks over the whole of a graph; without one, they stay around where they start.
    pub(crate) fn new(whole: Option<&Graph>) -> Ground {
        let whole = whole.map(|graph| walker(graph, None));
        Ground { whole, without_empty: OnceLock::new(), scratches: Scratches::default() }
    }

    /// Whether walks go over the whole graph, from every passage.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// The `limit` passages where most of a walk arrives, by falling mass, equal ones in the order of the corpus.
    pub(crate) fn walk(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &OwnWeights,
        limit: usize,
    ) -> Vec<Scored> {
        let phrases = graph.phrases();
        // GraphRAG-R1 knows no phrase without text.
        let empty = graph.phrase_id("").filter(|_| options.variant == GraphVariant::GraphR1);
        let Some(whole) = &self.whole else { return self.walk_around(graph, options, seeds, own, limit, empty) };
        let walker = empty.map_or(whole, |empty| self.without_empty.get_or_init(|| walker(graph, Some(empty))));
        let mut reset = vec![0.0; phrases + graph.passages()];
        seeds.iter().for_each(|seed| reset[seed.phrase as usize] = seed.weight as f32);
        match own {
            OwnWeights::Every(weights) => reset[phrases..].copy_from_slice(weights),
            OwnWeights::Some(weights) => {
                weights.iter().for_each(|&(number, weight)| reset[phrases + number as usize] = weight);
            }
        }
        let mass = walker.walk(&reset, &Options { damping: options.damping, tolerance: TOLERANCE }).mass;
        best(mass[phrases..].iter().zip(0..).map(|(&score, number)| Scored { number, score }).collect(), limit)
    }

    fn walk_around(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &OwnWeights,
        limit: usize,
        without: Option<u32>,
    ) -> Vec<Scored> {
        let phrases = graph.phrases() as u32;
        let mut reset: Vec<(u32, f64)> = seeds.iter().map(|seed| (seed.phrase, seed.weight)).collect();
        match own {
            OwnWeights::Every(weights) => {
                reset.extend(weights.iter().zip(phrases..).map(|(&weight, node)| (node, f64::from(weight))));
            }
            OwnWeights::Some(weights) => {
                reset.extend(weights.iter().map(|&(number, weight)| (phrases + number, f64::from(weight))));
            }
        }
        let walk = LocalWalk { damping: options.damping, tolerance: LOCAL_TOLERANCE, work: LOCAL_WORK, without };
        let local = walk.walk(&graph.adjacency(), &reset, &self.scratches);
        let passages = local.mass.iter().filter(|(node, _)| *node >= phrases);
        best(passages.map(|&(node, score)| Scored { number: node - phrases, score }).collect(), limit)
    }
}

/// The edges of the graph as a walk takes them. The edges of the phrase `without`, if one is given, are gone.
fn walker(graph: &Graph, without: Option<u32>) -> Walker<f32> {
    let adjacency = graph.adjacency();
    let edges = Edges { offsets: adjacency.offsets, targets: adjacency.targets, weights: adjacency.weights };
    let Some(without) = without else { return Walker::new(&edges, graph.phrases()) };
    let mut weights = adjacency.weights.to_vec();
    for (weight, _) in weights.iter_mut().zip(adjacency.targets).filter(|(_, target)| **target == without) {
        *weight = 0.0;
    }
    let row = adjacency.offsets[without as usize] as usize..adjacency.offsets[without as usize + 1] as usize;
    weights[row].fill(0.0);
    Walker::new(&Edges { weights: &weights, ..edges }, graph.phrases())
}
