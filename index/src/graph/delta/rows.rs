//! Rows of edges after a change.

use std::collections::{BTreeSet, HashMap};

use super::super::Graph;
use super::DeltaRow;
use super::change::GraphChange;
use crate::error::IndexError;

/// New weights of the edges of each node. `None` if the nodes are no longer connected.
type Updates = HashMap<u32, Vec<(u32, Option<f32>)>>;

impl GraphChange<'_> {
    /// Sets the synonyms, and computes every row whose edges change.
    pub(super) fn connect(&mut self, synonyms: &[(u32, Vec<(u32, f32)>)]) -> Result<(), IndexError> {
        let mut pairs: BTreeSet<(u32, u32)> = self.pairs.keys().copied().collect();
        for (phrase, list) in synonyms {
            let row = DeltaRow::of(list.iter().map(|pair| pair.0), list.iter().map(|pair| pair.1));
            let (numbers, values) = self.old.synonyms(*phrase);
            let before: HashMap<u32, f32> = numbers.iter().copied().zip(values.iter().copied()).collect();
            let now: HashMap<u32, f32> = list.iter().copied().collect();
            let differs = |&other: &u32| before.get(&other) != now.get(&other);
            for &other in before.keys().chain(now.keys()).filter(|other| differs(other)) {
                pairs.insert((other.min(*phrase), other.max(*phrase)));
            }
            self.new.delta.synonyms.insert(*phrase, row);
        }
        let mut updates = Updates::new();
        for (a, b) in pairs {
            let weight = self.weight(a, b)?;
            let [a, b] = [a, b].map(|phrase| self.new.phrase_node(phrase));
            updates.entry(a).or_default().push((b, weight));
            updates.entry(b).or_default().push((a, weight));
        }
        for (&phrase, changes) in &self.mentions {
            let node = self.new.phrase_node(phrase);
            for (&passage, &comes) in changes {
                let passage = self.new.passage_node(passage);
                let weight = comes.then_some(1.0);
                updates.entry(node).or_default().push((passage, weight));
                updates.entry(passage).or_default().push((node, weight));
            }
        }
        for (node, updates) in updates {
            self.update(node, updates);
        }
        Ok(())
    }

    /// Merges changed entries into a row.
    fn update(&mut self, node: u32, mut updates: Vec<(u32, Option<f32>)>) {
        let (targets, weights) = self.old.adjacency().row(node);
        updates.sort_unstable_by(|a, b| self.new.node_order(a.0, b.0));
        let mut numbers = Vec::with_capacity(targets.len() + updates.len());
        let mut values = Vec::with_capacity(targets.len() + updates.len());
        let mut from = 0;
        for (target, weight) in updates {
            let before = |&other: &u32| self.new.node_order(other, target).is_lt();
            let place = from + targets[from..].partition_point(before);
            numbers.extend_from_slice(&targets[from..place]);
            values.extend_from_slice(&weights[from..place]);
            from = place + usize::from(targets.get(place) == Some(&target));
            if let Some(weight) = weight {
                numbers.push(target);
                values.push(weight);
            }
        }
        numbers.extend_from_slice(&targets[from..]);
        values.extend_from_slice(&weights[from..]);
        let counts = &mut self.new.delta.counts;
        counts.entries = counts.entries + numbers.len() as u64 - targets.len() as u64;
        self.new.delta.rows.insert(node, DeltaRow::of(numbers.into_iter(), values.into_iter()));
    }

    /// Returns the weight of the edge between two phrases, as `edges.rs` defines it: the sum of both directions, each
    /// the cosine of synonyms or else the number of triples.
    fn weight(&self, a: u32, b: u32) -> Result<Option<f32>, IndexError> {
        let change = self.pairs.get(&(a, b)).copied().unwrap_or_default();
        let count = self.old.joined(a, b)? + change;
        let stated = (count > 0).then_some(count as f32);
        let there = cosine(&self.new, a, b).or(stated);
        let back = cosine(&self.new, b, a).or(stated);
        Ok(match (there, back) {
            (Some(there), Some(back)) => Some(there + back),
            (one, other) => one.or(other),
        })
    }
}

impl Graph {
    /// Returns the number of triples that join two phrases.
    fn joined(&self, a: u32, b: u32) -> Result<i64, IndexError> {
        let (from, to) = if self.passages_of(a).len() <= self.passages_of(b).len() { (a, b) } else { (b, a) };
        let (targets, weights) = self.adjacency().row(self.phrase_node(from));
        let node = self.phrase_node(to);
        let place = targets.binary_search_by(|&other| self.node_order(other, node));
        let Some(&weight) = place.ok().and_then(|place| weights.get(place)) else { return Ok(0) };
        let count = match (cosine(self, a, b), cosine(self, b, a)) {
            (None, None) => weight / 2.0,
            (Some(cosine), None) | (None, Some(cosine)) => weight - cosine,
            // Synonyms in both directions hide the triples, which are counted where both phrases are named.
            (Some(_), Some(_)) => return self.joined_in_passages(a, b),
        };
        Ok(count.round() as i64)
    }

    fn joined_in_passages(&self, a: u32, b: u32) -> Result<i64, IndexError> {
        let others = self.passages_of(b);
        let mut count = 0;
        for passage in self.passages_of(a).iter().filter(|passage| others.binary_search(passage).is_ok()) {
            let joins = |&[subject, _, object]: &[u32; 3]| [subject, object] == [a, b] || [subject, object] == [b, a];
            count += self.stated(*passage)?.iter().filter(|numbers| joins(numbers)).count() as i64;
        }
        Ok(count)
    }
}

/// Returns the cosine of the synonym `to` of `from`.
fn cosine(graph: &Graph, from: u32, to: u32) -> Option<f32> {
    let (numbers, scores) = graph.synonyms(from);
    numbers.iter().position(|&number| number == to).and_then(|place| scores.get(place)).copied()
}
