//! Checks the paths by which passages were reached.

use std::collections::HashMap;

use waymark_index::graph::Graph;
use waymark_index::{GraphTrace, GraphVariant, PathEdge};

use super::{Wrong, hold};

/// Likelihood of the likeliest path to each node, by number of edges.
pub struct Ways {
    seeds: HashMap<u32, f64>,
    /// Best likelihood over 0, 1 and 2 edges, by phrase.
    best: [HashMap<u32, f64>; 3],
    /// If `true`, every phrase has few enough edges for all paths to be considered.
    complete: bool,
    /// Phrase that the walk ignores.
    gone: Option<u32>,
}

/// Edges of a node, without those of the ignored phrase.
fn row(graph: &Graph, gone: Option<u32>, node: u32) -> Vec<(u32, f32)> {
    let (targets, weights) = graph.adjacency().row(node);
    let edges = targets.iter().copied().zip(weights.iter().copied());
    edges.filter(|(target, _)| gone.is_none_or(|gone| gone != node && gone != *target)).collect()
}

fn degree(row: &[(u32, f32)]) -> f64 {
    row.iter().map(|(_, weight)| f64::from(*weight)).sum()
}

fn edge(graph: &Graph, gone: Option<u32>, from: u32, to: u32) -> Option<(f32, f64)> {
    let row = row(graph, gone, from);
    let (_, weight) = *row.iter().find(|(target, _)| *target == to)?;
    Some((weight, f64::from(weight) / degree(&row)))
}

impl Ways {
    pub fn new(graph: &Graph, walk: &GraphTrace) -> Ways {
        let seeds: HashMap<u32, f64> = walk
            .phrases
            .iter()
            .filter(|seed| seed.weight > 0.0)
            .filter_map(|seed| Some((graph.phrase_id(&seed.phrase)?, seed.weight)))
            .collect();
        let gone = graph.phrase_id("").filter(|_| walk.variant == GraphVariant::GraphRagR1);
        let phrases = graph.phrases() as u32;
        let further = |from: &HashMap<u32, f64>| {
            let mut to: HashMap<u32, f64> = HashMap::new();
            for (&node, &chance) in from {
                let row = row(graph, gone, node);
                let degree = degree(&row);
                for &(target, weight) in row.iter().filter(|(target, _)| *target < phrases) {
                    let best = to.entry(target).or_default();
                    *best = best.max(chance * f64::from(weight) / degree);
                }
            }
            to
        };
        let one = further(&seeds);
        let two = further(&one);
        let complete = (0..phrases).all(|phrase| graph.adjacency().row(phrase).0.len() <= 1024);
        Ways { seeds: seeds.clone(), best: [seeds, one, two], complete, gone }
    }

    /// Checks that a path exists with its claimed weights, and that none is likelier.
    pub fn check(&self, graph: &Graph, passage: u32, via: &[PathEdge]) -> Wrong {
        let node = graph.phrases() as u32 + passage;
        let lasts = row(graph, self.gone, node);
        let to_end = |last: u32| edge(graph, self.gone, last, node).map_or(0.0, |(_, chance)| chance);
        let over = |best: &HashMap<u32, f64>| {
            let chances = lasts.iter().filter_map(|(last, _)| best.get(last).map(|chance| chance * to_end(*last)));
            chances.fold(0.0, f64::max)
        };
        let likeliest = self.best.iter().map(over).fold(0.0, f64::max);
        let Some(first) = via.first() else {
            hold!(likeliest == 0.0 || !self.complete, "there is a way to passage {passage}");
            return Ok(());
        };
        hold!(via.len() <= 3, "a way of {} edges", via.len());
        let id = |step: &PathEdge| graph.phrase_id(&step.phrase).ok_or_else(|| format!("no phrase {:?}", step.phrase));
        let mut chance = *self.seeds.get(&id(first)?).ok_or_else(|| format!("{first:?} is no seed"))?;
        for (place, step) in via.iter().enumerate() {
            let next = via.get(place + 1).map_or(Ok(node), id)?;
            let (weight, share) =
                edge(graph, self.gone, id(step)?, next).ok_or_else(|| format!("no edge leaves {step:?}"))?;
            hold!(step.weight == weight, "the edge of {step:?} has weight {weight}");
            chance *= share;
        }
        hold!(!self.complete || chance >= likeliest * (1.0 - 1e-9), "a way of {likeliest} is likelier than {chance}");
        Ok(())
    }
}
