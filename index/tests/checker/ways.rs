//! The ways by which passages are said to be reached.

use std::collections::HashMap;

use waymark_index::graph::Graph;
use waymark_index::{Step, Walk};

use super::{Wrong, hold};

/// How likely the likeliest way to each node is, by the number of its edges.
pub struct Ways {
    seeds: HashMap<u32, f64>,
    /// The best over 0, 1 and 2 edges, by phrase.
    best: [HashMap<u32, f64>; 3],
    /// Whether every phrase has few enough edges for all ways to be looked at.
    complete: bool,
}

fn edge(graph: &Graph, from: u32, to: u32) -> Option<(f32, f64)> {
    let (targets, weights) = graph.adjacency().row(from);
    let place = targets.iter().position(|target| *target == to)?;
    Some((weights[place], f64::from(weights[place]) / weights.iter().map(|w| f64::from(*w)).sum::<f64>()))
}

impl Ways {
    pub fn new(graph: &Graph, walk: &Walk) -> Ways {
        let seeds: HashMap<u32, f64> = walk
            .phrases
            .iter()
            .filter(|seed| seed.weight > 0.0)
            .filter_map(|seed| Some((graph.phrase_id(&seed.phrase)?, seed.weight)))
            .collect();
        let (adjacency, phrases) = (graph.adjacency(), graph.phrases() as u32);
        let further = |from: &HashMap<u32, f64>| {
            let mut to: HashMap<u32, f64> = HashMap::new();
            for (&node, &chance) in from {
                let (targets, weights) = adjacency.row(node);
                let degree: f64 = weights.iter().map(|w| f64::from(*w)).sum();
                for (&target, &weight) in targets.iter().zip(weights).filter(|(target, _)| **target < phrases) {
                    let best = to.entry(target).or_default();
                    *best = best.max(chance * f64::from(weight) / degree);
                }
            }
            to
        };
        let one = further(&seeds);
        let two = further(&one);
        let complete = (0..phrases).all(|phrase| adjacency.row(phrase).0.len() <= 1024);
        Ways { seeds: seeds.clone(), best: [seeds, one, two], complete }
    }

    /// Whether a way exists, with the weights that it says, and none is likelier.
    pub fn check(&self, graph: &Graph, passage: u32, via: &[Step]) -> Wrong {
        let node = graph.phrases() as u32 + passage;
        let (lasts, _) = graph.adjacency().row(node);
        let to_end = |last: &u32| edge(graph, *last, node).map_or(0.0, |(_, chance)| chance);
        let over = |best: &HashMap<u32, f64>| {
            let chances = lasts.iter().filter_map(|last| best.get(last).map(|chance| chance * to_end(last)));
            chances.fold(0.0, f64::max)
        };
        let likeliest = self.best.iter().map(over).fold(0.0, f64::max);
        let Some(first) = via.first() else {
            hold!(likeliest == 0.0 || !self.complete, "there is a way to passage {passage}");
            return Ok(());
        };
        hold!(via.len() <= 3, "a way of {} edges", via.len());
        let id = |step: &Step| graph.phrase_id(&step.phrase).ok_or_else(|| format!("no phrase {:?}", step.phrase));
        let mut chance = *self.seeds.get(&id(first)?).ok_or_else(|| format!("{first:?} is no seed"))?;
        for (place, step) in via.iter().enumerate() {
            let next = via.get(place + 1).map_or(Ok(node), id)?;
            let (weight, share) = edge(graph, id(step)?, next).ok_or_else(|| format!("no edge leaves {step:?}"))?;
            hold!(step.weight == weight, "the edge of {step:?} has weight {weight}");
            chance *= share;
        }
        hold!(!self.complete || chance >= likeliest * (1.0 - 1e-9), "a way of {likeliest} is likelier than {chance}");
        Ok(())
    }
}
