//! The pool of KV blocks. Each block is either free, cached or referenced.

use std::collections::HashMap;

use super::lru::Lru;
use super::prefix::PrefixKey;

/// Reference counts and keys of all blocks. A block whose content is known by a [`PrefixKey`] outlives its last holder
/// as *cached*: it can be found and shared again until it is overwritten.
#[derive(Debug)]
pub(super) struct BlockPool {
    /// Reference count of each block.
    holders: Vec<u32>,
    /// Key of each block with known content.
    keys: Vec<Option<PrefixKey>>,
    known: HashMap<PrefixKey, u32>,
    free: Vec<u32>,
    cached: Lru,
    /// Number of blocks with at least one holder.
    used: usize,
    /// Sum of all reference counts.
    held: usize,
    /// Number of cached blocks overwritten since the last [`drain_overwritten`](Self::drain_overwritten).
    overwritten: usize,
}

impl BlockPool {
    pub(super) fn new(blocks: usize) -> Self {
        // Only a pool of 2³² blocks would be truncated here, and no model comes near that.
        let count = u32::try_from(blocks).unwrap_or(u32::MAX - 1);
        Self {
            holders: vec![0; count as usize],
            keys: vec![None; count as usize],
            known: HashMap::new(),
            // Reversed, so low block numbers are taken first and high ones stay unwritten.
            free: (0..count).rev().collect(),
            cached: Lru::new(count as usize),
            used: 0,
            held: 0,
            overwritten: 0,
        }
    }

