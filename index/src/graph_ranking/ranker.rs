//! Runs PageRank over the graph of a snapshot, whole or local.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::local::{LocalPageRank, LocalScores, ScratchPool};
use super::seeds::Seed;
use crate::condition::TopPassages;
use crate::graph::{AdjacentNode, FlatGraph, Graph};
use crate::mode::GraphVariant;
use crate::options::GraphOptions;
use crate::pagerank::{Edges, PageRankScores, PageRankSolver};
use crate::scored::Scored;

/// Largest missing mass of a walk over the whole graph, summed over all nodes: one millionth of the total mass.
const TOLERANCE: f64 = 1e-6;

/// Largest residual of a local walk, per unit of a node's weights.
const LOCAL_TOLERANCE: f64 = 1e-6;
/// Maximum number of edges that a local walk visits.
const LOCAL_WORK: usize = 2_000_000;

/// PageRank solvers and buffers for one graph.
#[derive(Debug)]
pub(crate) struct GraphRanker {
    /// Walks over the whole graph. `None` if the graph is too large for them.
    whole: Option<WholeGraph>,
    scratches: ScratchPool,
}

/// Solvers for walks over a whole graph, prepared when they are first needed.
#[derive(Debug, Default)]
struct WholeGraph {
    /// Solvers, most recently used first.
    solvers: Mutex<Vec<PreparedSolver>>,
    /// Graph in the order of a build. `None` if no commit has changed it since its base snapshot.
    flat: OnceLock<Option<FlatGraph>>,
}

impl WholeGraph {
    fn flat(&self, graph: &Graph) -> Option<&FlatGraph> {
        self.flat.get_or_init(|| (!graph.is_base()).then(|| FlatGraph::of(graph))).as_ref()
    }

    fn solver(&self, graph: &Graph, damping: f64, without: Option<u32>) -> Arc<PageRankSolver<f32>> {
        let flat = self.flat(graph);
        prepared(&self.solvers, damping, without, || solver(graph, flat, damping, without))
    }
}

/// Number of prepared solvers to keep.
const MOST_PREPARED: usize = 4;

/// Solver for one combination of damping and ignored phrase.
#[derive(Debug)]
struct PreparedSolver {
    damping: f64,
    /// Phrase that the walks ignore.
    without: Option<u32>,
    /// Initialized by the first caller, while other callers wait for it.
    solver: Arc<OnceLock<Arc<PageRankSolver<f32>>>>,
}

/// Passages ranked by a walk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RankedPassages {
    /// Passages with the most mass, best first, ties in corpus order.
    pub(crate) best: Vec<Scored>,
    /// Upper bound on the missing mass of a total of 1, summed over all nodes, apart from rounding.
    pub(crate) missing: f64,
}

/// Weights of the passages in a reset vector.
#[derive(Debug, Clone)]
pub(crate) enum PassageWeights {
    /// One weight per passage, in order.
    Every(Vec<f32>),
    /// Weights of some passages; the others weigh 0.
    Some(Vec<(u32, f32)>),
}

impl PassageWeights {
    /// Returns the weight of a passage.
    pub(crate) fn of(&self, passage: u32) -> f32 {
        match self {
            PassageWeights::Every(weights) => weights.get(passage as usize).copied().unwrap_or_default(),
            PassageWeights::Some(weights) => {
                // A few hundred passages, looked up only for those that are returned.
                weights.iter().find(|(number, _)| *number == passage).map_or(0.0, |(_, weight)| *weight)
            }
        }
    }
}

impl GraphRanker {
    /// Prepares walks over `whole`. `None` makes walks local, around their start.
    pub(crate) fn new(whole: Option<&Graph>) -> GraphRanker {
        let ranker = GraphRanker { whole: whole.map(|_| WholeGraph::default()), scratches: ScratchPool::default() };
        if let Some(graph) = whole {
            ranker.prepare(graph);
        }
        ranker
    }

    /// Returns the ranker of the graph after a commit. If `whole` is `false`, walks are local. Prepares nothing, so
    /// that a commit can prepare the solver after it has unlocked the folder. A snapshot that is never searched needs
    /// none.
    pub(crate) fn renewed(&self, whole: bool) -> GraphRanker {
        GraphRanker { whole: whole.then(WholeGraph::default), scratches: self.scratches.clone() }
    }

    /// Prepares the solver of the default damping, so that no search has to wait for it.
    pub(crate) fn prepare(&self, graph: &Graph) {
        if let Some(whole) = &self.whole {
            whole.solver(graph, GraphOptions::default().damping, None);
        }
    }

