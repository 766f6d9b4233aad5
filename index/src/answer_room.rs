//! Bound of the size of answers and of recorded evidence.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evidence::{Hit, TripleHit};

/// Part of an answer that was left out because of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnswerCut {
    /// Number of queries, of passages and triples, or of tokens with log-probabilities that are missing here.
    pub left_out: usize,
    /// Maximum size in bytes: of an answer (`--answer-bytes`), or of the evidence in a trace (`--evidence-bytes`).
    pub limit: usize,
}

/// Bytes that an answer may still grow by.
#[derive(Debug, Clone, Copy)]
pub struct AnswerRoom {
    left: usize,
    limit: usize,
}

impl AnswerRoom {
    /// Creates the room of an answer of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// Takes `bytes` bytes. Returns `false` if there are fewer, and takes none of them then or later.
    pub fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.left;
        // Nothing fits any more: a smaller result later would leave a gap in the ranks.
        self.left = if fits { self.left - bytes } else { 0 };
        fits
    }

    /// Returns the maximum size of the answer.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Removes the last passages and triples if there is no room for all, and returns their number. Their ranks are a
    /// prefix of those that were found, in lists of passages and triples alike.
    pub fn cut(&mut self, hits: &mut Vec<Hit>, triples: &mut Vec<TripleHit>) -> Option<AnswerCut> {
        let found = hits.len() + triples.len();
        let kept = hits.iter().take_while(|hit| self.take(hit_bytes(hit))).count();
        hits.truncate(kept);
        let kept = triples.iter().take_while(|triple| self.take(triple_bytes(triple))).count();
        triples.truncate(kept);
        let left_out = found - hits.len() - triples.len();
        (left_out > 0).then_some(AnswerCut { left_out, limit: self.limit })
    }
}

/// Upper bound of the size of the fields around the texts of a result.
const FIELDS: usize = 512;

/// Returns the approximate size of a passage in an answer. Escaping is not counted.
fn hit_bytes(hit: &Hit) -> usize {
    let metadata = hit.metadata.as_ref().map_or(0, map_bytes);
    // 32 bytes for the weight and the names of a step.
    let via = hit.path.graph.iter().flat_map(|rank| &rank.via).map(|edge| edge.phrase.len() + 32).sum::<usize>();
    FIELDS + hit.passage.id.len() + hit.passage.title.len() + hit.passage.text.len() + metadata + via
}

fn map_bytes(map: &Map<String, Value>) -> usize {
    map.iter().map(|(name, value)| name.len() + value_bytes(value) + 4).sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| value_bytes(item) + 1).sum(),
        Value::Object(map) => map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

fn triple_bytes(triple: &TripleHit) -> usize {
    let TripleHit { subject, relation, object, passages, .. } = triple;
    FIELDS + subject.len() + relation.len() + object.len() + passages.iter().map(|id| id.len() + 3).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{HitPath, Passage};

    #[test]
    fn the_last_results_are_left_out() {
        let hit = |rank: usize| {
            let passage = Passage { id: format!("p{rank}"), title: String::new(), text: "x".repeat(1000) };
            Hit { rank, score: 0.5, passage, metadata: None, path: HitPath::default() }
        };
        let hits: Vec<Hit> = (1..=5).map(hit).collect();
        for (limit, kept) in [(0, 0), (1_600, 1), (4_000, 2), (1 << 20, 5)] {
            let mut cut = hits.clone();
            let said = AnswerRoom::new(limit).cut(&mut cut, &mut Vec::new());
            assert_eq!(cut, hits[..kept]);
            assert_eq!(said, (kept < 5).then_some(AnswerCut { left_out: 5 - kept, limit }));
        }
    }
}
