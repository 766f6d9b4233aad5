//! Sets of passages.

use crate::scored::{Scored, best};

/// Set of passages of one snapshot, one bit per passage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedPassages {
    words: Vec<u64>,
    len: usize,
}

impl AllowedPassages {
    /// Empty set for this number of passages.
    pub(crate) fn none(passages: usize) -> AllowedPassages {
        AllowedPassages { words: vec![0; passages.div_ceil(64)], len: 0 }
    }

    /// Set of all passages below this number.
    pub(crate) fn all(passages: usize) -> AllowedPassages {
        let mut all = AllowedPassages { words: vec![u64::MAX; passages.div_ceil(64)], len: passages };
        if let Some(last) = all.words.last_mut().filter(|_| !passages.is_multiple_of(64)) {
            *last = (1 << (passages % 64)) - 1;
        }
        all
    }

    /// Makes room for numbers below `passages`.
    pub(crate) fn reach(&mut self, passages: usize) {
        self.words.resize(passages.div_ceil(64).max(self.words.len()), 0);
    }

    /// Removes a passage.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return };
        let bit = 1_u64 << (number % 64);
        self.len -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Iterates over every `step`-th number in ascending order, beginning with the first.
    pub(crate) fn every(&self, step: usize) -> impl Iterator<Item = u32> {
        let mut skip = 0;
        self.words.iter().zip(0_u32..).flat_map(move |(&word, place)| {
            let mut found = Vec::new();
            let count = word.count_ones() as usize;
            // Whole words are skipped by their number of bits.
            if skip < count {
                for bit in (0..64_u32).filter(|bit| (word >> bit) & 1 == 1) {
                    if skip == 0 {
                        found.push(64 * place + bit);
                        skip = step;
                    }
                    skip -= 1;
                }
            } else {
                skip -= count;
            }
            found
        })
    }

    /// Adds a passage. Ignores numbers out of range.
    pub(crate) fn insert(&mut self, number: u32) {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return };
        let bit = 1_u64 << (number % 64);
        // Counted on insertion, since every search asks for the number.
        self.len += usize::from(*word & bit == 0);
        *word |= bit;
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| (word >> (number % 64)) & 1 == 1)
    }

    /// Number of passages in the set.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Iterates over the numbers in ascending order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.words.iter().zip(0_u32..).flat_map(|(&word, place)| {
            (0..64_u32).filter(move |bit| (word >> *bit) & 1 == 1).map(move |bit| 64 * place + bit)
        })
    }
}

/// Returns `true` if a passage may be found. `None` allows all.
pub(crate) fn admits(allowed: Option<&AllowedPassages>, number: u32) -> bool {
    allowed.is_none_or(|allowed| allowed.contains(number))
}

/// Selection of the best passages: how many, and among which.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopPassages<'a> {
    pub(crate) limit: usize,
    pub(crate) among: Option<&'a AllowedPassages>,
}

impl TopPassages<'_> {
    /// Returns the best allowed passages, best first.
    pub(crate) fn best(self, scored: impl Iterator<Item = Scored>) -> Vec<Scored> {
        best(scored.filter(|scored| admits(self.among, scored.number)).collect(), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_of_some_is_found() {
        for count in [0, 1, 63, 64, 65, 200] {
            let mut some = AllowedPassages::all(count);
            assert_eq!((some.len(), some.numbers().count()), (count, count));
            (0..count as u32).filter(|number| number % 7 == 2).for_each(|number| some.remove(number));
            for step in [1, 3, 64, 100] {
                let expected: Vec<u32> = some.numbers().step_by(step).collect();
                assert_eq!(some.every(step).collect::<Vec<_>>(), expected);
            }
            assert_eq!(some.numbers().count(), some.len());
        }
    }
}
