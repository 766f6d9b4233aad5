//! Synonyms: phrases whose vectors are close to that of a phrase.
//!
//! Defined as in HippoRAG 2 (`HippoRAG.py:add_synonymy_edges`): a phrase of more than two letters and digits has as
//! synonyms its nearest other non-empty phrases with a cosine of at least [`THRESHOLD`], and at most [`MOST`] of them.
//! Ties are in the order of the phrases.

mod approximate;
mod best_neighbors;
mod parallel;
mod scan;
mod sketch_basis;
mod sketches;
mod tiles;
mod update;

use std::path::Path;

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use super::phrase::has_synonyms;
use super::table::{StringTable, starts};
use crate::dense::{VectorFile, VectorRows};
use crate::error::IndexError;

use best_neighbors::BestNeighbors;
pub(super) use sketches::Sketches;
#[cfg(test)]
use update::EarlierSynonyms;

/// Minimum cosine of synonyms (`synonymy_edge_sim_threshold`).
pub(crate) const THRESHOLD: f32 = 0.8;

/// Maximum number of synonyms of a phrase: HippoRAG 2 stops counting when there are more than 100.
pub(crate) const MOST: usize = 101;

/// Upper bound on the rounding error of a sum of a few thousand products of unit vectors.
const SLACK: f32 = 1e-4;

/// Largest number of phrases compared pairwise: some seconds of work, about as much as the approximate search takes.
/// More phrases are searched approximately, which avoids quadratic growth.
const EXACT: usize = 1 << 16;

/// Synonyms of every phrase, in memory, by row and sorted by number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Neighbors {
    offsets: Vec<u64>,
    numbers: Vec<u32>,
    scores: Vec<f32>,
}

impl Neighbors {
    /// Builds the rows from unsorted lists of numbers and scores.
    pub(super) fn of(lists: impl Iterator<Item = Vec<(u32, f32)>>) -> Neighbors {
        let mut neighbors = Neighbors { offsets: vec![0], numbers: Vec::new(), scores: Vec::new() };
        for mut list in lists {
            list.sort_unstable_by_key(|&(number, _)| number);
            neighbors.numbers.extend(list.iter().map(|&(number, _)| number));
            neighbors.scores.extend(list.iter().map(|&(_, score)| score));
            neighbors.offsets.push(neighbors.numbers.len() as u64);
        }
        neighbors
    }

    /// Finds the synonyms of all `phrases` with these vectors: exactly for at most [`EXACT`] phrases, approximately for
    /// more, and then deterministically only with one thread. Calls `done` with the equivalent number of phrases
    /// finished.
    pub(super) fn find(
        phrases: &StringTable,
        vectors: &VectorFile,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Neighbors, IndexError> {
        let (columns, queries) = eligible(phrases);
        let nearest = if columns.len() > EXACT { approximate::nearest } else { scan::nearest };
        Ok(Neighbors::gather(phrases.len(), nearest(vectors, &queries, &columns, threads, done)?))
    }

    /// Gathers lists into rows, one per phrase; `found` is sorted by phrase and may skip some.
    fn gather(phrases: usize, found: Vec<(u32, BestNeighbors)>) -> Neighbors {
        let mut found = found.into_iter().peekable();
        let list = |phrase| found.next_if(|(query, _)| *query as usize == phrase).map(|(_, best)| best.list());
        Neighbors::of((0..phrases).map(list).map(Option::unwrap_or_default))
    }

    /// Number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Iterates over the synonyms of a phrase and their scores.
    pub(crate) fn row(&self, phrase: usize) -> impl Iterator<Item = (u32, f32)> + '_ {
        let row = self.offsets[phrase] as usize..self.offsets[phrase + 1] as usize;
        self.numbers[row.clone()].iter().copied().zip(self.scores[row].iter().copied())
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        columns.column(&self.offsets)?;
        columns.column(&self.numbers)?;
        columns.column(&self.scores)?;
        columns.finish()
    }
}

/// A phrase with its synonyms and their similarities.
pub(crate) type PhraseSynonyms = (u32, Vec<(u32, f32)>);

/// Finds for each of some phrases all others that are similar enough to be synonyms and that `usable` accepts, exactly.
/// `sketches` has one sketch per phrase.
pub(super) fn all_similar(
    vectors: &dyn VectorRows,
    sketches: &Sketches,
    queries: &[u32],
    usable: &(dyn Fn(u32) -> bool + Sync),
    threads: usize,
) -> Result<Vec<PhraseSynonyms>, IndexError> {
    let found = queries.iter().map(|&query| (query, BestNeighbors::all())).collect();
    let column = |place: usize| u32::try_from(place).ok().filter(|&phrase| usable(phrase));
    let found = scan::Scan { vectors, sketches, column: &column }.compare(found, threads, &|_| ())?;
    Ok(found.into_iter().map(|(phrase, best)| (phrase, best.list())).collect())
}

/// Returns the phrases that can be synonyms, and those that can have synonyms.
fn eligible(phrases: &StringTable) -> (Vec<u32>, Vec<u32>) {
    let all = 0..u32::try_from(phrases.len()).unwrap_or(u32::MAX);
    // HippoRAG 2 asks for the synonyms of longer phrases only, but short ones are among the answers.
    let columns = all.clone().filter(|&number| !phrases.get(number).is_empty()).collect();
    (columns, all.filter(|&number| has_synonyms(phrases.get(number))).collect())
}

/// Synonyms of a snapshot, memory-mapped.
#[derive(Debug)]
pub(crate) struct Synonyms {
    offsets: Column<u64>,
    numbers: Column<u32>,
    scores: Column<f32>,
}

impl Synonyms {
    pub(super) fn open(path: &Path, phrases: usize) -> Result<Synonyms, IndexError> {
        let mut columns = ColumnFile::open(path)?;
        let stored = Synonyms { offsets: columns.take()?, numbers: columns.take()?, scores: columns.take()? };
        let fits = stored.offsets.len() == phrases + 1
            && starts(&stored.offsets, stored.numbers.len())
            && stored.scores.len() == stored.numbers.len();
        if !fits {
            return Err(columns.corrupt(format!("it does not hold the synonyms of {phrases} phrases")));
        }
        // Every search walks these edges unchecked, so they are checked once, on opening.
        let sound = |phrase: usize| {
            let (numbers, scores) = stored.row(phrase);
            numbers.is_sorted_by(|a, b| a < b)
                && numbers.last().is_none_or(|&last| (last as usize) < phrases)
                && scores.iter().all(|&score| score >= THRESHOLD && score.is_finite())
        };
        if (0..phrases).all(sound) { Ok(stored) } else { Err(columns.corrupt("a list of synonyms is out of order")) }
    }

    /// Number of pairs.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the synonyms of a phrase, sorted by number, and their scores.
    pub(crate) fn get(&self, phrase: u32) -> (&[u32], &[f32]) {
        self.row(phrase as usize)
    }

    fn row(&self, phrase: usize) -> (&[u32], &[f32]) {
        let bounds = self.offsets.get(phrase..phrase + 2);
        let row = bounds.map_or(0..0, |at| at[0] as usize..at[1] as usize);
        (&self.numbers[row.clone()], &self.scores[row])
    }
}

#[cfg(test)]
mod tests;
