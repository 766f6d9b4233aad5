//! Checks the walk, by iterating its definition, and the lists derived from it.

use waymark_index::graph::Graph;
use waymark_index::{Evidence, GraphTrace, GraphVariant, Hit, HitPath, Mode};

use super::numbers::{has_rank, near};
use super::ways::Ways;
use super::{Seen, Wrong, hold};

/// Number of terms of the power series: the remainder, `damping` to that power, is below double precision.
fn steps(damping: f64) -> usize {
    if damping > 0.0 { (1e-16_f64.ln() / damping.ln()).ceil() as usize } else { 1 }
}

/// Checks order, masses and paths of the hits.
pub fn check(seen: &Seen<'_>, evidence: &Evidence, walk: &GraphTrace) -> Wrong {
    let depth = if evidence.mode == Mode::Hybrid { 2 * seen.query.k } else { seen.query.k };
    let graph = seen.index.graph().unwrap();
    let mass = if walk.fallback { seen.scaled.clone() } else { masses(seen, graph, walk) };
    let ways = Ways::new(graph, walk);
    let wanted = seen.query.k.min(seen.passages);
    hold!(evidence.hits.len() == wanted, "{} hits instead of {wanted}", evidence.hits.len());
    let mut numbers = Vec::new();
    for hit in &evidence.hits {
        let number = seen.index.number(&hit.passage.id).unwrap().ok_or("an unknown passage")?;
        hold!(!numbers.contains(&number), "{} stands there twice", hit.passage.id);
        numbers.push(number);
        let score = if evidence.mode == Mode::Hybrid {
            fused(seen, hit, number, &mass, depth, walk)?
        } else {
            mass[number as usize]
        };
        hold!(close(f64::from(hit.score), score), "{} has score {score} and not {}", hit.passage.id, hit.score);
        if let Some(arrival) = &hit.path.graph {
            hold!(!walk.fallback, "an arrival without a walk");
            let reset = seen.own[number as usize];
            hold!(near(arrival.reset, reset), "{} has {reset} of the reset", hit.passage.id);
            hold!(close(arrival.mass, mass[number as usize]), "{} has other mass", hit.passage.id);
            hold!(has_rank(&mass, mass[number as usize], arrival.rank, 1e-6), "{} is out of order", hit.passage.id);
            ways.check(graph, number, &arrival.via)?;
        }
        check_path(seen, evidence.mode, walk, number, hit)?;
    }
    let pairs = evidence.hits.windows(2).zip(numbers.windows(2));
    for (hits, numbers) in pairs {
        // Ties are in corpus order, except between equal sums of reciprocal ranks.
        let tied = evidence.mode != Mode::Hybrid && hits[0].score == hits[1].score && numbers[0] < numbers[1];
        hold!(hits[0].score > hits[1].score || tied || evidence.mode == Mode::Hybrid, "hits are out of order");
        hold!(hits[0].score >= hits[1].score, "hits are out of order");
    }
    if evidence.mode != Mode::Hybrid {
        let least = numbers.iter().map(|number| mass[*number as usize]).fold(f64::INFINITY, f64::min);
        let better = (0..seen.passages as u32).filter(|n| !numbers.contains(n) && mass[*n as usize] > least + 1e-6);
        hold!(better.count() == 0, "a better passage was left out");
    }
    Ok(())
}

/// Returns `true` if a mass is as exact as a walk promises: all masses together are off by at most 1e-6, which may be
/// the error of a single passage. A passage that the walk does not reach can have a part of it.
fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6 + 2e-5 * expected.abs()
}

