//! Updates synonyms after a change to the set of phrases.
//!
//! A list that was not full contains every phrase near enough, so it loses removed phrases and gains new ones near
//! enough. A full list may have left phrases out; it stays valid if it lost none, because everything left out comes
//! after everything in it. Otherwise the list is computed again. The result therefore equals, to the bit, that of a
//! search over all phrases, where that search is exact.

use std::cmp::Ordering;

use super::{EXACT, MOST, Neighbors, eligible, scan};
use crate::dense::VectorFile;
use crate::error::IndexError;
use crate::graph::Graph;
use crate::graph::table::StringTable;

/// Phrases of an earlier graph and their synonyms. The vector of a text must not have changed.
pub(in crate::graph) trait EarlierSynonyms {
    /// First number that no phrase ever had.
    fn bound(&self) -> usize;

    /// Returns the phrases in use, in the order of their texts.
    fn in_order(&self) -> Vec<u32>;

    /// Text of a phrase.
    fn text(&self, phrase: u32) -> &str;

    /// Synonyms of a phrase and their scores.
    fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]);
}

/// Graph with all changes since its base snapshot. Every commit has kept its synonyms up to date, so a merge, which
/// changes no phrase, only renumbers them.
impl EarlierSynonyms for Graph {
    fn bound(&self) -> usize {
        self.phrases()
    }

    fn in_order(&self) -> Vec<u32> {
        self.phrases_in_order()
    }

    fn text(&self, phrase: u32) -> &str {
        self.phrase(phrase)
    }

    fn synonyms(&self, phrase: u32) -> (&[u32], &[f32]) {
        Graph::synonyms(self, phrase)
    }
}

impl Neighbors {
    /// Computes the synonyms of all `phrases`, as [`Neighbors::find`] does, but only for what changed, unless a full
    /// search is less work.
    pub(in crate::graph) fn renew(
        earlier: &dyn EarlierSynonyms,
        phrases: &StringTable,
        vectors: &VectorFile,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Neighbors, IndexError> {
        let order = earlier.in_order();
        let (moved, new) = moved(earlier, &order, phrases);
        let (columns, queries) = eligible(phrases);
        // Above the limit lists are approximate and may miss some, which an update would carry into an exact result.
        let before = order.iter().filter(|&&phrase| !earlier.text(phrase).is_empty()).count();
        if columns.len() <= EXACT && before > EXACT {
            return Neighbors::find(phrases, vectors, threads, done);
        }
        // The usable part of each phrase's old list, which lacks only new phrases; `None` to compute it again.
        let mut kept: Vec<Option<Vec<(u32, f32)>>> = vec![None; phrases.len()];
        for (before, now) in (0..).zip(&moved).filter_map(|(before, now)| Some((before, (*now)?))) {
            kept[now as usize] = list(earlier, before, &moved);
        }
        let (old, again): (Vec<u32>, Vec<u32>) = queries.iter().partition(|&&query| kept[query as usize].is_some());
        let fresh: Vec<u32> = columns.iter().copied().filter(|column| new.binary_search(column).is_ok()).collect();
        // Products to compute: new lists against everything, kept lists against new phrases only.
        let work = again.len() as u64 * columns.len() as u64 + old.len() as u64 * fresh.len() as u64;
        // A full search costs about as much as this many products.
        let anew = queries.len() as u64 * columns.len().min(EXACT) as u64;
        if work > anew / 2 {
            return Neighbors::find(phrases, vectors, threads, done);
        }
        let mut found = scan::nearest(vectors, &again, &columns, threads, done)?;
        found.extend(scan::nearest(vectors, &old, &fresh, threads, &|more| done(again.len() as u64 + more))?);
        for (query, best) in &mut found {
            let list = kept[*query as usize].take();
            list.into_iter().flatten().for_each(|(number, score)| best.offer(number, score));
        }
        // `gather` expects queries in order, and the two scans ran one after the other.
        found.sort_unstable_by_key(|(query, _)| *query);
        Ok(Neighbors::gather(phrases.len(), found))
    }
}

/// Renumbers an old list. `None` if it must be computed again.
fn list(earlier: &dyn EarlierSynonyms, before: u32, moved: &[Option<u32>]) -> Option<Vec<(u32, f32)>> {
    let (numbers, scores) = earlier.synonyms(before);
    let now = |number: &u32| moved.get(*number as usize).copied().flatten();
    let left: Vec<_> = numbers.iter().zip(scores).filter_map(|(number, &score)| Some((now(number)?, score))).collect();
    (numbers.len() < MOST || left.len() == numbers.len()).then_some(left)
}

/// Returns the new number of every old phrase that is still present, and the phrases that are new. `order` holds the
/// old phrases in the order of their texts.
fn moved(earlier: &dyn EarlierSynonyms, order: &[u32], now: &StringTable) -> (Vec<Option<u32>>, Vec<u32>) {
    let mut moved = vec![None; earlier.bound()];
    let mut new = Vec::new();
    let mut rest = order.iter().copied().peekable();
    for number in 0..u32::try_from(now.len()).unwrap_or(u32::MAX) {
        let text = now.get(number);
        while rest.next_if(|&phrase| earlier.text(phrase).cmp(text) == Ordering::Less).is_some() {}
        match rest.next_if(|&phrase| earlier.text(phrase) == text) {
            Some(phrase) => moved[phrase as usize] = Some(number),
            None => new.push(number),
        }
    }
    (moved, new)
}
