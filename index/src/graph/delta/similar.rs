//! Synonyms after a change.
//!
//! New phrases are compared with all others by their sketches, so each list gains exactly the new phrases that a search
//! over all would find. A list that loses a phrase is complete without it, unless it was full and may have left others
//! out: then it is computed again. See also `synonyms/update.rs`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::phrase::has_synonyms;
use super::super::synonyms::{MOST, Sketches, all_similar};
use super::super::{AdjacentNode, Graph};
use super::change::GraphChange;
use crate::error::IndexError;

/// Synonyms of a phrase.
type List = Vec<(u32, f32)>;

impl GraphChange<'_> {
    /// Computes the lists that differ from the old graph.
    pub(super) fn synonyms(&mut self, threads: usize) -> Result<Vec<(u32, List)>, IndexError> {
        let (mut lists, again) = self.without_gone();
        let fresh: HashSet<u32> = self.fresh.iter().copied().collect();
        let queries: BTreeSet<u32> = self.fresh.iter().chain(&again).copied().collect();
        let queries: Vec<u32> = queries.into_iter().filter(|&phrase| !self.new.phrase(phrase).is_empty()).collect();
        if !queries.is_empty() {
            let sketches = self.new.sketched(threads)?;
            let graph = &self.new;
            let usable = |phrase: u32| graph.has_phrase(phrase) && !graph.phrase(phrase).is_empty();
            let found = all_similar(graph, &sketches, &queries, &usable, threads)?;
            self.new.delta.sketches = Some(sketches);
            for (phrase, found) in found {
                if fresh.contains(&phrase) {
                    for &(other, score) in &found {
                        let known = fresh.contains(&other) || again.contains(&other);
                        if !known && has_synonyms(self.new.phrase(other)) {
                            lists.entry(other).or_insert_with(|| list(self.old, other)).push((phrase, score));
                        }
                    }
                }
                lists.insert(phrase, if has_synonyms(self.new.phrase(phrase)) { found } else { Vec::new() });
            }
        }
        Ok(lists.into_iter().map(|(phrase, list)| (phrase, self.cut(list))).collect())
    }

    /// Returns the lists that lose a phrase, and the phrases whose lists must be computed again.
    fn without_gone(&self) -> (BTreeMap<u32, List>, BTreeSet<u32>) {
        let mut lists: BTreeMap<u32, List> = BTreeMap::new();
        let mut again = BTreeSet::new();
        let gone: HashSet<u32> = self.gone.iter().copied().collect();
        for &phrase in &self.gone {
            lists.insert(phrase, Vec::new());
            // Every phrase that has this one as a synonym is a neighbor of it.
            for &node in self.old.adjacency().row(self.old.phrase_node(phrase)).0 {
                let AdjacentNode::Phrase(other) = self.old.node(node) else { continue };
                if gone.contains(&other) || !self.old.synonyms(other).0.contains(&phrase) {
                    continue;
                }
                if self.old.synonyms(other).0.len() >= MOST {
                    again.insert(other);
                }
                lists.entry(other).or_insert_with(|| list(self.old, other)).retain(|(number, _)| *number != phrase);
            }
        }
        (lists, again)
    }

    /// Keeps the best entries of a list and sorts them by phrase.
    fn cut(&self, mut list: List) -> List {
        if list.len() > MOST {
            list.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then_with(|| self.new.phrase_order(a.0, b.0)));
            list.truncate(MOST);
        }
        list.sort_unstable_by(|a, b| self.new.phrase_order(a.0, b.0));
        list
    }
}

impl Graph {
    /// Returns the sketches of all phrases. The first comparison after the index was opened computes all of them, later
    /// ones only those of new phrases.
    fn sketched(&mut self, threads: usize) -> Result<Sketches, IndexError> {
        let earlier = self.delta.sketches.take();
        let graph: &Graph = self;
        let mut sketches = earlier.unwrap_or_else(|| Sketches::suited(graph, graph.phrases()));
        sketches.extend(graph.phrases(), &|phrase| graph.phrase_vector(phrase as u32), threads)?;
        Ok(sketches)
    }
}

fn list(graph: &Graph, phrase: u32) -> List {
    let (numbers, scores) = graph.synonyms(phrase);
    numbers.iter().copied().zip(scores.iter().copied()).collect()
}