/// Checks the lists that a hit claims to be in.
fn check_path(seen: &Seen<'_>, mode: Mode, walk: &GraphTrace, number: u32, hit: &Hit) -> Wrong {
    let HitPath { bm25, dense, graph, rerank } = &hit.path;
    hold!(rerank.is_none(), "a score of a reranker that was not asked");
    hold!(bm25.is_none(), "a place in a list that was not made");
    if mode != Mode::Hybrid {
        hold!(graph.is_some() != walk.fallback, "it is not said how {} was found", hit.passage.id);
        hold!(dense.is_some() == walk.fallback, "{} has a place among dense hits", hit.passage.id);
        hold!(graph.as_ref().is_none_or(|arrival| arrival.rank == hit.rank), "places differ");
    }
    if let Some(place) = dense {
        let similarity = seen.similarity[number as usize];
        hold!(near(f64::from(place.score), similarity), "{} has similarity {similarity}", hit.passage.id);
        hold!(has_rank(&seen.similarity, similarity, place.rank, 1e-6), "{} is out of order", hit.passage.id);
    }
    Ok(())
}

/// Computes the sum of reciprocal ranks from a hit's claimed ranks, and checks that no other ranks are possible.
fn fused(
    seen: &Seen<'_>,
    hit: &Hit,
    number: u32,
    mass: &[f64],
    depth: usize,
    walk: &GraphTrace,
) -> Result<f64, String> {
    let dense = hit.path.dense.map(|place| place.rank);
    let graph = if walk.fallback { dense } else { hit.path.graph.as_ref().map(|arrival| arrival.rank) };
    for (rank, values, off) in [(dense, &seen.similarity[..], 1e-6), (graph, mass, 1e-6)] {
        let value = values[number as usize];
        hold!(rank.is_none_or(|rank| rank <= depth), "{} stands deeper than {depth}", hit.passage.id);
        let absent = values.iter().filter(|other| **other >= value - off).count() > depth;
        hold!(rank.is_some() || absent, "{} is missing from a list", hit.passage.id);
    }
    let (constant, weight) = if walk.variant == GraphVariant::Waymark { (0.0, 0.05) } else { (60.0, 1.0) };
    let part = |rank: Option<usize>, weight: f64| rank.map_or(0.0, |rank| weight / (constant + rank as f64));
    Ok(part(graph, 1.0) + part(dense, weight))
}

/// Computes the mass of every passage: `(1 - d)·Σ (d·P)ⁱ·r`, where a walk restarts at nodes without edges.
fn masses(seen: &Seen<'_>, graph: &Graph, walk: &GraphTrace) -> Vec<f64> {
    let phrases = graph.phrases();
    let adjacency = graph.adjacency();
    let nodes = phrases + graph.passages();
    let gone = graph.phrase_id("").filter(|_| walk.variant == GraphVariant::GraphRagR1);
    let row = |node: u32| {
        let (targets, weights) = adjacency.row(node);
        let pairs = targets.iter().copied().zip(weights.iter().map(|weight| f64::from(*weight)));
        pairs.filter(move |(target, _)| gone.is_none_or(|gone| gone != node && gone != *target))
    };
    let mut reset = vec![0.0; nodes];
    walk.phrases.iter().for_each(|seed| reset[graph.phrase_id(&seed.phrase).unwrap() as usize] = seed.weight);
    reset[phrases..].copy_from_slice(&seen.own);
    let total: f64 = reset.iter().sum();
    if total > 0.0 {
        reset.iter_mut().for_each(|x| *x /= total);
    }
    let mut mass = reset.clone();
    for _ in 0..steps(walk.damping) {
        let mut next: Vec<f64> = reset.iter().map(|x| (1.0 - walk.damping) * x).collect();
        let mut lost = 0.0;
        for node in 0..nodes as u32 {
            let degree: f64 = row(node).map(|(_, weight)| weight).sum();
            let held = walk.damping * mass[node as usize];
            if degree > 0.0 {
                row(node).for_each(|(target, weight)| next[target as usize] += held * weight / degree);
            } else {
                lost += held;
            }
        }
        next.iter_mut().zip(&reset).for_each(|(x, r)| *x += lost * r);
        mass = next;
    }
    mass.split_off(phrases)
}
