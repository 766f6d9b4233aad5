//! Lookup of phrases by a part of their text.

use super::{GraphNode, NodeKind};
use crate::graph::Graph;
use crate::graph::phrase::normalize;
use crate::partition_point::partition_point;

/// Maximum number of phrases of the base snapshot that one lookup reads.
const PHRASES_READ: u32 = 250_000;

/// Part of a phrase that a lookup matched, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhraseMatchKind {
    /// The whole phrase.
    Exact,
    /// The beginning of the phrase.
    Prefix,
    /// The beginning of a later word.
    Inside,
}

/// Phrase found by a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhraseMatch {
    /// Number of the phrase.
    pub phrase: u32,
    /// Matched part.
    pub kind: PhraseMatchKind,
    /// Number of edges of the phrase.
    pub degree: usize,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PhraseLookup {
    /// Phrases, best first: by matched part, then by descending number of edges, then in order.
    pub matches: Vec<PhraseMatch>,
    /// If `true`, every phrase was read. `false` for a graph with more phrases than one lookup reads.
    pub complete: bool,
}

impl Graph {
    /// Finds at most `limit` phrases that contain `text`, after normalizing it, at the beginning of a word.
    pub fn find_phrases(&self, text: &str, limit: usize) -> PhraseLookup {
        let wanted = normalize(text);
        if wanted.is_empty() {
            return PhraseLookup { matches: Vec::new(), complete: true };
        }
        let inside = format!(" {wanted}");
        let count = u32::try_from(self.base_phrase_vectors().count()).unwrap_or(u32::MAX);
        let first = partition_point(count, |phrase| self.phrase(phrase) < wanted.as_str());
        let mut matches = Vec::new();
        // Phrases are sorted, so all that begin with the text follow each other; they are read before any other.
        let prefixed = (first..count).take_while(|&phrase| self.phrase(phrase).starts_with(&wanted));
        let prefixed = prefixed.take(PHRASES_READ as usize).inspect(|&phrase| {
            let exact = self.phrase(phrase).len() == wanted.len();
            let kind = if exact { PhraseMatchKind::Exact } else { PhraseMatchKind::Prefix };
            matches.push(self.phrase_match(phrase, kind));
        });
        let last = prefixed.last().map_or(first, |last| last + 1);
        let rest = (0..first).chain(last..count);
        for phrase in rest.take((PHRASES_READ - (last - first)) as usize) {
            if self.phrase(phrase).contains(&inside) {
                matches.push(self.phrase_match(phrase, PhraseMatchKind::Inside));
            }
        }
        // Phrases that commits added follow in no order, and those that no passage names any more are still there.
        for phrase in count..u32::try_from(self.phrases()).unwrap_or(u32::MAX) {
            let text = self.phrase(phrase);
            if text == wanted {
                matches.push(self.phrase_match(phrase, PhraseMatchKind::Exact));
            } else if text.starts_with(&wanted) {
                matches.push(self.phrase_match(phrase, PhraseMatchKind::Prefix));
            } else if text.contains(&inside) {
                matches.push(self.phrase_match(phrase, PhraseMatchKind::Inside));
            }
        }
        matches.retain(|found| self.is_base() || self.has_phrase(found.phrase));
        matches.sort_unstable_by(|a, b| {
            (a.kind, b.degree).cmp(&(b.kind, a.degree)).then_with(|| self.phrase_order(a.phrase, b.phrase))
        });
        matches.truncate(limit);
        PhraseLookup { matches, complete: count <= PHRASES_READ }
    }

    fn phrase_match(&self, phrase: u32, kind: PhraseMatchKind) -> PhraseMatch {
        let degree = self.degree(GraphNode { kind: NodeKind::Phrase, number: phrase });
        PhraseMatch { phrase, kind, degree }
    }
}
