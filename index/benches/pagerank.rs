//! Personalised PageRank on a graph as large as that of 2WikiMultiHopQA:
//! `cargo bench -p waymark-index --bench pagerank -- [passages] [folder]`.
//!
//! With a folder, graph and resets are written there for `scripts/bench/ppr.py`, which walks the same with
//! python-igraph; run them in turn, never at once. The graph is made up: every passage states nine triples about two or
//! three of its phrases, some phrases stand in very many passages, and one phrase in two has a few synonyms.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use waymark_index::pagerank::{Edges, PageRankSolver, Real};

const TRIPLES: usize = 9;
const QUERIES: usize = 50;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let passages: usize = arguments.first().map_or(6119, |text| text.parse().unwrap());
    let mut random = Random(7);
    let (phrases, table) = made_up(passages, &mut random);
    let nodes = phrases + passages;
    let rows = Rows::of(nodes, &table);
    let edges = rows.edges();
    println!("{phrases} phrases, {passages} passages, {} entries", edges.targets.len());
    let resets: Vec<Vec<f64>> = (0..QUERIES).map(|_| reset(phrases, passages, &mut random)).collect();
    if let Some(folder) = arguments.get(1) {
        write(Path::new(folder), nodes, &table, &resets);
    }
    let exact: Vec<Vec<f64>> = walks::<f64>((&edges, phrases), &resets, 1e-13, "f64, 1e-13");
    for tolerance in [1e-5, 1e-6, 1e-7, 1e-9] {
        compare(&walks::<f64>((&edges, phrases), &resets, tolerance, &format!("f64, {tolerance:e}")), &exact, phrases);
    }
    for tolerance in [1e-5, 1e-6, 1e-7] {
        compare(&walks::<f32>((&edges, phrases), &resets, tolerance, &format!("f32, {tolerance:e}")), &exact, phrases);
    }
    passages_alone((&edges, phrases), &resets, 1e-6);
}

/// Walks in `f32` from every reset as a search does: a reset given by its few phrases, and the masses of the passages alone.
fn passages_alone((edges, phrases): (&Edges<'_>, usize), resets: &[Vec<f64>], tolerance: f64) {
    let solver = PageRankSolver::<f32>::new(edges, phrases, 0.5);
    let mut times = Vec::new();
    let mut most = 0;
    for reset in resets {
        let reset: Vec<f32> = reset.iter().map(|&x| x as f32).collect();
        let seeds: Vec<(u32, f32)> =
            (0..).zip(reset[..phrases].iter().copied()).filter(|(_, weight)| *weight > 0.0).collect();
        let start = Instant::now();
        let walk = solver.solve_last(&seeds, &reset[phrases..], tolerance);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        most = most.max(walk.sweeps);
        let whole = solver.solve(&reset, tolerance).mass;
        assert_eq!(walk.mass, whole[phrases..], "the same masses either way");
    }
    times.sort_by(f64::total_cmp);
    let p50 = times[times.len() / 2];
    println!("f32, {tolerance:e}, passages alone: p50 {p50:.3} ms, at most {most} sweeps");
    let (nodes, entries) = solver.swept();
    // An entry and its place; a gain, an inverse, a bound, and the old and the new value of each node.
    let bytes = entries * 8 + nodes * 20;
    let each = p50 / most as f64;
    println!(
        "    a sweep of {nodes} nodes and {entries} entries: {each:.3} ms, {:.1} MB, {:.1} GB/s; read in order {:.1} GB/s",
        bytes as f64 / 1e6,
        bytes as f64 / each / 1e6,
        bandwidth(bytes)
    );
}

/// Reads as many bytes again and again, in order, and returns the GB/s of the fastest pass.
fn bandwidth(bytes: usize) -> f64 {
    let buffer = vec![1_u64; bytes / 8];
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = Instant::now();
        let sum = std::hint::black_box(&buffer).iter().fold(0_u64, |sum, x| sum.wrapping_add(*x));
        std::hint::black_box(sum);
        best = best.min(start.elapsed().as_secs_f64());
    }
    bytes as f64 / best / 1e9
}

