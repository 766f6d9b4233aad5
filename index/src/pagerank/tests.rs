#![allow(clippy::unwrap_used, clippy::expect_used)]
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::golden::cases;

/// Graph given by single edges, in rows.
struct Rows<W> {
    offsets: Vec<u64>,
    targets: Vec<u32>,
    weights: Vec<W>,
}

impl<W: Copy> Rows<W> {
    fn of(nodes: usize, edges: &[(u32, u32, W)]) -> Rows<W> {
        let mut rows = vec![Vec::new(); nodes];
        for &(a, b, weight) in edges {
            rows[a as usize].push((b, weight));
            rows[b as usize].push((a, weight));
        }
        let mut offsets = vec![0];
        rows.iter().for_each(|row| offsets.push(offsets[offsets.len() - 1] + row.len() as u64));
        let (targets, weights) = rows.into_iter().flatten().unzip();
        Rows { offsets, targets, weights }
    }

    fn edges(&self) -> Edges<'_, W> {
        Edges { offsets: &self.offsets, targets: &self.targets, weights: &self.weights }
    }
}

fn walk<W, F>(edges: &Edges<'_, W>, reset: &[F], damping: f64, tolerance: f64) -> PageRankScores<F>
where
    W: Copy + Into<f64>,
    F: Real,
{
    PageRankSolver::new(edges, edges.nodes() / 2, damping).solve(reset, tolerance)
}

/// PageRank by definition: builds the transition matrix, with restarts at nodes without edges, and solves the dense
/// linear system.
fn dense(nodes: usize, edges: &[(u32, u32, f64)], reset: &[f64], damping: f64) -> Vec<f64> {
    let clean: Vec<f64> = reset.iter().map(|&x| if x > 0.0 { x } else { 0.0 }).collect();
    let total: f64 = clean.iter().sum();
    let start: Vec<f64> = clean.iter().map(|x| x / total).collect();
    let mut weight = vec![vec![0.0; nodes]; nodes];
    for &(a, b, w) in edges {
        weight[a as usize][b as usize] += w;
        weight[b as usize][a as usize] += w;
    }
    // (I - damping·P)·x = (1 - damping)·r
    let mut system = vec![vec![0.0; nodes + 1]; nodes];
    for from in 0..nodes {
        let degree: f64 = weight[from].iter().sum();
        for to in 0..nodes {
            let chance = if degree > 0.0 { weight[from][to] / degree } else { start[to] };
            system[to][from] = f64::from(u8::from(to == from)) - damping * chance;
        }
        system[from][nodes] = (1.0 - damping) * start[from];
    }
    for pivot in 0..nodes {
        let best = (pivot..nodes).max_by(|&a, &b| system[a][pivot].abs().total_cmp(&system[b][pivot].abs())).unwrap();
        system.swap(pivot, best);
        let row = system[pivot].clone();
        for below in &mut system[pivot + 1..] {
            let factor = below[pivot] / row[pivot];
            below.iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let mut x = vec![0.0; nodes];
    for row in (0..nodes).rev() {
        let rest: f64 = (row + 1..nodes).map(|column| system[row][column] * x[column]).sum();
        x[row] = (system[row][nodes] - rest) / system[row][row];
    }
    x
}

#[derive(Deserialize)]
struct Case {
    name: String,
    n: usize,
    edges: Vec<(u32, u32, f64)>,
    reset: Vec<serde_json::Value>,
    damping: f64,
    passage_nodes: Vec<usize>,
    all_scores: Vec<f64>,
    sorted_passage_positions: Vec<usize>,
    sorted_scores: Vec<f64>,
}

/// Largest difference to the golden scores, in double and in single precision.
const EXACT: (f64, f64) = (1e-9, 1e-6);

#[test]
fn agrees_with_prpack() {
    for case in cases::<Case>("ppr", "graphs") {
        let name = &case.name;
        let reset: Vec<f64> = case.reset.iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect();
        let rows = Rows::of(case.n, &case.edges);
        let double = walk(&rows.edges(), &reset, case.damping, 1e-12).mass;
        let singles: Vec<_> = case.edges.iter().map(|&(a, b, w)| (a, b, w as f32)).collect();
        let reset: Vec<f32> = reset.iter().map(|&x| x as f32).collect();
        let single = walk(&Rows::of(case.n, &singles).edges(), &reset, case.damping, 1e-6).mass;
        for (node, &expected) in case.all_scores.iter().enumerate() {
            assert!((double[node] - expected).abs() < EXACT.0, "{name}, node {node}: {} for {expected}", double[node]);
            let found = f64::from(single[node]);
            assert!((found - expected).abs() < EXACT.1, "{name}, node {node}: {found} for {expected}");
        }
        let mut order: Vec<usize> = (0..case.passage_nodes.len()).collect();
        let mass = |place: usize| double[case.passage_nodes[place]];
        order.sort_by(|&a, &b| mass(b).total_cmp(&mass(a)));
        for (place, &expected) in case.sorted_scores.iter().enumerate() {
            assert!((mass(order[place]) - expected).abs() < EXACT.0, "{name}, place {place}");
            // Ties may be in any order.
            let other = mass(case.sorted_passage_positions[place]);
            assert!((mass(order[place]) - other).abs() < EXACT.0, "{name}, place {place}");
        }
    }
}

/// Nodes, edges, reset and damping of a generated case.
type Made = (usize, Vec<(u32, u32, f64)>, Vec<f64>, f64);

fn graph() -> impl Strategy<Value = Made> {
    (2_usize..24).prop_flat_map(|nodes| {
        let node = 0..nodes as u32;
        let weight = prop_oneof![8 => 0.01..4.0, 1 => Just(0.0), 1 => Just(1e-7), 1 => Just(1e6)];
        let reset = prop_oneof![4 => 0.0..1.0, 3 => Just(0.0), 1 => Just(-1.0), 1 => Just(f64::NAN)];
        (
            Just(nodes),
            prop::collection::vec((node.clone(), node, weight), 0..60),
            prop::collection::vec(reset, nodes),
            prop_oneof![Just(0.5), Just(0.0), 0.0..0.95],
        )
    })
}

proptest! {
    #[test]
    fn is_the_solution_of_the_linear_system((nodes, edges, reset, damping) in graph()) {
        prop_assume!(reset.iter().any(|&x| x > 0.0));
        let expected = dense(nodes, &edges, &reset, damping);
        let rows = Rows::of(nodes, &edges);
        let found = walk(&rows.edges(), &reset, damping, 1e-12);
        let off: f64 = expected.iter().zip(&found.mass).map(|(x, y)| (x - y).abs()).sum();
        prop_assert!(off < 1e-9, "{off} off after {} sweeps", found.sweeps);
        let single: Vec<f32> = reset.iter().map(|&x| x as f32).collect();
        let singles: Vec<_> = edges.iter().map(|&(a, b, w)| (a, b, w as f32)).collect();
        let found = walk(&Rows::of(nodes, &singles).edges(), &single, damping, 1e-6);
        let off: f64 = expected.iter().zip(&found.mass).map(|(x, &y)| (x - f64::from(y)).abs()).sum();
        prop_assert!(off < 2e-5, "{off} off after {} sweeps", found.sweeps);
    }

    #[test]
    fn no_more_is_missing_than_is_said((nodes, edges, reset, damping) in graph(), tolerance in 1e-9..1e-1) {
        prop_assume!(reset.iter().any(|&x| x > 0.0));
        let rows = Rows::of(nodes, &edges);
        let (rough, fine) = (
            walk(&rows.edges(), &reset, damping, tolerance), walk(&rows.edges(), &reset, damping, 1e-13)
        );
        prop_assert!(rough.missing <= tolerance);
        let off: f64 = rough.mass.iter().zip(&fine.mass).map(|(x, y)| (x - y).abs()).sum();
        prop_assert!(off <= rough.missing + 1e-12, "{off} off, {} said", rough.missing);
    }
}

proptest! {
    #[test]
    fn the_last_nodes_alone_have_the_same_masses((nodes, edges, reset, damping) in graph(), tolerance in 1e-12..1e-1) {
        let rows = Rows::of(nodes, &edges);
        let last = nodes / 2;
        let solver = PageRankSolver::<f64>::new(&rows.edges(), last, damping);
        let whole = solver.solve(&reset, tolerance);
        let seeds: Vec<(u32, f64)> = (0..).zip(reset[..last].iter().copied()).filter(|(_, x)| *x > 0.0).collect();
        let alone = solver.solve_last(&seeds, &reset[last..], tolerance);
        prop_assert_eq!(&alone.mass, &whole.mass[last..]);
        prop_assert_eq!((alone.missing, alone.sweeps), (whole.missing, whole.sweeps));
    }
}

#[test]
fn nothing_to_start_from_leads_nowhere() {
    let rows = Rows::of(3, &[(0, 1, 1.0), (1, 2, 1.0)]);
    for reset in [[0.0; 3], [f64::NAN; 3], [-1.0, 0.0, f64::NAN]] {
        assert_eq!(
            walk(&rows.edges(), &reset, 0.5, 1e-9),
            PageRankScores { mass: vec![0.0; 3], missing: 0.0, sweeps: 0 }
        );
    }
    let empty = Rows::<f32>::of(0, &[]);
    assert!(walk::<_, f32>(&empty.edges(), &[], 0.5, 1e-9).mass.is_empty());
}
