//! Synonyms of a changed set of phrases, from those of the set before.
//!
//! A list that was not full holds every phrase near enough, so it loses those that are gone and gains the new ones near
//! enough. A full one may have left phrases out: it stands as long as it lost none, since what it left out comes after
//! everything in it; otherwise it is made again. So the lists are those that would come of all phrases anew, to the
//! bit, where those are found exactly.

use std::cmp::Ordering;

use super::{EXACT, MOST, Neighbours, Synonyms, eligible, scan};
use crate::dense::VectorFile;
use crate::error::IndexError;
use crate::graph::table::StringTable;

/// Phrases of before and their synonyms. The vector of a text must be the same before and now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreviousSynonyms<'a> {
    pub(crate) phrases: &'a StringTable,
    pub(crate) synonyms: &'a Synonyms,
}

impl Neighbours {
    /// The synonyms of all `phrases`, as [`Neighbours::find`] gives them, looking only at what changed; unless that is so
    /// much that finding all anew is less work.
    pub(in crate::graph) fn renew(
        earlier: PreviousSynonyms<'_>,
        phrases: &StringTable,
        vectors: &VectorFile,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Neighbours, IndexError> {
        let (moved, new) = moved(earlier.phrases, phrases);
        let (columns, queries) = eligible(phrases);
        // Lists over more than are scanned may lack some, and would go on lacking them where all can be found.
        if columns.len() <= EXACT && eligible(earlier.phrases).0.len() > EXACT {
            return Neighbours::find(phrases, vectors, threads, done);
        }
        // What each phrase has from before: a list that only lacks the new phrases, or nothing.
        let mut kept: Vec<Option<Vec<(u32, f32)>>> = vec![None; phrases.len()];
        for (before, now) in (0..).zip(&moved).filter_map(|(before, now)| Some((before, (*now)?))) {
            kept[now as usize] = list(earlier.synonyms, before, &moved);
        }
        let (old, again): (Vec<u32>, Vec<u32>) = queries.iter().partition(|&&query| kept[query as usize].is_some());
        let fresh: Vec<u32> = columns.iter().copied().filter(|column| new.binary_search(column).is_ok()).collect();
        let work = again.len() as u64 * columns.len() as u64 + old.len() as u64 * fresh.len() as u64;
        // Finding all anew takes about as long as holding each against so many.
        let anew = queries.len() as u64 * columns.len().min(EXACT) as u64;
        if work > anew / 2 {
            return Neighbours::find(phrases, vectors, threads, done);
        }
        let mut found = scan::nearest(vectors, &again, &columns, threads, done)?;
        found.extend(scan::nearest(vectors, &old, &fresh, threads, &|more| done(again.len() as u64 + more))?);
        for (query, best) in &mut found {
            let list = kept[*query as usize].take();
            list.into_iter().flatten().for_each(|(number, score)| best.offer(number, score));
        }
        found.sort_unstable_by_key(|(query, _)| *query);
        Ok(Neighbours::gather(phrases.len(), found))
    }
}

/// A list in the numbers of now, or nothing where it has to be made again.
fn list(synonyms: &Synonyms, before: u32, moved: &[Option<u32>]) -> Option<Vec<(u32, f32)>> {
    let (numbers, scores) = synonyms.get(before);
    let now = |number: &u32| moved.get(*number as usize).copied().flatten();
    let left: Vec<_> = numbers.iter().zip(scores).filter_map(|(number, &score)| Some((now(number)?, score))).collect();
    (numbers.len() < MOST || left.len() == numbers.len()).then_some(left)
}

/// The number now of every phrase of before, if it is still there, and the phrases that were not there before.
fn moved(before: &StringTable, now: &StringTable) -> (Vec<Option<u32>>, Vec<u32>) {
    let (mut moved, mut new) = (vec![None; before.len()], Vec::new());
    let mut at = 0;
    for number in 0..u32::try_from(now.len()).unwrap_or(u32::MAX) {
        let text = now.get(number);
        while at < before.len() && before.get(at as u32).cmp(text) == Ordering::Less {
            at += 1;
        }
        if at < before.len() && before.get(at as u32) == text {
            moved[at] = Some(number);
        } else {
            new.push(number);
        }
    }
    (moved, new)
}
