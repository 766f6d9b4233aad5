//! Walks over the graph of a snapshot, whole or local.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::local::{LocalPageRank, LocalScores, ScratchPool};
use super::seeds::Seed;
use crate::condition::TopPassages;
use crate::graph::Graph;
use crate::mode::GraphVariant;
use crate::options::GraphOptions;
use crate::pagerank::{Edges, PageRankScores, PageRankSolver};
use crate::scored::Scored;

/// The most that may be missing of a whole walk's mass, over all nodes together: each mass is known to one millionth of
/// the whole mass.
const TOLERANCE: f64 = 1e-6;

/// The largest residual of a local walk, per unit of a node's weights.
const LOCAL_TOLERANCE: f64 = 1e-6;
/// Edges after which a local walk ends.
const LOCAL_WORK: usize = 2_000_000;

/// What a walk needs beside the graph.
#[derive(Debug)]
pub(crate) struct GraphRanker {
    /// For walks over the whole graph, those that were last used first; none where it is too large for them.
    whole: Option<Mutex<Vec<PreparedSolver>>>,
    scratches: ScratchPool,
}

/// Kinds of walks that are kept prepared at a time.
const MOST_PREPARED: usize = 4;

/// Walks of one kind.
#[derive(Debug)]
struct PreparedSolver {
    damping: f64,
    /// The phrase that they leave out.
    without: Option<u32>,
    /// Filled by the first who wants them, while the others wait for it.
    solver: Arc<OnceLock<Arc<PageRankSolver<f32>>>>,
}

/// Where a walk arrived.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RankedPassages {
    /// The passages where most of it did, by falling mass, equal ones in the order of the corpus.
    pub(crate) best: Vec<Scored>,
    /// The most that is missing of its mass of 1, over all nodes together, but for rounding.
    pub(crate) missing: f64,
}

/// The passages' own weights in a reset.
#[derive(Debug, Clone)]
pub(crate) enum PassageWeights {
    /// Of every passage, in order.
    Every(Vec<f32>),
    /// Of some; the others have none.
    Some(Vec<(u32, f32)>),
}

impl PassageWeights {
    /// The weight of a passage.
    pub(crate) fn of(&self, passage: u32) -> f32 {
        match self {
            PassageWeights::Every(weights) => weights.get(passage as usize).copied().unwrap_or_default(),
            PassageWeights::Some(weights) => {
                weights.iter().find(|(number, _)| *number == passage).map_or(0.0, |(_, weight)| *weight)
            }
        }
    }
}

impl GraphRanker {
    /// For walks over the whole of a graph; without one, they stay around where they start.
    pub(crate) fn new(whole: Option<&Graph>) -> GraphRanker {
        let usual = |graph| {
            let damping = GraphOptions::default().damping;
            let solver = Arc::new(OnceLock::from(Arc::new(solver(graph, damping, None))));
            Mutex::new(vec![PreparedSolver { damping, without: None, solver }])
        };
        GraphRanker { whole: whole.map(usual), scratches: ScratchPool::default() }
    }

    /// Whether walks go over the whole graph, from every passage.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Walks from phrases and passages to the best passages that are wanted. Which are changes nothing about the walk.
    pub(crate) fn rank(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &PassageWeights,
        wanted: TopPassages<'_>,
    ) -> RankedPassages {
        let phrases = graph.phrases();
        let without = left_out(graph, options.variant);
        let Some(whole) = &self.whole else { return self.rank_locally(graph, options, seeds, own, wanted, without) };
        let solver = prepared(whole, options.damping, without, || solver(graph, options.damping, without));
        let mut reset = vec![0.0; phrases + graph.passages()];
        seeds.iter().for_each(|seed| reset[seed.phrase as usize] = seed.weight as f32);
        match own {
            PassageWeights::Every(weights) => reset[phrases..].copy_from_slice(weights),
            PassageWeights::Some(weights) => {
                weights.iter().for_each(|&(number, weight)| reset[phrases + number as usize] = weight);
            }
        }
        let PageRankScores { mass, missing, .. } = solver.solve(&reset, TOLERANCE);
        let passages = mass[phrases..].iter().zip(0..);
        RankedPassages { best: wanted.best(passages.map(|(&score, number)| Scored { number, score })), missing }
    }

