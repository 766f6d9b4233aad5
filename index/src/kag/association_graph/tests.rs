#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;

use super::*;
use crate::options::Relevance;

fn options(iterations: u32) -> KagOptions {
    KagOptions { iterations, relevance: Relevance::Cosine {}, threshold: 0.5, ..KagOptions::default() }
}

fn chunk<'a>(similarity: f32, title: &'a str) -> ChunkNode<'a> {
    ChunkNode { relevance: Relevance::Cosine {}.of(similarity), title }
}

fn triple<'a>(similarity: f32, head: &'a str, tail: &'a str, sources: &[usize]) -> TripleNode<'a> {
    TripleNode { relevance: Relevance::Cosine {}.of(similarity), head, tail, sources: sources.to_vec() }
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
}

/// One chunk called `a` (cosine 0.5), and the triple `a → b` out of it (cosine 1). Nodes: q, c, t, a, b; edges q–c 0.5,
/// q–t 1, and 1 each: c–a, c–t, c–b, t–a, t–b, a–b. Sums of weights: q 1.5, c 3.5, t 4, a 3, b 3.
#[test]
fn a_small_graph_is_walked_as_by_hand() {
    let keys = ["a".to_owned()];
    let graph = AssociationGraph::new(&[chunk(0.5, "a")], &[triple(1.0, "a", "b", &[0])], &keys, &options(1));
    assert_eq!(graph.entities, ["a", "b"]);
    assert_eq!(graph.edges.len(), 8);
    // v = (1, 0, 0, 0.5, 0); p = 0.5·M·v + 0.5·v.
    let once = graph.walk(&options(1));
    near(once.question, 0.5);
    near(once.chunks[0], 0.5 * (0.5 / 1.5 + 0.5 / 3.0));
    near(once.triples[0], 0.5 * (1.0 / 1.5 + 0.5 / 3.0));
    near(once.entities[0], 0.25);
    near(once.entities[1], 0.5 * 0.5 / 3.0);
    // (1/2, 1/4, 5/12, 1/4, 1/12) once more.
    let twice = graph.walk(&options(2));
    near(twice.question, 0.5 + 0.5 * (0.5 * 0.25 / 3.5 + (5.0 / 12.0) / 4.0));
    near(twice.chunks[0], 0.5 * (0.5 * 0.5 / 1.5 + (5.0 / 12.0) / 4.0 + 0.25 / 3.0 + (1.0 / 12.0) / 3.0));
    near(twice.entities[1], 0.5 * (0.25 / 3.5 + (5.0 / 12.0) / 4.0 + 0.25 / 3.0));
    let best = twice.best(1);
    assert_eq!(best[0].0, RankedItem::Triple(0));
}

#[test]
fn a_triple_at_the_threshold_is_not_joined_to_the_question() {
    let joined = |cosine: f32| {
        let graph = AssociationGraph::new(&[], &[triple(cosine, "a", "b", &[])], &[], &options(1));
        graph.edges.iter().any(|&(a, b, _)| (a, b) == (0, 1))
    };
    assert!(!joined(0.5) && joined(0.500_001));
}

#[test]
fn only_retrieved_sources_count_and_nothing_is_joined_to_itself() {
    let graph = AssociationGraph::new(&[chunk(0.0, "")], &[triple(0.0, "a", "a", &[0, 7])], &[], &options(1));
    // Chunk–triple, chunk–a, triple–a: the cosines join nothing to the question.
    assert_eq!(graph.edges, [(1, 2, 1.0), (1, 3, 1.0), (2, 3, 1.0)]);
}

#[test]
fn equal_masses_are_ranked_chunks_first_in_the_order_found() {
    let masses =
        NodeMasses { question: 1.0, chunks: vec![0.1, 0.3, 0.1], triples: vec![0.1, 0.3], entities: Vec::new() };
    let order: Vec<RankedItem> = masses.best(9).into_iter().map(|(item, _)| item).collect();
    use RankedItem::{ChunkNode, Triple};
    assert_eq!(order, [ChunkNode(1), Triple(1), ChunkNode(0), ChunkNode(2), Triple(0)]);
    assert_eq!(masses.best(2).len(), 2);
}