    /// Returns `true` if walks cover the whole graph.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Walks from phrases and passages, and returns the best passages that `wanted` selects. The selection does not
    /// influence the walk.
    pub(crate) fn rank(
        &self,
        graph: &Graph,
        options: &GraphOptions,
        seeds: &[Seed],
        own: &PassageWeights,
        wanted: TopPassages<'_>,
    ) -> RankedPassages {
        // The ignored phrase is part of the key of a solver, since it changes the matrix.
        let without = left_out(graph, options.variant);
        let Some(whole) = &self.whole else { return self.rank_locally(graph, options, seeds, own, wanted, without) };
        let flat = whole.flat(graph);
        let solver = whole.solver(graph, options.damping, without);
        let (phrases, passages) = match flat {
            Some(flat) => (flat.phrases.len(), flat.passages.len()),
            None => (graph.phrases(), graph.passages()),
        };
        let node = |phrase| flat.map_or(Some(phrase), |flat| flat.phrase(graph, phrase));
        let seeds: Vec<(u32, f32)> =
            seeds.iter().filter_map(|seed| Some((node(seed.phrase)?, seed.weight as f32))).collect();
        let weights: Cow<'_, [f32]> = match (own, flat) {
            (PassageWeights::Every(weights), None) => Cow::Borrowed(weights),
            (PassageWeights::Every(weights), Some(flat)) => {
                flat.passages.iter().map(|&passage| weights[passage as usize]).collect()
            }
            (PassageWeights::Some(some), _) => {
                let place_in = |flat: &FlatGraph, passage| flat.passage(passage).map(|node| node - phrases as u32);
                let place = |passage| flat.map_or(Some(passage), |flat| place_in(flat, passage));
                let mut weights = vec![0.0; passages];
                for (place, weight) in some.iter().filter_map(|&(number, weight)| Some((place(number)?, weight))) {
                    weights[place as usize] = weight;
                }
                Cow::Owned(weights)
            }
        };
        let PageRankScores { mass, missing, .. } = solver.solve_last(&seeds, &weights, TOLERANCE);
        let number = |place: u32| flat.map_or(place, |flat| flat.passages[place as usize]);
        let passages = mass.iter().zip(0..).map(|(&score, place)| Scored { number: number(place), score });
        RankedPassages { best: wanted.best(passages), missing }
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
        let mut reset: Vec<(u32, f64)> =
            seeds.iter().map(|seed| (graph.phrase_node(seed.phrase), seed.weight)).collect();
        let node = |passage| graph.passage_node(passage);
        match own {
            PassageWeights::Every(weights) => {
                let weights = (0..).zip(weights).filter(|(_, weight)| !weight.is_nan());
                reset.extend(weights.map(|(number, &weight)| (node(number), f64::from(weight))));
            }
            PassageWeights::Some(weights) => {
                reset.extend(weights.iter().map(|&(number, weight)| (node(number), f64::from(weight))));
            }
        }
        let without = without.map(|phrase| graph.phrase_node(phrase));
        let local = LocalPageRank { damping: options.damping, tolerance: LOCAL_TOLERANCE, work: LOCAL_WORK, without };
        let LocalScores { mass, missing } = local.solve(&graph.adjacency(), &reset, &self.scratches);
        let passages = mass.iter().filter_map(|&(node, score)| match graph.node(node) {
            AdjacentNode::Passage(number) => Some(Scored { number, score }),
            AdjacentNode::Phrase(_) => None,
        });
        RankedPassages { best: wanted.best(passages), missing }
    }
}

/// Returns the phrase that a walk ignores: GraphRAG-R1 ignores the phrase without text, together with its edges.
pub(super) fn left_out(graph: &Graph, variant: GraphVariant) -> Option<u32> {
    graph.phrase_id("").filter(|_| variant == GraphVariant::GraphRagR1)
}

