//! IDs of documents that are near to an unknown one, for suggestions.

use std::collections::BinaryHeap;

/// Maximum length in bytes of an ID that is compared by edit distance.
const LONGEST: usize = 200;

/// The nearest IDs among those that were offered.
#[derive(Debug)]
pub(crate) struct NearestIds<'a> {
    id: &'a str,
    limit: usize,
    /// Distance, number of the document, and ID. The first one is the farthest.
    heap: BinaryHeap<(usize, u32, String)>,
}

impl<'a> NearestIds<'a> {
    /// Keeps up to `limit` IDs that are near to `id`.
    pub(crate) fn new(id: &'a str, limit: usize) -> Self {
        Self { id, limit, heap: BinaryHeap::new() }
    }

    /// Keeps the ID of a document if it is nearer than the farthest one that is kept.
    pub(crate) fn offer(&mut self, number: u32, other: String) {
        let Some(distance) = distance(self.id, &other) else { return };
        self.heap.push((distance, number, other));
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
    }

    /// Returns the IDs, nearest first.
    pub(crate) fn into_ids(self) -> Vec<String> {
        self.heap.into_sorted_vec().into_iter().map(|(_, _, id)| id).collect()
    }
}

/// Returns a rank of `other` as a suggestion for `id`; smaller is nearer. `None` if `other` is no suggestion.
fn distance(id: &str, other: &str) -> Option<usize> {
    let id = id.to_lowercase();
    let other = other.to_lowercase();
    if id == other {
        return Some(0);
    }
    if other.strip_prefix(&id).is_some_and(|rest| rest.starts_with('#')) {
        return Some(1);
    }
    // A name in a folder, given without the folder.
    let ends = other.strip_suffix(&id).is_some_and(|folder| folder.ends_with('/'));
    if ends || (id.len() > 2 && other.starts_with(&id)) {
        return Some(2);
    }
    let allowed = (id.chars().count() / 3).min(3);
    if id.len().max(other.len()) > LONGEST || id.len().abs_diff(other.len()) > 4 * allowed {
        return None;
    }
    Some(strsim::damerau_levenshtein(&id, &other)).filter(|&distance| distance <= allowed).map(|distance| 2 + distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_ids_are_kept() {
        let ids = ["siene", "thames", "Seine", "seine-map", "seine#2", "seine#1"];
        let nearest = |limit| {
            let mut nearest = NearestIds::new("seine", limit);
            for (number, id) in (0..).zip(ids) {
                nearest.offer(number, id.to_owned());
                assert!(nearest.heap.len() <= limit);
            }
            nearest.into_ids()
        };
        assert_eq!(nearest(3), ["Seine", "seine#2", "seine#1"]);
        assert_eq!(nearest(10), ["Seine", "seine#2", "seine#1", "seine-map", "siene"]);
        assert_eq!(nearest(0), [""; 0]);
    }

    #[test]
    fn near_ids_are_ranked_and_far_ones_are_none() {
        let ids = ["Seine", "seine#2", "seine-map", "rivers/seine", "siene", "thames", "s"];
        let found: Vec<_> = ids.iter().map(|other| distance("seine", other)).collect();
        assert_eq!(found, [Some(0), Some(1), Some(2), Some(2), Some(3), None, None]);
    }
}
