//! A growing sequence of token ids and the KV blocks that hold its computed part.

use waymark_models::BLOCK;

use super::pool::BlockPool;
use super::prefix::PrefixKey;

/// Token ids, append-only within a turn, and the blocks with their KV.
///
/// Invariants: registered blocks ≤ computed tokens / [`BLOCK`], and computed tokens ≤ tokens that fit into the blocks.
#[derive(Debug)]
pub(super) struct Sequence {
    ids: Vec<u32>,
    /// Number of leading `ids` whose KV is in the table's blocks.
    computed: usize,
    /// Highest value of `computed` so far. Computing a token below it counts as computing it again.
    peak: usize,
    table: Vec<u32>,
    /// Number of leading blocks that are registered or came from the cache. They are never written again.
    ///
    /// The next block may be shared as well, after a fork or a cut. Before a write,
    /// [`own_open_block`](Self::own_open_block) makes it the sequence's own.
    registered: usize,
    root: PrefixKey,
    /// Keys of the leading full blocks of `ids`, computed on demand.
    keys: Vec<PrefixKey>,
}

/// The part of a sequence that a pass computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SequenceRow<'a> {
    /// Ids to compute.
    pub(super) ids: &'a [u32],
    /// Position of the first id.
    pub(super) start: usize,
    /// Blocks of all tokens up to the last id, and of the proposed tokens after it.
    pub(super) table: &'a [u32],
}

impl Sequence {
    /// Creates an empty sequence, whose first block has the parent key `root`.
    pub(super) fn new(root: PrefixKey) -> Self {
        Self { ids: Vec::new(), computed: 0, peak: 0, table: Vec::new(), registered: 0, root, keys: Vec::new() }
    }

    /// Returns a sequence of the first `keep` tokens, at least one, that shares the blocks of their computed part.
    /// Leaves the last token to compute, since only a computed token gives logits.
    pub(super) fn fork(&self, keep: usize, pool: &mut BlockPool) -> Self {
        let computed = self.computed.min(keep - 1);
        let table = self.table[..computed.div_ceil(BLOCK)].to_vec();
        table.iter().for_each(|block| pool.share(*block));
        Self {
            ids: self.ids[..keep].to_vec(),
            computed,
            peak: self.peak.min(keep),
            table,
            registered: self.registered.min(computed / BLOCK),
            root: self.root,
            keys: self.keys.iter().take(keep / BLOCK).copied().collect(),
        }
    }

    /// Returns `true` if the next token goes into a block whose beginning is computed and that others hold as well.
    pub(super) fn ends_in_shared_block(&self, pool: &BlockPool) -> bool {
        self.open_block().is_some_and(|block| pool.is_shared(block))
    }

    /// Makes the block of the next token the sequence's own, if its beginning is computed, so others never see a
    /// change. If the block is shared, takes one from the pool and returns the old and the new block to copy.
    pub(super) fn own_open_block(&mut self, pool: &mut BlockPool) -> Option<(u32, u32)> {
        let shared = self.open_block()?;
        if !pool.is_shared(shared) {
            // After a cut, the content by which others find the block is about to change.
            pool.forget(shared);
            return None;
        }
        let own = pool.take()?;
        pool.release(shared);
        self.table[self.computed / BLOCK] = own;
        Some((shared, own))
    }

