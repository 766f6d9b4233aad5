//! A list of block numbers in the order of their last use. Every operation takes constant time.

// `BlockPool` never numbers a block `u32::MAX`.
const NONE: u32 = u32::MAX;

/// A doubly linked list through two arrays indexed by block.
#[derive(Debug)]
pub(super) struct Lru {
    next: Vec<u32>,
    previous: Vec<u32>,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Lru {
    pub(super) fn new(blocks: usize) -> Self {
        Self { next: vec![NONE; blocks], previous: vec![NONE; blocks], oldest: NONE, newest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a block that is not in the list.
    pub(super) fn push(&mut self, block: u32) {
        self.previous[block as usize] = self.newest;
        self.next[block as usize] = NONE;
        match self.newest {
            NONE => self.oldest = block,
            newest => self.next[newest as usize] = block,
        }
        self.newest = block;
        self.len += 1;
    }

    /// Takes out a block that is in the list.
    pub(super) fn remove(&mut self, block: u32) {
        let previous = self.previous[block as usize];
        let next = self.next[block as usize];
        match previous {
            NONE => self.oldest = next,
            // The removed block keeps its links: `push` overwrites them.
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.previous[next as usize] = previous,
        }
        self.len -= 1;
    }

    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
        let block = self.oldest;
        (block != NONE).then(|| {
            self.remove(block);
            block
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_queue_with_removal(operations in prop::collection::vec(0u32..9, 0..200)) {
            let mut list = Lru::new(8);
            let mut model = VecDeque::new();
            for block in operations {
                if block == 8 {
                    prop_assert_eq!(list.pop_oldest(), model.pop_front());
                } else if let Some(at) = model.iter().position(|other| *other == block) {
                    list.remove(block);
                    model.remove(at);
                } else {
                    list.push(block);
                    model.push_back(block);
                }
                prop_assert_eq!(list.len(), model.len());
            }
            while let Some(block) = list.pop_oldest() {
                prop_assert_eq!(Some(block), model.pop_front());
            }
            prop_assert!(model.is_empty());
        }
    }
}
