//! List that is cheap to clone while it grows: snapshots share all blocks but the last.

use std::sync::Arc;

/// Number of entries per block.
const BLOCK: usize = 1024;

/// List of entries that are appended and never removed.
#[derive(Debug, Clone)]
pub(crate) struct SharedList<T> {
    /// Blocks of [`BLOCK`] entries, except for the last.
    blocks: Vec<Arc<Vec<T>>>,
}

impl<T> Default for SharedList<T> {
    fn default() -> SharedList<T> {
        SharedList { blocks: Vec::new() }
    }
}

impl<T: Clone> SharedList<T> {
    pub(crate) fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        self.blocks.get(place / BLOCK)?.get(place % BLOCK)
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        Arc::make_mut(self.blocks.get_mut(place / BLOCK)?).get_mut(place % BLOCK)
    }

    pub(crate) fn push(&mut self, entry: T) {
        match self.blocks.last_mut().filter(|last| last.len() < BLOCK) {
            Some(last) => Arc::make_mut(last).push(entry),
            None => self.blocks.push(Arc::new(vec![entry])),
        }
    }

    /// Iterates over the entries from `first` on.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = &T> {
        let skipped = first % BLOCK;
        self.blocks.iter().skip(first / BLOCK).flat_map(|block| block.iter()).skip(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_clone_keeps_its_entries() {
        let mut list = SharedList::default();
        let mut earlier = vec![list.clone()];
        for place in 0..2500 {
            list.push(place);
            if place % 500 == 7 {
                earlier.push(list.clone());
            }
        }
        earlier.push(list.clone());
        for place in 0..2500 {
            list.get_mut(place).into_iter().for_each(|entry| *entry += 10_000);
        }
        assert_eq!(list.get_mut(2500), None);
        assert_eq!(earlier.iter().map(SharedList::len).collect::<Vec<_>>(), [0, 8, 508, 1008, 1508, 2008, 2500]);
        for list in earlier {
            assert!(list.iter_from(0).copied().eq(0..list.len()));
            assert!(
                [7, 1024, 1500]
                    .into_iter()
                    .all(|first| list.iter_from(first).copied().eq(first..list.len().max(first)))
            );
            assert!((0..2600).all(|place| list.get(place).copied() == (place < list.len()).then_some(place)));
        }
        assert!(list.iter_from(2048).copied().eq(12_048..12_500));
    }
}