    /// Returns the block of the next token, if its beginning is computed.
    fn open_block(&self) -> Option<u32> {
        let open = !self.computed.is_multiple_of(BLOCK);
        self.table.get(self.computed / BLOCK).copied().filter(|_| open)
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Appends a sampled token.
    pub(super) fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    /// Returns the number of leading blocks that are never written again.
    pub(super) fn registered(&self) -> usize {
        self.registered
    }

    /// Returns the number of blocks that the sequence holds.
    pub(super) fn blocks(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &[u32] {
        &self.table
    }

    /// Returns the next `tokens` tokens to compute, with blocks for `proposed` tokens after them. The sequence must
    /// hold the blocks for all of them.
    pub(super) fn row(&self, tokens: usize, proposed: usize) -> SequenceRow<'_> {
        let start = self.computed;
        let end = start + tokens;
        SequenceRow { ids: &self.ids[start..end], start, table: &self.table[..(end + proposed).div_ceil(BLOCK)] }
    }

    /// Returns the number of tokens to compute before the next one can be sampled.
    pub(super) fn pending(&self) -> usize {
        self.ids.len() - self.computed
    }

    /// Returns the number of blocks still missing for all ids.
    pub(super) fn missing(&self) -> usize {
        // While proposed tokens are verified, there may be more blocks than the ids need.
        self.ids.len().div_ceil(BLOCK).saturating_sub(self.table.len())
    }

    /// Takes a block from the pool for the next ids. Returns `false` if none is left.
    pub(super) fn take_block(&mut self, pool: &mut BlockPool) -> bool {
        let block = pool.take();
        self.table.extend(block);
        block.is_some()
    }

    /// Takes blocks for up to `proposed` tokens after the last id. Returns the number of tokens that fit.
    pub(super) fn reserve(&mut self, proposed: usize, pool: &mut BlockPool) -> usize {
        let wanted = (self.ids.len() + proposed).div_ceil(BLOCK);
        while self.table.len() < wanted && self.take_block(pool) {}
        proposed.min((self.table.len() * BLOCK).saturating_sub(self.ids.len()))
    }

    /// Releases the blocks beyond those that the ids need: the reserved blocks whose tokens were rejected.
    pub(super) fn trim(&mut self, pool: &mut BlockPool) {
        self.shorten(self.ids.len().div_ceil(BLOCK), pool);
    }

    /// Shares cached blocks with a sequence that holds none. Leaves at least one token to compute, since only a
    /// computed token gives logits. Returns `false` if the sequence should wait for a block that `is_promised`.
    pub(super) fn share_cached_blocks(
        &mut self,
        pool: &mut BlockPool,
        is_promised: impl Fn(&PrefixKey) -> bool,
    ) -> bool {
        let (known, keys) = self.shareable(pool);
        if keys.get(known.len()).is_some_and(is_promised) {
            return false;
        }
        for block in &known {
            pool.share(*block);
        }
        self.computed = known.len() * BLOCK;
        self.registered = known.len();
        self.table = known;
        true
    }

    /// Returns the leading blocks that are cached, and the keys of all blocks that can be shared.
    pub(super) fn shareable(&mut self, pool: &BlockPool) -> (Vec<u32>, &[PrefixKey]) {
        // Excludes the block of the last token, which must be computed for its logits.
        let full = (self.ids.len() - 1) / BLOCK;
        let keys = self.keys(full);
        (keys.iter().map_while(|key| pool.find(key)).collect(), keys)
    }

    /// Records that the sequence enters the batch with its present blocks. Returns `true` if no token of it was
    /// computed or found before.
    pub(super) fn enter_batch(&mut self) -> bool {
        let first = self.peak == 0;
        self.peak = self.peak.max(self.computed);
        first
    }

    /// Returns the number of registered blocks and the keys of all full ones.
    pub(super) fn keys_of_full_blocks(&mut self) -> (usize, &[PrefixKey]) {
        let registered = self.registered;
        (registered, self.keys(self.ids.len() / BLOCK))
    }

    /// Returns the keys of the first `blocks` blocks, which must be full.
    pub(super) fn keys(&mut self, blocks: usize) -> &[PrefixKey] {
        // Each key includes its parent's, so a key stands for the whole prefix and not for its block alone.
        for index in self.keys.len()..blocks {
            let parent = if index == 0 { self.root } else { self.keys[index - 1] };
            self.keys.push(parent.child(&self.ids[index * BLOCK..(index + 1) * BLOCK]));
        }
        &self.keys[..blocks]
    }

    /// Records that the KV of `tokens` more tokens was written, and registers blocks that became full. Returns how many
    /// of the tokens had been computed before.
    pub(super) fn advance(&mut self, tokens: usize, pool: &mut BlockPool) -> usize {
        let again = self.peak.min(self.computed + tokens).saturating_sub(self.computed);
        self.computed += tokens;
        self.peak = self.peak.max(self.computed);
        let full = self.computed / BLOCK;
        if full > self.registered {
            self.keys(full);
            for index in self.registered..full {
                pool.register(self.table[index], self.keys[index]);
            }
            self.registered = full;
        }
        again
    }

    /// Releases all blocks. Blocks with known content stay in the cache, the first ones longest, so nothing is
    /// lost until they are overwritten.
    pub(super) fn release(&mut self, pool: &mut BlockPool) {
        // Last block first: the least recently used cached block is overwritten first, and a prefix is useless without
        // its beginning.
        while let Some(block) = self.table.pop() {
            pool.release(block);
        }
        self.computed = 0;
        self.registered = 0;
    }

    /// Releases all blocks and removes their content from the cache.
    pub(super) fn discard(&mut self, pool: &mut BlockPool) {
        for block in &self.table {
            pool.forget(*block);
        }
        self.release(pool);
    }

    /// Begins a turn: keeps the first `keep` tokens and appends `append`. Leaves at least one token to compute, since
    /// only a computed token gives logits.
    pub(super) fn extend(&mut self, keep: usize, append: &[u32], pool: &mut BlockPool) {
        if keep < self.ids.len() {
            self.ids.truncate(keep);
            self.keys.truncate(keep / BLOCK);
            self.peak = self.peak.min(keep);
            self.forget(keep, pool);
        }
        self.ids.extend_from_slice(append);
        // Happens when the kept tokens were all computed and no token was appended.
        if self.computed == self.ids.len() {
            self.forget(self.ids.len() - 1, pool);
        }
    }

    /// Discards the KV from position `from` on, and releases the blocks no longer needed.
    fn forget(&mut self, from: usize, pool: &mut BlockPool) {
        self.computed = self.computed.min(from);
        self.shorten(from.div_ceil(BLOCK), pool);
        self.registered = self.registered.min(from / BLOCK);
    }

    /// Releases all blocks but the first `blocks`.
    fn shorten(&mut self, blocks: usize, pool: &mut BlockPool) {
        while self.table.len() > blocks
            && let Some(block) = self.table.pop()
        {
            pool.release(block);
        }
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let paged = self.computed <= self.table.len() * BLOCK && self.registered * BLOCK <= self.computed;
        // There is always a token left to compute, or the next turn would have no logits to sample from.
        if paged && self.computed < self.ids.len() { Ok(()) } else { Err(format!("an unsound sequence: {self:?}")) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn computed(tokens: u32, pool: &mut BlockPool) -> Sequence {
        let mut sequence = Sequence::new(PrefixKey::root(0, None, 0));
        sequence.ids.extend(0..tokens);
        for _ in 0..sequence.missing() {
            sequence.table.push(pool.take().unwrap());
        }
        assert_eq!(sequence.advance(tokens as usize, pool), 0);
        sequence
    }

    #[test]
    fn a_cut_inside_a_known_block_makes_it_unknown_once_it_is_written() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(40, &mut pool);
        let key = sequence.keys(2)[1];
        assert_eq!(sequence.registered, 2);
        sequence.extend(20, &[100, 101, 102, 103], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (20, 2, 1));
        assert!(pool.find(&key).is_some() && !sequence.ends_in_shared_block(&pool));
        assert_eq!(sequence.own_open_block(&mut pool), None);
        assert_eq!(pool.find(&key), None);
        assert_eq!(sequence.advance(4, &mut pool), 0, "nothing is computed again");
        pool.check([sequence.table.as_slice()].into_iter()).unwrap();
    }

    #[test]
    fn a_fork_shares_every_block_until_one_of_both_writes() {
        let mut pool = BlockPool::new(8);
        let mut first = computed(40, &mut pool);
        first.push(7);
        let mut fork = first.fork(41, &mut pool);
        assert_eq!((fork.ids(), fork.computed, fork.registered, pool.used()), (first.ids(), 40, 2, 3));
        assert!(first.ends_in_shared_block(&pool) && fork.ends_in_shared_block(&pool));
        let shared = fork.table[2];
        assert_eq!(fork.own_open_block(&mut pool), Some((shared, fork.table[2])));
        assert_eq!((first.own_open_block(&mut pool), pool.used()), (None, 4), "the last holder copies nothing");
        assert_eq!((first.advance(1, &mut pool), fork.advance(1, &mut pool)), (0, 0));
        pool.check([first.table.as_slice(), fork.table.as_slice()].into_iter()).unwrap();
        first.release(&mut pool);
        fork.release(&mut pool);
        assert_eq!((pool.used(), pool.cached()), (0, 2));
    }

    /// Forks at every length. A fork inside a known block copies that block, and the original stays known.
    #[test]
    fn a_fork_of_a_part_computes_its_last_token_again() {
        for keep in 1..=40 {
            let mut pool = BlockPool::new(8);
            let mut first = computed(40, &mut pool);
            first.push(7);
            let key = first.keys(2)[1];
            let mut fork = first.fork(keep, &mut pool);
            fork.check().unwrap();
            assert_eq!((fork.pending(), fork.ids()), (1, &first.ids[..keep]));
            let open = !(keep - 1).is_multiple_of(BLOCK);
            assert_eq!((fork.ends_in_shared_block(&pool), fork.own_open_block(&mut pool).is_some()), (open, open));
            while fork.missing() > 0 {
                assert!(fork.take_block(&mut pool));
            }
            assert_eq!(fork.advance(1, &mut pool), 1, "{keep}");
            assert!(pool.find(&key).is_some());
            pool.check([first.table.as_slice(), fork.table.as_slice()].into_iter()).unwrap();
        }
    }

    #[test]
    fn a_cut_in_its_own_last_block_loses_nothing() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(40, &mut pool);
        sequence.extend(35, &[9], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (35, 3, 2));
        sequence.extend(32, &[9], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (32, 2, 2));
    }

    #[test]
    fn a_turn_without_new_tokens_computes_the_last_one_again() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(40, &mut pool);
        sequence.extend(40, &[], &mut pool);
        assert_eq!((sequence.pending(), sequence.registered), (1, 2));
        sequence.extend(32, &[], &mut pool);
        assert_eq!((sequence.pending(), sequence.table.len(), sequence.registered), (1, 2, 1));
    }

