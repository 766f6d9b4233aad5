//! BM25 search among some passages. Scoring skips the others, so the list is full if enough allowed passages match;
//! scores equal those of a search over all passages.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tantivy::query::{EnableScoring, Query};
use tantivy::{Score, Searcher};

use crate::condition::AllowedPassages;
use crate::scored::Scored;

/// Scored passage, ordered so that the worst is the largest.
#[derive(Debug, Clone, Copy)]
struct Badness(Scored);

impl Ord for Badness {
    fn cmp(&self, other: &Badness) -> Ordering {
        other.0.score.total_cmp(&self.0.score).then(self.0.number.cmp(&other.0.number))
    }
}

impl PartialOrd for Badness {
    fn partial_cmp(&self, other: &Badness) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Badness {
    fn eq(&self, other: &Badness) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Badness {}

/// Returns the `limit` allowed passages with the highest scores, ties in corpus order; `limit` must not be 0.
pub(super) fn best(
    searcher: &Searcher,
    query: &dyn Query,
    limit: usize,
    allowed: &AllowedPassages,
) -> tantivy::Result<Vec<Scored>> {
    let weight = query.weight(EnableScoring::enabled_from_searcher(searcher))?;
    let mut found: BinaryHeap<Badness> = BinaryHeap::new();
    for segment in searcher.segment_readers() {
        // tantivy skips documents that do not score above the returned threshold.
        weight.for_each_pruning(Score::MIN, segment, &mut |number, score| {
            if allowed.contains(number) {
                found.push(Badness(Scored { number, score }));
                // The heap keeps `limit` passages with the worst on top, so only that one has to go.
                if found.len() > limit {
                    found.pop();
                }
            }
            match found.peek() {
                Some(worst) if found.len() == limit => worst.0.score,
                _ => Score::MIN,
            }
        })?;
    }
    Ok(found.into_sorted_vec().into_iter().map(|Badness(scored)| scored).collect())
}
