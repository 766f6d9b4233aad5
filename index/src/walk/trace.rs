//! The way by which a walk most likely came to a passage.

use std::collections::HashMap;

use super::reset::Seed;
use crate::evidence::Step;
use crate::graph::{Adjacency, Graph};

/// Ways through a phrase with more edges than this are not looked for: each of them is unlikely, and they are many.
const MOST_EDGES: usize = 1024;

/// Finds ways of at most three edges from the phrases of one walk.
#[derive(Debug)]
pub(crate) struct Tracer<'a> {
    graph: &'a Graph,
    edges: Adjacency<'a>,
    /// Each seed, with its weight.
    seeds: HashMap<u32, f64>,
    /// The phrases one edge from a seed: the likeliest seed, how likely, and the weight of the edge.
    near: HashMap<u32, Near>,
}

#[derive(Debug, Clone, Copy)]
struct Near {
    seed: u32,
    chance: f64,
    weight: f32,
}

/// A way being compared with others.
struct Way {
    chance: f64,
    steps: Vec<(u32, f32)>,
}

impl<'a> Tracer<'a> {
    /// For the walk from these phrases. Those of no weight lead nowhere.
    pub(crate) fn new(graph: &'a Graph, seeds: &[Seed]) -> Tracer<'a> {
        let edges = graph.adjacency();
        let seeds: Vec<&Seed> = seeds.iter().filter(|seed| seed.weight > 0.0).collect();
        let mut near: HashMap<u32, Near> = HashMap::new();
        for seed in &seeds {
            let (targets, weights) = edges.row(seed.phrase);
            let start = seed.weight / degree(weights);
            for (&target, &weight) in targets.iter().zip(weights) {
                let found = Near { seed: seed.phrase, chance: start * f64::from(weight), weight };
                let best = near.entry(target).or_insert(found);
                if found.chance > best.chance {
                    *best = found;
                }
            }
        }
        Tracer { graph, edges, seeds: seeds.iter().map(|seed| (seed.phrase, seed.weight)).collect(), near }
    }

    /// The likeliest way to a passage over at most two more phrases: the largest product of the seed's weight and of
    /// each edge's share in the edges of the phrase that it leaves. Of equally likely ones the shortest, then the one
    /// whose last phrases come first. Empty if there is none.
    pub(crate) fn way(&self, passage: u32) -> Vec<Step> {
        let phrases = self.graph.phrases() as u32;
        let mut best = Way { chance: 0.0, steps: Vec::new() };
        let (lasts, weights) = self.edges.row(phrases + passage);
        for (&last, &weight) in lasts.iter().zip(weights) {
            let (targets, between) = self.edges.row(last);
            let share = f64::from(weight) / degree(between);
            if let Some(&start) = self.seeds.get(&last) {
                best.improve(start * share, &[(last, weight)]);
            }
            if let Some(near) = self.near.get(&last) {
                best.improve(near.chance * share, &[(near.seed, near.weight), (last, weight)]);
            }
            if targets.len() > MOST_EDGES {
                continue;
            }
            for (&middle, &step) in targets.iter().zip(between).filter(|(target, _)| **target < phrases) {
                if let Some(near) = self.near.get(&middle) {
                    let (row, through) = self.edges.row(middle);
                    if row.len() <= MOST_EDGES {
                        let chance = near.chance * f64::from(step) / degree(through) * share;
                        best.improve(chance, &[(near.seed, near.weight), (middle, step), (last, weight)]);
                    }
                }
            }
        }
        let step = |(phrase, weight): (u32, f32)| Step { phrase: self.graph.phrase(phrase).to_owned(), weight };
        best.steps.into_iter().map(step).collect()
    }
}

impl Way {
    fn improve(&mut self, chance: f64, steps: &[(u32, f32)]) {
        if chance > self.chance || (chance == self.chance && steps.len() < self.steps.len()) {
            self.chance = chance;
            self.steps.clear();
            self.steps.extend_from_slice(steps);
        }
    }
}

fn degree(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight)).sum()
}
