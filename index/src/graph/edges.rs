//! Edge table of HippoRAG 2 (`HippoRAG.py:add_fact_edges`, `add_passage_edges`, `add_synonymy_edges`, `add_new_edges`),
//! as an undirected graph with parallel edges.

use petgraph::graph::{NodeIndex, UnGraph};

use super::lists::ListRows;
use super::statements::Numbers;
use super::synonyms::Neighbors;

/// Builds the graph over `passages_of.len()` phrases and `passages` passages.
///
/// The table holds a weight for every ordered pair of nodes, and each entry becomes one undirected edge:
/// * each triple in `stated` adds 1 to (subject, object) and to (object, subject);
/// * each passage has an edge of weight 1 to each of its phrases;
/// * each synonym (a, b) sets the weight of (a, b) to its score, replacing what facts had added up there;
/// * pairs of a node with itself are left out.
pub(super) fn graph(
    stated: &[Numbers],
    passages_of: &ListRows,
    synonyms: &Neighbors,
    passages: usize,
) -> UnGraph<(), f32> {
    let phrases = passages_of.len();
    let facts = PairCounts::of(stated, phrases);
    let edges = facts.pairs.len() + synonyms.len() + passages_of.values.len();
    let mut graph = UnGraph::with_capacity(phrases + passages, edges);
    for _ in 0..phrases + passages {
        graph.add_node(());
    }
    let node = |number: usize| NodeIndex::new(number);
    for from in 0..phrases {
        overlay(facts.row(from), synonyms.row(from), |to, weight| {
            if to as usize != from {
                graph.add_edge(node(from), node(to as usize), weight);
            }
        });
        for &passage in passages_of.get(from) {
            graph.add_edge(node(phrases + passage as usize), node(from), 1.0);
        }
    }
    graph
}

/// Merges the entries of two rows sorted by target and calls `visit` for each. Where both have an entry, that of `over`
/// wins.
fn overlay(mut under: &[(u32, f32)], over: impl Iterator<Item = (u32, f32)>, mut visit: impl FnMut(u32, f32)) {
    for (to, weight) in over {
        let before = under.partition_point(|entry| entry.0 < to);
        under[..before].iter().for_each(|&(to, weight)| visit(to, weight));
        let hidden = under.get(before).is_some_and(|entry| entry.0 == to);
        under = &under[before + usize::from(hidden)..];
        visit(to, weight);
    }
    under.iter().for_each(|&(to, weight)| visit(to, weight));
}

/// Number of triples that join two phrases, by each of the two.
struct PairCounts {
    offsets: Vec<usize>,
    pairs: Vec<(u32, f32)>,
}

impl PairCounts {
    fn of(stated: &[Numbers], phrases: usize) -> PairCounts {
        let both = stated.iter().flat_map(|&[subject, _, object]| [(subject, object), (object, subject)]);
        // A fact about a phrase and itself joins nothing.
        let mut pairs: Vec<(u32, u32)> = both.filter(|(from, to)| from != to).collect();
        pairs.sort_unstable();
        let mut counts = PairCounts { offsets: vec![0; phrases + 1], pairs: Vec::new() };
        for equal in pairs.chunk_by(|a, b| a == b) {
            let (from, to) = equal[0];
            counts.pairs.push((to, equal.len() as f32));
            counts.offsets[from as usize + 1] = counts.pairs.len();
        }
        // A phrase without facts gets an empty range after its predecessor's.
        (0..phrases).for_each(|i| counts.offsets[i + 1] = counts.offsets[i + 1].max(counts.offsets[i]));
        counts
    }

    fn row(&self, from: usize) -> &[(u32, f32)] {
        &self.pairs[self.offsets[from]..self.offsets[from + 1]]
    }
}
