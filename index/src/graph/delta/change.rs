//! Applies the statements of a commit to a graph.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::super::phrase::normalize;
use super::super::{AdjacentNode, Graph};
use super::{AddedFact, AddedPhrase, DerivedGraph};
use crate::delta::DocumentDelta;
use crate::error::IndexError;

/// Triple by the numbers of its subject, relation and object.
pub(super) type Numbers = [u32; 3];

/// Passages whose statements change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatementChanges<'a> {
    /// Passages that lose their earlier statements.
    pub(crate) left: &'a [u32],
    /// Passages with new statements, which `documents` holds.
    pub(crate) came: &'a [u32],
    /// Documents after the change.
    pub(crate) documents: &'a Arc<DocumentDelta>,
}

/// Function that embeds texts, given a plural noun for messages.
pub(crate) type EmbedTexts<'a> = dyn Fn(&'static str, &[String]) -> Result<Vec<Vec<f32>>, IndexError> + 'a;

/// Source of vectors and synonyms.
#[derive(Clone, Copy)]
pub(crate) enum Deriving<'a> {
    /// They were computed before for the same change to the same graph.
    Stored(&'a DerivedGraph),
    /// They are computed now.
    Fresh {
        /// Embeds new phrases and facts.
        embed: &'a EmbedTexts<'a>,
        /// Number of threads that search synonyms.
        threads: usize,
    },
}

/// Changes of one set of lists: for each list, numbers that come (`true`) or go.
type ListChanges = HashMap<u32, BTreeMap<u32, bool>>;

/// Change in progress.
pub(super) struct GraphChange<'a> {
    pub(super) old: &'a Graph,
    pub(super) new: Graph,
    pub(super) mentions: ListChanges,
    stating: ListChanges,
    /// Change of the number of triples that join two phrases, the smaller number first.
    pub(super) pairs: HashMap<(u32, u32), i64>,
    /// Phrases that no passage named before, and phrases that none names any more.
    pub(super) fresh: Vec<u32>,
    pub(super) gone: Vec<u32>,
}

impl Graph {
    /// Sizes of the graph.
    pub(crate) fn counts(&self) -> super::GraphCounts {
        self.delta.counts
    }

    /// Vector of a phrase, even if no passage names it any more. `None` if it was never known.
    pub(crate) fn known_vector(&self, text: &str) -> Option<&[f32]> {
        self.known_phrase(text).map(|phrase| self.phrase_vector(phrase))
    }

    /// Returns `true` if a fact, given in normal form, has a vector.
    pub(crate) fn knows_fact(&self, subject: &str, relation: &str, object: &str) -> bool {
        let numbers = [self.known_phrase(subject), self.known_relation(relation), self.known_phrase(object)];
        let [Some(subject), Some(relation), Some(object)] = numbers else { return false };
        self.known_fact([subject, relation, object]).is_some()
    }

    /// Vectors of the facts that commits added, by text.
    pub(crate) fn added_facts(&self) -> HashMap<String, &[f32]> {
        let added = self.base.facts[0].len() as u32..self.facts() as u32;
        added.map(|fact| (self.fact_text(fact), self.fact_vector(fact))).collect()
    }

    /// Number of passage numbers that are not in use, if there are `passages` passages.
    pub(crate) fn gaps(&self, passages: usize) -> u64 {
        (self.passages() - passages) as u64
    }

    /// Returns the graph after a change, and what was derived for it.
    pub(crate) fn changed(
        &self,
        changes: StatementChanges<'_>,
        deriving: Deriving<'_>,
    ) -> Result<(Graph, DerivedGraph), IndexError> {
        let mut new = self.clone();
        new.documents = Arc::clone(changes.documents);
        let mut change = GraphChange {
            old: self,
            new,
            mentions: HashMap::new(),
            stating: HashMap::new(),
            pairs: HashMap::new(),
            fresh: Vec::new(),
            gone: Vec::new(),
        };
        // These steps number the new nodes, so their order must be the same whenever a record is applied.
        change.reach(changes.documents.bound());
        // A replaced passage is in both lists: `come` runs last, and overrides the marks of `leave`.
        for &passage in changes.left {
            change.leave(passage)?;
        }
        for &passage in changes.came {
            change.come(passage)?;
        }
        change.relist();
        let mut derived = change.vectors(deriving)?;
        derived.synonyms = match deriving {
            Deriving::Stored(stored) => stored.synonyms.clone(),
            Deriving::Fresh { threads, .. } => change.synonyms(threads)?,
        };
        change.connect(&derived.synonyms)?;
        let mut new = change.new;
        new.delta.settle();
        Ok((new, derived))
    }