/// Returns the solver for these parameters. Calls `make` if there is none yet: once, even for concurrent callers. Only
/// callers that need this solver wait for it.
fn prepared(
    kept: &Mutex<Vec<PreparedSolver>>,
    damping: f64,
    without: Option<u32>,
    make: impl FnOnce() -> PageRankSolver<f32>,
) -> Arc<PageRankSolver<f32>> {
    let solver = {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().position(|kind| kind.damping == damping && kind.without == without) {
            // Moves the solver to the front, so that truncation drops the least recently used one.
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

/// Prepares a solver over the edges of the graph, without those of the phrase `without`.
fn solver(graph: &Graph, flat: Option<&FlatGraph>, damping: f64, without: Option<u32>) -> PageRankSolver<f32> {
    let adjacency = graph.adjacency();
    let (mut edges, phrases, without) = match flat {
        None => {
            let edges = Edges { offsets: adjacency.offsets, targets: adjacency.targets, weights: adjacency.weights };
            (edges, graph.phrases(), without)
        }
        Some(flat) => {
            let edges = Edges { offsets: &flat.offsets, targets: &flat.targets, weights: &flat.weights };
            (edges, flat.phrases.len(), without.and_then(|phrase| flat.phrase(graph, phrase)))
        }
    };
    let mut weights = Vec::new();
    if let Some(without) = without {
        // Weight 0 removes an edge from the system without rebuilding the compressed rows.
        weights.extend_from_slice(edges.weights);
        for (weight, _) in weights.iter_mut().zip(edges.targets).filter(|(_, target)| **target == without) {
            *weight = 0.0;
        }
        weights[edges.offsets[without as usize] as usize..edges.offsets[without as usize + 1] as usize].fill(0.0);
        edges.weights = &weights;
    }
    PageRankSolver::new(&edges, phrases, damping)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::embed::fake::HashEmbed;
    use crate::{
        BuildOptions, Changes, CommitOptions, Corpus, Document, Index, LiveIndex, Mode, OpenOptions, Query, Triple,
        build,
    };

    /// Solver over one node without edges.
    fn lonely() -> PageRankSolver<f32> {
        PageRankSolver::new(&Edges::<f32> { offsets: &[0, 0], targets: &[], weights: &[] }, 1, 0.5)
    }

    /// Document about the river `id`, which flows through `object`.
    fn stating(id: &str, object: &str) -> Document {
        Document {
            id: id.to_owned(),
            title: id.to_owned(),
            text: format!("{id} flows through {object}."),
            triples: Some(vec![Triple::new(id, "flows through", object)]),
            metadata: None,
        }
    }

    /// Options of commits that append to the log.
    fn appending() -> CommitOptions {
        CommitOptions { append_from: 0, threads: 1, journal: false, ..CommitOptions::default() }
    }

    #[test]
    fn an_index_has_a_solver_when_it_is_opened_and_after_a_commit() {
        let temp = tempfile::tempdir().unwrap();
        let corpus = Corpus::from_documents("test", vec![stating("Seine", "Paris"), stating("Spree", "Berlin")]);
        build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &()).unwrap();
        let solvers = |index: &Index| {
            let whole = index.snapshot.ranker.whole.as_ref().unwrap();
            (whole.solvers.lock().unwrap().len(), whole.flat.get().is_some())
        };
        let live = LiveIndex::open(temp.path(), Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        assert_eq!(solvers(&live.current()), (1, true));
        live.commit(Changes::upsert([stating("Marne", "Paris")]), &appending(), &()).unwrap();
        let index = live.current();
        assert!(index.manifest().delta.is_some());
        assert_eq!(solvers(&index), (1, true));
        let opened = Index::open(temp.path(), Arc::new(HashEmbed::default())).unwrap();
        assert_eq!(solvers(&opened), (1, true));
        let query = Query::new("rivers of Paris", Mode::Graph, 3);
        assert_eq!(index.search(&query).unwrap(), opened.search(&query).unwrap());
    }

    #[test]
    fn no_search_gets_the_snapshot_of_a_commit_before_its_solver_is_prepared() {
        let temp = tempfile::tempdir().unwrap();
        let stated = |i: usize| stating(&format!("River{i}"), &format!("City{}", i % 10));
        let documents: Vec<Document> = (0..100).map(stated).collect();
        let corpus = Corpus::from_documents("test", documents);
        build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &()).unwrap();
        let live = LiveIndex::open(temp.path(), Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
        let is_prepared = |index: &Index| {
            let whole = index.snapshot.ranker.whole.as_ref().unwrap();
            whole.solvers.lock().unwrap().iter().any(|kind| kind.solver.get().is_some())
        };
        let done = AtomicBool::new(false);
        let look = || {
            let mut last = live.current();
            let mut unprepared = 0;
            while !done.load(Ordering::SeqCst) {
                let index = live.current();
                if !Arc::ptr_eq(&index, &last) {
                    unprepared += usize::from(!is_prepared(&index));
                    last = index;
                }
            }
            unprepared
        };
        let unprepared = std::thread::scope(|scope| {
            let looking = scope.spawn(look);
            let new = |i: usize| Changes::upsert([stating(&format!("New{i}"), "City1")]);
            let committed = (0..10).try_for_each(|i| live.commit(new(i), &appending(), &()).map(drop));
            // Set before the results are looked at, so that the other thread ends after a failure, too.
            done.store(true, Ordering::SeqCst);
            committed.unwrap();
            looking.join().unwrap()
        });
        assert!(live.current().manifest().delta.is_some());
        assert_eq!(unprepared, 0);
    }

    #[test]
    fn who_wants_the_same_walks_at_once_waits_for_one_preparation() {
        let kept = Mutex::default();
        let made = AtomicUsize::new(0);
        let together = Barrier::new(4);
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
        let kept = Mutex::default();
        let made = AtomicUsize::new(0);
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
        // The additional kind evicts 1, because 0 was used more recently.
        assert_eq!([0, 99, 0, 1, 99].map(made_by), [0, 1, 0, 1, 0]);
        assert_eq!(kept.lock().unwrap_or_else(PoisonError::into_inner).len(), MOST_PREPARED);
    }
}