/// Walks from every reset and prints the median and 95th percentile of the time.
fn walks<F: Real>(
    (edges, phrases): (&Edges<'_>, usize),
    resets: &[Vec<f64>],
    tolerance: f64,
    name: &str,
) -> Vec<Vec<f64>> {
    let start = Instant::now();
    let solver = PageRankSolver::<F>::new(edges, phrases, 0.5);
    let prepared = start.elapsed().as_secs_f64() * 1e3;
    let mut times = Vec::new();
    let mut sweeps = 0;
    let mut missing = 0_f64;
    let mut masses = Vec::new();
    for reset in resets {
        let reset: Vec<F> = reset.iter().map(|&x| F::of(x)).collect();
        let start = Instant::now();
        let walk = solver.solve(&reset, tolerance);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        (sweeps, missing) = (sweeps.max(walk.sweeps), missing.max(walk.missing));
        masses.push(walk.mass.into_iter().map(Into::into).collect());
    }
    times.sort_by(f64::total_cmp);
    let p50 = times[times.len() / 2];
    let p95 = times[times.len() * 95 / 100];
    println!(
        "{name}: p50 {p50:.3} ms, p95 {p95:.3} ms, at most {sweeps} sweeps, {missing:.1e} missing; prepared in {prepared:.0} ms"
    );
    masses
}

/// Prints the distance of the passages from the exact walk, and whether the first ten are the same.
fn compare(found: &[Vec<f64>], exact: &[Vec<f64>], phrases: usize) {
    let mut largest = 0_f64;
    let mut relative = 0_f64;
    let mut same = 0;
    for (found, exact) in found.iter().zip(exact) {
        for (&x, &y) in found[phrases..].iter().zip(&exact[phrases..]) {
            largest = largest.max((x - y).abs());
            relative = relative.max((x - y).abs() / y);
        }
        same += usize::from(first(&found[phrases..]) == first(&exact[phrases..]));
    }
    println!(
        "    passages: off by {largest:.1e}, by {relative:.1e} of their mass; first ten the same in {same} of {}",
        found.len()
    );
}

fn first(mass: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..mass.len()).collect();
    order.sort_by(|&a, &b| mass[b].total_cmp(&mass[a]));
    order.truncate(10);
    order
}

/// Number of phrases, and the weight of every edge.
fn made_up(passages: usize, random: &mut Random) -> (usize, HashMap<(usize, usize), f32>) {
    let mut phrases = 0;
    let mut facts: Vec<(usize, usize, usize)> = Vec::new();
    for passage in 0..passages {
        let mut own: Vec<usize> = Vec::new();
        for _ in 0..TRIPLES {
            let mut phrase = |random: &mut Random, about: bool| match random.below(100) {
                0..70 if about && !own.is_empty() => own[0],
                // Names and dates that others use as well, some very often.
                0..30 if phrases > 10 => (phrases as f64 * random.unit().powi(3)) as usize,
                _ => {
                    phrases += 1;
                    phrases - 1
                }
            };
            let subject = phrase(random, true);
            let object = phrase(random, false);
            own.extend([subject, object]);
            facts.push((passage, subject, object));
        }
    }
    let mut table = HashMap::new();
    for (passage, subject, object) in facts {
        for phrase in [subject, object] {
            table.insert((phrase, phrases + passage), 1.0);
        }
        if subject != object {
            *table.entry((subject.min(object), subject.max(object))).or_insert(0.0) += 2.0;
        }
    }
    for phrase in 0..phrases {
        for _ in 0..random.below(2) * random.below(6) {
            let other = random.below(phrases);
            if other != phrase {
                table.insert((phrase.min(other), phrase.max(other)), 1.6 + 0.4 * random.unit() as f32);
            }
        }
    }
    (phrases, table)
}

/// As HippoRAG resets a walk: five phrases and, with little weight, every passage.
fn reset(phrases: usize, passages: usize, random: &mut Random) -> Vec<f64> {
    let mut reset = vec![0.0; phrases + passages];
    (0..5).for_each(|_| reset[random.below(phrases)] = random.unit());
    reset[phrases..].iter_mut().for_each(|x| *x = 0.05 * (random.unit() + random.unit() + random.unit()) / 3.0);
    reset
}

fn write(folder: &Path, nodes: usize, table: &HashMap<(usize, usize), f32>, resets: &[Vec<f64>]) {
    std::fs::create_dir_all(folder).unwrap();
    let mut edges: Vec<_> = table.iter().collect();
    edges.sort_by_key(|(ends, _)| **ends);
    let mut text = format!("{nodes}\n");
    edges.iter().for_each(|((a, b), weight)| writeln!(text, "{a} {b} {weight}").unwrap());
    std::fs::write(folder.join("edges.txt"), text).unwrap();
    let lines: Vec<String> = resets.iter().map(|reset| serde_json::to_string(reset).unwrap()).collect();
    std::fs::write(folder.join("resets.jsonl"), lines.join("\n")).unwrap();
}

struct Rows {
    offsets: Vec<u64>,
    targets: Vec<u32>,
    weights: Vec<f32>,
}

impl Rows {
    fn of(nodes: usize, table: &HashMap<(usize, usize), f32>) -> Rows {
        let mut rows = vec![Vec::new(); nodes];
        for (&(a, b), &weight) in table {
            rows[a].push((b as u32, weight));
            rows[b].push((a as u32, weight));
        }
        let mut offsets = vec![0];
        rows.iter_mut().for_each(|row| {
            row.sort_by_key(|(target, _)| *target);
            offsets.push(offsets[offsets.len() - 1] + row.len() as u64);
        });
        let (targets, weights) = rows.into_iter().flatten().unzip();
        Rows { offsets, targets, weights }
    }

    fn edges(&self) -> Edges<'_> {
        Edges { offsets: &self.offsets, targets: &self.targets, weights: &self.weights }
    }
}

/// A xorshift stream.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