    /// Returns the statements of a passage, whose phrases and relations must be known.
    pub(super) fn stated(&self, passage: u32) -> Result<Vec<Numbers>, IndexError> {
        let triples = self.triples(passage)?;
        let number = |text: &str, find: &dyn Fn(&str) -> Option<u32>| find(&normalize(text)).unwrap_or(u32::MAX);
        let phrase = |text: &str| number(text, &|text| self.known_phrase(text));
        let relation = |text: &str| number(text, &|text| self.known_relation(text));
        Ok(triples.iter().map(|t| [phrase(&t.subject), relation(&t.relation), phrase(&t.object)]).collect())
    }

    fn known_relation(&self, text: &str) -> Option<u32> {
        self.base.relations.find(text).or_else(|| self.delta.relation_ids.get(text).copied())
    }

    fn known_fact(&self, numbers: Numbers) -> Option<u32> {
        self.base.find_fact(numbers).or_else(|| self.delta.fact_ids.get(&numbers).copied())
    }
}

impl GraphChange<'_> {
    /// Adds nodes for the passages below `bound`.
    fn reach(&mut self, bound: u32) {
        for passage in self.new.passages() as u32..bound {
            let node = self.add_node(AdjacentNode::Passage(passage));
            self.new.delta.passage_nodes.push(node);
            self.new.delta.counts.origins[0] += 1;
        }
    }

    fn add_node(&mut self, node: AdjacentNode) -> u32 {
        let nodes = &mut self.new.delta.nodes;
        nodes.push(node);
        (self.old.base.phrases.len() + self.old.base.triples.passages() + nodes.len() - 1) as u32
    }

    /// Removes the statements of a passage.
    fn leave(&mut self, passage: u32) -> Result<(), IndexError> {
        // A passage that comes first in this change has no earlier statements.
        if passage as usize >= self.old.passages() {
            return Ok(());
        }
        let stated = self.old.stated(passage)?;
        self.count(passage, &stated, -1);
        for &fact in self.old.facts_of(passage) {
            self.stating.entry(fact).or_default().insert(passage, false);
        }
        let counts = &mut self.new.delta.counts;
        counts.origins[self.old.origin(passage) as usize] -= 1;
        // Origin 0 stands for a passage without statements. `come` counts it again under its new origin.
        counts.origins[0] += 1;
        self.new.delta.facts_of.insert(passage, Arc::default());
        Ok(())
    }

    /// Adds the statements of a passage.
    fn come(&mut self, passage: u32) -> Result<(), IndexError> {
        let mut stated = Vec::new();
        for triple in self.new.triples(passage)? {
            let subject = self.phrase(&triple.subject);
            let relation = self.relation(&triple.relation);
            stated.push([subject, relation, self.phrase(&triple.object)]);
        }
        self.count(passage, &stated, 1);
        let mut facts: Vec<u32> = stated.iter().map(|&numbers| self.fact(numbers)).collect();
        facts.sort_unstable_by(|&a, &b| self.new.fact_order(a, b));
        facts.dedup();
        for &fact in &facts {
            self.stating.entry(fact).or_default().insert(passage, true);
        }
        let counts = &mut self.new.delta.counts;
        counts.origins[0] -= 1;
        counts.origins[self.new.documents.get(passage).flatten().map_or(0, |document| document.origin as usize)] += 1;
        self.new.delta.facts_of.insert(passage, facts.into());
        Ok(())
    }

    /// Counts statements that come (1) or go (-1).
    fn count(&mut self, passage: u32, stated: &[Numbers], sign: i64) {
        let counts = &mut self.new.delta.counts;
        counts.triples = counts.triples.saturating_add_signed(sign * stated.len() as i64);
        for &[subject, _, object] in stated {
            for phrase in [subject, object] {
                self.mentions.entry(phrase).or_default().insert(passage, sign > 0);
            }
            // A fact about a phrase and itself joins nothing.
            if subject != object {
                // Edges have no direction.
                *self.pairs.entry((subject.min(object), subject.max(object))).or_default() += sign;
            }
        }
    }

    fn phrase(&mut self, text: &str) -> u32 {
        let text = normalize(text);
        if let Some(phrase) = self.new.known_phrase(&text) {
            return phrase;
        }
        let phrase = self.new.phrases() as u32;
        let text: Arc<str> = text.into();
        let node = self.add_node(AdjacentNode::Phrase(phrase));
        self.new.delta.phrase_ids.insert(Arc::clone(&text), phrase);
        // `vectors` sets the vectors of all new phrases at once.
        self.new.delta.phrases.push(AddedPhrase { text, vector: Arc::default(), node });
        phrase
    }

    fn relation(&mut self, text: &str) -> u32 {
        let text = normalize(text);
        if let Some(relation) = self.new.known_relation(&text) {
            return relation;
        }
        let relation = (self.old.base.relations.len() + self.new.delta.relations.len()) as u32;
        let text: Arc<str> = text.into();
        self.new.delta.relation_ids.insert(Arc::clone(&text), relation);
        self.new.delta.relations.push(text);
        relation
    }

    fn fact(&mut self, numbers: Numbers) -> u32 {
        if let Some(fact) = self.new.known_fact(numbers) {
            return fact;
        }
        let fact = self.new.facts() as u32;
        self.new.delta.fact_ids.insert(numbers, fact);
        self.new.delta.facts.push(AddedFact { numbers, vector: Arc::default() });
        fact
    }

    /// Computes the changed lists of passages, and the phrases that come and go.
    fn relist(&mut self) {
        let mut changed: Vec<u32> = self.mentions.keys().copied().collect();
        // Independent of the order of a hash map, so that a record describes the same change whenever it is applied.
        changed.sort_unstable();
        for phrase in changed {
            let before = self.old.passages_of(phrase);
            let now = relisted(before, &self.mentions[&phrase]);
            match (before.is_empty(), now.is_empty()) {
                (true, false) => self.fresh.push(phrase),
                (false, true) => self.gone.push(phrase),
                _ => {}
            }
            self.new.delta.passages_of.insert(phrase, now.into());
        }
        let counts = &mut self.new.delta.counts;
        // Added before it is subtracted, as the numbers are unsigned.
        counts.phrases = counts.phrases + self.fresh.len() as u64 - self.gone.len() as u64;
        // In any order: every fact has a list of its own.
        for (&fact, changes) in &self.stating {
            let before = self.old.passages_of_fact(fact);
            let now = relisted(before, changes);
            counts.facts = counts.facts + u64::from(!now.is_empty()) - u64::from(!before.is_empty());
            self.new.delta.passages_of_fact.insert(fact, now.into());
        }
    }

    /// Sets the vectors of new phrases and facts.
    fn vectors(&mut self, deriving: Deriving<'_>) -> Result<DerivedGraph, IndexError> {
        let first_phrase = self.old.delta.phrases.len();
        let first_fact = self.old.delta.facts.len();
        let derived = match deriving {
            Deriving::Stored(stored) => {
                DerivedGraph { phrases: stored.phrases.clone(), facts: stored.facts.clone(), synonyms: Vec::new() }
            }
            Deriving::Fresh { embed, .. } => {
                let added = self.new.delta.phrases.iter_from(first_phrase);
                let phrases: Vec<String> = added.map(|phrase| phrase.text.to_string()).collect();
                let facts = self.old.facts() as u32..self.new.facts() as u32;
                let facts: Vec<String> = facts.map(|fact| self.new.fact_text(fact)).collect();
                let of = |what, texts: &[String]| -> Result<Vec<Arc<[f32]>>, IndexError> {
                    if texts.is_empty() {
                        return Ok(Vec::new());
                    }
                    Ok(embed(what, texts)?.into_iter().map(Arc::from).collect())
                };
                DerivedGraph { phrases: of("phrases", &phrases)?, facts: of("facts", &facts)?, synonyms: Vec::new() }
            }
        };
        let delta = &mut self.new.delta;
        let fits = derived.phrases.len() == delta.phrases.len() - first_phrase
            && derived.facts.len() == delta.facts.len() - first_fact;
        if !fits {
            let message = "a record of changes does not fit the snapshot that it follows".to_owned();
            return Err(IndexError::Dense { action: "extend", message });
        }
        for (place, vector) in (first_phrase..).zip(&derived.phrases) {
            delta.phrases.get_mut(place).into_iter().for_each(|phrase| phrase.vector = Arc::clone(vector));
        }
        for (place, vector) in (first_fact..).zip(&derived.facts) {
            delta.facts.get_mut(place).into_iter().for_each(|fact| fact.vector = Arc::clone(vector));
            delta.fact_codes.push(vector);
        }
        Ok(derived)
    }
}

/// Returns a sorted list after changes.
fn relisted(before: &[u32], changes: &BTreeMap<u32, bool>) -> Vec<u32> {
    let mut list = Vec::with_capacity(before.len() + changes.len());
    let mut rest = before;
    for (&number, &comes) in changes {
        let place = rest.partition_point(|&other| other < number);
        list.extend_from_slice(&rest[..place]);
        rest = &rest[place + usize::from(rest.get(place) == Some(&number))..];
        if comes {
            list.push(number);
        }
    }
    list.extend_from_slice(rest);
    list
}
