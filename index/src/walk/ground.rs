//! Walks over the graph of a snapshot, whole or local.

use std::sync::{Arc, Mutex, PoisonError};

use super::local::{Local, LocalWalk, Scratches};
use super::reset::Seed;
use crate::graph::Graph;
use crate::pagerank::{Edges, Mass, Walker};
use crate::query::{GraphOptions, GraphVariant};
use crate::scored::{Scored, best};

/// The most that may be missing of a whole walk's mass, over all nodes together: each mass is known to one millionth of
/// the whole mass.
const TOLERANCE: f64 = 1e-6;

/// The largest residual of a local walk, per unit of a node's weights.
const LOCAL_TOLERANCE: f64 = 1e-6;
/// Edges after which a local walk ends.
const LOCAL_WORK: usize = 2_000_000;

/// What a walk needs beside the graph.
#[derive(Debug)]
pub(crate) struct Ground {
    /// For walks over the whole graph, those that were last used first; none where it is too large for them.
    whole: Option<Mutex<Vec<Prepared>>>,
    scratches: Scratches,
}

/// Kinds of walks that are kept prepared at a time.
const MOST_PREPARED: usize = 4;

/// Walks of one kind.
#[derive(Debug, Clone)]
struct Prepared {
    damping: f64,
    /// The phrase that they leave out.
    without: Option<u32>,
    walker: Arc<Walker<f32>>,
}

/// Where a walk arrived.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arrived {
    /// The passages where most of it did, by falling mass, equal ones in the order of the corpus.
    pub(crate) best: Vec<Scored>,
    /// The most that is missing of its mass of 1, over all nodes together, but for rounding.
    pub(crate) missing: f64,
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
        let usual = |graph| Prepared::new(graph, GraphOptions::default().damping, None);
        Ground { whole: whole.map(|graph| Mutex::new(vec![usual(graph)])), scratches: Scratches::default() }
    }

    /// Whether walks go over the whole graph, from every passage.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Walks from phrases and passages to the best `limit` passages.
    pub(crate) fn walk(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &OwnWeights,
        limit: usize,
    ) -> Arrived {
        let phrases = graph.phrases();
        let without = left_out(graph, options.variant);
        let Some(whole) = &self.whole else { return self.walk_around(graph, options, seeds, own, limit, without) };
        let walker = prepared(whole, graph, options.damping, without);
        let mut reset = vec![0.0; phrases + graph.passages()];
        seeds.iter().for_each(|seed| reset[seed.phrase as usize] = seed.weight as f32);
        match own {
            OwnWeights::Every(weights) => reset[phrases..].copy_from_slice(weights),
            OwnWeights::Some(weights) => {
                weights.iter().for_each(|&(number, weight)| reset[phrases + number as usize] = weight);
            }
        }
        let Mass { mass, missing, .. } = walker.walk(&reset, TOLERANCE);
        let passages = mass[phrases..].iter().zip(0..);
        Arrived { best: best(passages.map(|(&score, number)| Scored { number, score }).collect(), limit), missing }
    }

    fn walk_around(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &OwnWeights,
        limit: usize,
        without: Option<u32>,
    ) -> Arrived {
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
        let Local { mass, missing } = walk.walk(&graph.adjacency(), &reset, &self.scratches);
        let passages = mass.iter().filter(|(node, _)| *node >= phrases);
        let passages = passages.map(|&(node, score)| Scored { number: node - phrases, score });
        Arrived { best: best(passages.collect(), limit), missing }
    }
}

/// The phrase that a walk leaves out, and its edges with it: in GraphRAG-R1's, that without text.
pub(super) fn left_out(graph: &Graph, variant: GraphVariant) -> Option<u32> {
    graph.phrase_id("").filter(|_| variant == GraphVariant::GraphR1)
}

/// The walks of a kind, prepared now where they are not yet. Nobody waits for them but who wants them.
fn prepared(kept: &Mutex<Vec<Prepared>>, graph: &Graph, damping: f64, without: Option<u32>) -> Arc<Walker<f32>> {
    let lock = || kept.lock().unwrap_or_else(PoisonError::into_inner);
    let is_wanted = |kind: &Prepared| kind.damping == damping && kind.without == without;
    let take = |kept: &mut Vec<Prepared>| {
        let place = kept.iter().position(is_wanted)?;
        kept[..=place].rotate_right(1);
        Some(Arc::clone(&kept[0].walker))
    };
    if let Some(walker) = take(&mut lock()) {
        return walker;
    }
    let made = Prepared::new(graph, damping, without);
    let mut kept = lock();
    take(&mut kept).unwrap_or_else(|| {
        kept.insert(0, made.clone());
        kept.truncate(MOST_PREPARED);
        made.walker
    })
}

impl Prepared {
    /// Prepares walks over the edges of the graph. Those of the phrase `without`, if one is given, are gone.
    fn new(graph: &Graph, damping: f64, without: Option<u32>) -> Prepared {
        let adjacency = graph.adjacency();
        let mut edges = Edges { offsets: adjacency.offsets, targets: adjacency.targets, weights: adjacency.weights };
        let mut weights = Vec::new();
        if let Some(without) = without {
            weights.extend_from_slice(edges.weights);
            for (weight, _) in weights.iter_mut().zip(edges.targets).filter(|(_, target)| **target == without) {
                *weight = 0.0;
            }
            weights[edges.offsets[without as usize] as usize..edges.offsets[without as usize + 1] as usize].fill(0.0);
            edges.weights = &weights;
        }
        let walker = Arc::new(Walker::new(&edges, graph.phrases(), damping));
        Prepared { damping, without, walker }
    }
}