    pub(super) fn total(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn cached(&self) -> usize {
        self.cached.len()
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the sum of all reference counts.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of blocks that [`take`](Self::take) can still give.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Returns the number of cached blocks overwritten since the last call.
    pub(super) fn drain_overwritten(&mut self) -> usize {
        std::mem::take(&mut self.overwritten)
    }

    /// Takes a block for new content, with one holder: a free block, else the least recently used cached one.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let block = self.cached.pop_oldest()?;
                self.forget(block);
                self.overwritten += 1;
                block
            }
        };
        self.holders[block as usize] = 1;
        self.used += 1;
        self.held += 1;
        Some(block)
    }

    /// Returns the block with this content.
    pub(super) fn find(&self, key: &PrefixKey) -> Option<u32> {
        self.known.get(key).copied()
    }

    /// Returns `true` if the block has several holders.
    pub(super) fn is_shared(&self, block: u32) -> bool {
        self.holders[block as usize] > 1
    }

    /// Adds a holder to a known or held block.
    pub(super) fn share(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        if *holders == 0 {
            self.cached.remove(block);
            self.used += 1;
        }
        *holders += 1;
        self.held += 1;
    }

    /// Removes a holder. After its last holder, a block is cached if its content is known, otherwise free.
    pub(super) fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        debug_assert!(*holders > 0, "block {block} was released more often than it was held");
        *holders -= 1;
        self.held -= 1;
        if *holders == 0 {
            self.used -= 1;
            match self.keys[block as usize] {
                Some(_) => self.cached.push(block),
                None => self.free.push(block),
            }
        }
    }

    /// Makes the content of a held block known under `key`. If another block has the same content, that one stays the
    /// known one.
    pub(super) fn register(&mut self, block: u32, key: PrefixKey) {
        debug_assert!(self.holders[block as usize] > 0, "block {block} is not held");
        // Two sessions may compute the same block at the same time; only one copy is found later.
        if self.keys[block as usize].is_none() && !self.known.contains_key(&key) {
            self.known.insert(key, block);
            self.keys[block as usize] = Some(key);
        }
    }

    /// Removes the key of a block, because its content is about to change or is not to be trusted.
    pub(super) fn forget(&mut self, block: u32) {
        if let Some(key) = self.keys[block as usize].take() {
            self.known.remove(&key);
        }
    }

    /// Frees all cached blocks. Held blocks stay as they are.
    pub(super) fn clear(&mut self) {
        while let Some(block) = self.cached.pop_oldest() {
            self.forget(block);
            self.free.push(block);
        }
    }

    /// Checks the sums of the invariant in constant time. `held` is the total number of block table entries.
    pub(super) fn balanced(&self, held: usize) -> bool {
        self.free.len() + self.cached.len() + self.used == self.total() && self.held == held
    }

    /// Checks the whole invariant against the block tables. Takes time in proportion to the pool.
    #[cfg(test)]
    pub(super) fn check<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) -> Result<(), String> {
        let mut holders = vec![0u32; self.total()];
        for block in tables.flatten() {
            holders[*block as usize] += 1;
        }
        if holders != self.holders {
            return Err(format!("holders are {:?}, tables say {holders:?}", self.holders));
        }
        for block in &self.free {
            if self.keys[*block as usize].is_some() || self.holders[*block as usize] > 0 {
                return Err(format!("block {block} is free and yet known or held"));
            }
        }
        let known = self.keys.iter().flatten().count();
        let sound = self.known.iter().all(|(key, block)| self.keys[*block as usize] == Some(*key));
        if known != self.known.len() || !sound {
            return Err("known blocks and keys differ".into());
        }
        let idle = (0..self.total()).filter(|block| self.holders[*block] == 0 && self.keys[*block].is_some()).count();
        if idle != self.cached.len() || !self.balanced(holders.iter().map(|count| *count as usize).sum()) {
            let free = self.free.len();
            let cached = self.cached.len();
            let used = self.used;
            return Err(format!("{free} free + {cached} cached + {used} used of {} blocks", self.total()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(number: u64) -> PrefixKey {
        PrefixKey::root(number, None, 0)
    }

    #[test]
    fn a_known_block_outlives_its_holder_until_its_place_is_needed() {
        let mut pool = BlockPool::new(2);
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        pool.register(first, key(1));
        pool.release(first);
        assert_eq!((pool.free(), pool.cached(), pool.used()), (0, 1, 1));
        assert_eq!(pool.find(&key(1)), Some(first));
        pool.release(second);
        assert_eq!(pool.take(), Some(second), "free blocks go first");
        assert_eq!(pool.take(), Some(first));
        assert_eq!(pool.find(&key(1)), None);
        assert_eq!(pool.take(), None);
        assert_eq!(pool.drain_overwritten(), 1);
        pool.check([[first, second].as_slice()].into_iter()).unwrap();
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_holder() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.register(block, key(1));
        pool.share(block);
        pool.release(block);
        assert_eq!((pool.cached(), pool.used()), (0, 1));
        pool.release(block);
        pool.share(block);
        assert_eq!((pool.cached(), pool.used()), (0, 1));
        pool.forget(block);
        pool.release(block);
        assert_eq!((pool.free(), pool.cached()), (1, 0));
    }

    #[test]
    fn what_is_cached_can_be_forgotten() {
        let mut pool = BlockPool::new(3);
        let blocks = [1, 2, 3].map(|number| {
            let block = pool.take().unwrap();
            pool.register(block, key(number));
            block
        });
        pool.release(blocks[0]);
        pool.release(blocks[2]);
        pool.clear();
        assert_eq!((pool.free(), pool.cached(), pool.used()), (2, 0, 1));
        assert_eq!([1, 2, 3].map(|number| pool.find(&key(number))), [None, Some(blocks[1]), None]);
        pool.check([[blocks[1]].as_slice()].into_iter()).unwrap();
        assert_eq!(pool.drain_overwritten(), 0, "nothing had to make room");
    }

    #[test]
    fn the_check_sees_a_leak_and_a_double_hold() {
        let mut pool = BlockPool::new(3);
        let block = pool.take().unwrap();
        assert!(pool.check(std::iter::empty()).is_err());
        assert!(pool.check([[block, block].as_slice()].into_iter()).is_err());
        assert!(pool.check([[block].as_slice()].into_iter()).is_ok());
        assert!(!pool.balanced(0) && pool.balanced(1));
    }
}
