//! A session inside the engine: its ids, its blocks and its state.

use std::time::Instant;

use waymark_models::BLOCK;
use waymark_models::sampler::Sampler;

use super::command::Permit;
use super::mailbox::Outbox;
use super::masking::Masking;
use super::pool::BlockPool;
use super::prefix::PrefixKey;
use super::request::{Generate, LoadedAdapter, RequestId, SessionOptions};
use super::stage::TurnStage;
use super::stop::Matcher;

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionPhase {
    /// Between turns.
    Parked,
    /// Waiting for a place in the batch.
    Waiting,
    /// In the batch.
    Running,
    /// In a turn, but out of the batch until its reader catches up.
    Stalled,
}

/// A turn in progress.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) generate: Generate,
    pub(super) sampler: Sampler,
    pub(super) matcher: Matcher,
    /// The masks of a constrained turn.
    pub(super) masking: Option<Masking>,
    pub(super) outbox: Outbox,
    /// Length of the sequence when the turn began.
    pub(super) begin: usize,
    pub(super) submitted: Instant,
    pub(super) stage: TurnStage,
    /// If `true`, the turn has been part of a step.
    pub(super) started: bool,
    pub(super) permit: Option<Permit>,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: u64,
    pub(super) adapter: Option<LoadedAdapter>,
    pub(super) request: Option<RequestId>,
    /// Time at which the first turn began.
    pub(super) since: Instant,
    pub(super) phase: SessionPhase,
    /// Position in the order of service. Assigned once, so that later turns of an old session come before new sessions.
    pub(super) ticket: u64,
    /// Logical time of the last move into or out of the queue. The lowest stamp loses its blocks first.
    pub(super) stamp: u64,
    pub(super) ids: Vec<u32>,
    /// Number of leading `ids` whose KV is in the table's blocks.
    pub(super) computed: usize,
    /// Highest value of `computed` so far. Tokens below it are computed again.
    pub(super) peak: usize,
    pub(super) table: Vec<u32>,
    /// Number of leading blocks that are registered or came from the cache. They are never written again.
    pub(super) registered: usize,
    /// Number of leading blocks that are promised to sessions waiting for the same prefix.
    pub(super) promised: usize,
    root: PrefixKey,
    /// Keys of the leading full blocks of `ids`, computed on demand.
    keys: Vec<PrefixKey>,
    pub(super) turn: Option<RunningTurn>,
}

impl Sequence {
    pub(super) fn new(id: u64, ticket: u64, options: SessionOptions, root: PrefixKey) -> Self {
        Self {
            id,
            adapter: options.adapter,
            request: options.request,
            since: Instant::now(),
            phase: SessionPhase::Parked,
            ticket,
            stamp: 0,
            ids: Vec::new(),
            computed: 0,
            peak: 0,
            table: Vec::new(),
            registered: 0,
            promised: 0,
            root,
            keys: Vec::new(),
            turn: None,
        }
    }

    /// Returns the number of tokens to compute before the next one can be sampled.
    pub(super) fn pending(&self) -> usize {
        self.ids.len() - self.computed
    }

    /// Returns the number of blocks still missing for all ids.
    pub(super) fn missing(&self) -> usize {
        self.ids.len().div_ceil(BLOCK) - self.table.len()
    }

    /// Returns the keys of the first `blocks` blocks, which must be full.
    pub(super) fn keys(&mut self, blocks: usize) -> &[PrefixKey] {
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

    /// Releases all blocks. Blocks with known content stay in the cache, the first ones longest, so that nothing is
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
        let mut blocks = from.div_ceil(BLOCK);
        if self.computed > from {
            self.computed = from;
            if self.registered > from / BLOCK && !from.is_multiple_of(BLOCK) {
                // A shared block must not be overwritten, so the rest of the cut block is computed again in another
                // one.
                blocks = from / BLOCK;
                self.computed = blocks * BLOCK;
            }
        }
        while self.table.len() > blocks {
            if let Some(block) = self.table.pop() {
                pool.release(block);
            }
        }
        self.registered = self.registered.min(from / BLOCK);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn computed(tokens: u32, pool: &mut BlockPool) -> Sequence {
        let mut sequence = Sequence::new(1, 1, SessionOptions::default(), PrefixKey::root(0, None, 0));
        sequence.ids.extend(0..tokens);
        for _ in 0..sequence.missing() {
            sequence.table.push(pool.take().unwrap());
        }
        assert_eq!(sequence.advance(tokens as usize, pool), 0);
        sequence
    }

    #[test]
    fn a_cut_inside_a_shared_block_gives_that_block_up() {
        let mut pool = BlockPool::new(4);
        let mut sequence = computed(40, &mut pool);
        assert_eq!(sequence.registered, 2);
        sequence.extend(20, &[100, 101, 102, 103], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (16, 1, 1));
        assert_eq!((pool.cached(), pool.used()), (1, 1));
        sequence.table.push(pool.take().unwrap());
        assert_eq!(sequence.advance(8, &mut pool), 4, "tokens 16 to 19 are computed again");
        pool.check([sequence.table.as_slice()].into_iter()).unwrap();
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
        assert_eq!((sequence.pending(), sequence.table.len(), sequence.registered), (16, 1, 1));
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