    #[test]
    fn reserved_blocks_go_back_unless_their_tokens_are_accepted() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(30, &mut pool);
        sequence.push(7);
        assert_eq!(sequence.reserve(4, &mut pool), 4, "tokens 31 to 34");
        assert_eq!((sequence.table.len(), sequence.missing()), (3, 0));
        assert_eq!((sequence.row(1, 4).ids, sequence.row(1, 4).table.len()), ([7].as_slice(), 3));
        // The first proposed token is accepted, the others are rejected.
        sequence.advance(1, &mut pool);
        sequence.push(8);
        sequence.advance(1, &mut pool);
        sequence.push(9);
        sequence.trim(&mut pool);
        assert_eq!(
            (sequence.computed, sequence.table.len(), sequence.registered),
            (32, 3, 2),
            "token 32 needs a block"
        );
        assert_eq!(sequence.reserve(40, &mut pool), 31, "the pool has one more block");
        sequence.trim(&mut pool);
        assert_eq!((sequence.table.len(), pool.free()), (3, 1));
        pool.check([sequence.table.as_slice()].into_iter()).unwrap();
    }

    #[test]
    fn discarded_blocks_are_not_found_again() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(40, &mut pool);
        let key = sequence.keys(1)[0];
        assert!(pool.find(&key).is_some());
        sequence.discard(&mut pool);
        assert_eq!((pool.find(&key), pool.free()), (None, 4));
    }
}
