//! Size limits of answers and of recorded evidence.

use serde::{Deserialize, Serialize};

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

/// Number of bytes by which an answer may still grow.
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

    /// Takes `bytes` bytes. Returns `false` if fewer are left, and then leaves none for later calls.
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

    /// Removes the last passages and triples if there is no room for all, and returns the number removed. Each list
    /// keeps its first ranks, without a gap.
    pub fn cut(&mut self, hits: &mut Vec<Hit>, triples: &mut Vec<TripleHit>) -> usize {
        let found = hits.len() + triples.len();
        let kept = hits.iter().take_while(|hit| self.take(hit.bytes())).count();
        hits.truncate(kept);
        let kept = triples.iter().take_while(|triple| self.take(triple.bytes())).count();
        triples.truncate(kept);
        found - hits.len() - triples.len()
    }
}

impl AnswerCut {
    /// Reports results left out of an answer of at most `limit` bytes. `None` if there are none.
    pub fn of(left_out: usize, limit: usize) -> Option<AnswerCut> {
        (left_out > 0).then_some(AnswerCut { left_out, limit })
    }
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
            let left_out = AnswerRoom::new(limit).cut(&mut cut, &mut Vec::new());
            assert_eq!(cut, hits[..kept]);
            assert_eq!(AnswerCut::of(left_out, limit), (kept < 5).then_some(AnswerCut { left_out: 5 - kept, limit }));
        }
    }
}