    fn rank_locally(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &PassageWeights,
        wanted: TopPassages<'_>,
        without: Option<u32>,
    ) -> RankedPassages {
        let phrases = graph.phrases() as u32;
        let mut reset: Vec<(u32, f64)> = seeds.iter().map(|seed| (seed.phrase, seed.weight)).collect();
        match own {
            PassageWeights::Every(weights) => {
                reset.extend(weights.iter().zip(phrases..).map(|(&weight, node)| (node, f64::from(weight))));
            }
            PassageWeights::Some(weights) => {
                reset.extend(weights.iter().map(|&(number, weight)| (phrases + number, f64::from(weight))));
            }
        }
        let local = LocalPageRank { damping: options.damping, tolerance: LOCAL_TOLERANCE, work: LOCAL_WORK, without };
        let LocalScores { mass, missing } = local.solve(&graph.adjacency(), &reset, &self.scratches);
        let passages = mass.iter().filter(|(node, _)| *node >= phrases);
        let passages = passages.map(|&(node, score)| Scored { number: node - phrases, score });
        RankedPassages { best: wanted.best(passages), missing }
    }
}

/// The phrase that a walk leaves out, and its edges with it: in GraphRAG-R1's, that without text.
pub(super) fn left_out(graph: &Graph, variant: GraphVariant) -> Option<u32> {
    graph.phrase_id("").filter(|_| variant == GraphVariant::GraphR1)
}

/// The walks of a kind, which `make` prepares now where they are not yet: once, however many want them at the same time.
/// Nobody waits for them but who wants them.
fn prepared(
    kept: &Mutex<Vec<PreparedSolver>>,
    damping: f64,
    without: Option<u32>,
    make: impl FnOnce() -> PageRankSolver<f32>,
) -> Arc<PageRankSolver<f32>> {
    let solver = {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().position(|kind| kind.damping == damping && kind.without == without) {
            Some(place) => kept[..=place].rotate_right(1),
            None => {
                kept.insert(0, PreparedSolver { damping, without, solver: Arc::default() });
                kept.truncate(MOST_PREPARED);
            }
        }
        Arc::clone(&kept[0].solver)
    };
    Arc::clone(solver.get_or_init(|| Arc::new(make())))
}

/// Prepares walks over the edges of the graph. Those of the phrase `without`, if one is given, are gone.
fn solver(graph: &Graph, damping: f64, without: Option<u32>) -> PageRankSolver<f32> {
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
    PageRankSolver::new(&edges, graph.phrases(), damping)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Over one node without edges.
    fn lonely() -> PageRankSolver<f32> {
        PageRankSolver::new(&Edges::<f32> { offsets: &[0, 0], targets: &[], weights: &[] }, 1, 0.5)
    }

    #[test]
    fn who_wants_the_same_walks_at_once_waits_for_one_preparation() {
        let (kept, made, together) = (Mutex::default(), AtomicUsize::new(0), Barrier::new(4));
        let make = || {
            made.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            lonely()
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    prepared(&kept, 0.5, None, make);
                });
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_kinds_that_were_last_used_are_kept() {
        let (kept, made) = (Mutex::default(), AtomicUsize::new(0));
        let make = || {
            made.fetch_add(1, Ordering::SeqCst);
            lonely()
        };
        let made_by = |without: u32| {
            let before = made.load(Ordering::SeqCst);
            prepared(&kept, 0.5, Some(without), make);
            made.load(Ordering::SeqCst) - before
        };
        assert!((0..MOST_PREPARED as u32).all(|without| made_by(without) == 1));
        // The one more takes the place of 1: 0 was used since.
        assert_eq!([0, 99, 0, 1, 99].map(made_by), [0, 1, 0, 1, 0]);
        assert_eq!(kept.lock().unwrap_or_else(PoisonError::into_inner).len(), MOST_PREPARED);
    }
}
