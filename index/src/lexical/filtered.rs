//! The best of some passages. The others are passed over while they are scored, so that the list is full whenever so many
//! match; scores are those that a search of all passages gives.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tantivy::query::{EnableScoring, Query};
use tantivy::{Score, Searcher};

use crate::condition::AllowedPassages;
use crate::scored::Scored;

/// A passage found, in an order in which the worst is the largest.
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

/// The `limit` passages that are allowed with the highest scores, of equal ones the first in the corpus; `limit` is not 0.
pub(super) fn best(
    searcher: &Searcher,
    query: &dyn Query,
    limit: usize,
    allowed: &AllowedPassages,
) -> tantivy::Result<Vec<Scored>> {
    let weight = query.weight(EnableScoring::enabled_from_searcher(searcher))?;
    let mut found: BinaryHeap<Badness> = BinaryHeap::new();
    for segment in searcher.segment_readers() {
        // tantivy passes over what scores no more than what is given back.
        weight.for_each_pruning(Score::MIN, segment, &mut |number, score| {
            if allowed.contains(number) {
                found.push(Badness(Scored { number, score }));
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