#[test]
fn relevance_is_one_half_at_the_center_and_never_leaves_0_to_1() {
    let sigmoid = Relevance::default();
    near(sigmoid.of(0.4), 1.0 / (1.0 + (-10.0 * (f64::from(0.4_f32) - 0.4)).exp()));
    for relevance in [sigmoid, Relevance::Cosine {}] {
        for cosine in [-1.0, -0.1, 0.0, 0.3, 1.0, f32::MAX, f32::MIN] {
            assert!((0.0..=1.0).contains(&relevance.of(cosine)));
        }
    }
}

proptest! {
    #[test]
    fn mass_is_kept_where_it_can_go(
        titles in proptest::collection::vec((0.01_f32..1.0, 0..6_u8), 0..6),
        triples in proptest::collection::vec((0.0_f32..1.0, 0..6_u8, 0..6_u8, proptest::collection::vec(0..8_usize, 0..3)), 0..8),
        keys in proptest::collection::btree_set(0..6_u8, 0..4),
        iterations in 1..40_u32,
        damping in 0.0..0.95_f64,
    ) {
        let names: Vec<String> = (0..6).map(|name| format!("e{name}")).collect();
        let name = |number: u8| names[usize::from(number)].as_str();
        let chunks: Vec<ChunkNode<'_>> = titles.iter().map(|&(similarity, title)| chunk(similarity, name(title))).collect();
        let triples: Vec<TripleNode<'_>> =
            triples.iter().map(|(similarity, head, tail, sources)| triple(*similarity, name(*head), name(*tail), sources)).collect();
        let keys: Vec<String> = keys.into_iter().map(|key| name(key).to_owned()).collect();
        let options = KagOptions { damping, ..options(iterations) };
        let graph = AssociationGraph::new(&chunks, &triples, &keys, &options);
        let masses = graph.walk(&options);
        prop_assert_eq!(&masses, &AssociationGraph::new(&chunks, &triples, &keys, &options).walk(&options));

        // Each node without edges keeps (1 - α) of what it starts with; all others keep their sum.
        let mut joined = vec![false; graph.nodes()];
        graph.edges.iter().for_each(|&(a, b, _)| (joined[a], joined[b]) = (true, true));
        let first = 1 + chunks.len() + triples.len();
        let start = |node: usize| if node == 0 { 1.0 } else if (first..first + keys.len()).contains(&node) { 0.5 } else { 0.0 };
        let all: Vec<f64> = [vec![masses.question], masses.chunks, masses.triples, masses.entities].concat();
        let mut sum = 0.0;
        let mut expected = 0.0;
        for (node, mass) in all.iter().enumerate() {
            prop_assert!(*mass >= 0.0);
            if joined[node] {
                sum += mass;
                expected += start(node);
            } else {
                prop_assert!((mass - (1.0 - damping) * start(node)).abs() < 1e-12);
            }
        }
        prop_assert!((sum - expected).abs() < 1e-9, "{} is not {}", sum, expected);
    }

    #[test]
    fn the_order_in_which_chunks_are_found_changes_no_mass(similarities in proptest::collection::vec(0.01_f32..1.0, 1..6)) {
        let options = options(20);
        let names: Vec<String> = (0..similarities.len()).map(|place| format!("t{place}")).collect();
        let forth: Vec<ChunkNode<'_>> = similarities.iter().zip(&names).map(|(&s, name)| chunk(s, name)).collect();
        let back: Vec<ChunkNode<'_>> = forth.iter().rev().copied().collect();
        let walk = |chunks: &[ChunkNode<'_>]| AssociationGraph::new(chunks, &[], &[], &options).walk(&options).chunks;
        for (a, b) in walk(&forth).iter().zip(walk(&back).iter().rev()) {
            prop_assert!((a - b).abs() < 1e-12);
        }
    }
}

#[test]
fn what_is_empty_in_normal_form_is_no_entity() {
    let triples = [triple(0.9, "", "a", &[]), triple(0.9, "b", "", &[]), triple(0.9, "", "", &[])];
    let graph = AssociationGraph::new(&[], &triples, &[], &options(1));
    assert_eq!(graph.entities, ["a", "b"]);
    // Each to the question, and the first two to the end they have.
    let edges: Vec<_> = graph.edges.iter().map(|&(a, b, _)| (a, b)).collect();
    assert_eq!(edges, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5)]);
}
