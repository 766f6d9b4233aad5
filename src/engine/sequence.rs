//! One session inside the engine: its ids, its blocks and what it is doing.

use std::time::Instant;

use waymark_models::BLOCK;
use waymark_models::sampler::Sampler;

use super::command::Permit;
use super::mailbox::Outbox;
use super::masking::Masking;
use super::pool::Pool;
use super::prefix::Key;
use super::request::{Adapter, Generate, RequestId, SessionOptions};
use super::stage::Stage;
use super::stop::Matcher;

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between turns.
    Parked,
    /// Wants to be in the batch.
    Waiting,
    /// In the batch.
    Running,
    /// In a turn, but its reader has to catch up first.
    Stalled,
}

/// A turn under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) generate: Generate,
    pub(super) sampler: Sampler,
    pub(super) matcher: Matcher,
    /// The masks of a constrained turn.
    pub(super) masking: Option<Masking>,
    pub(super) outbox: Outbox,
    /// Length of the sequence when the turn began.
    pub(super) begin: usize,
    pub(super) submitted: Instant,
    pub(super) stage: Stage,
    /// True once it was part of a step.
    pub(super) started: bool,
    pub(super) permit: Option<Permit>,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: u64,
    pub(super) adapter: Option<Adapter>,
    pub(super) request: Option<RequestId>,
    /// When its first turn began.
    pub(super) since: Instant,
    pub(super) phase: Phase,
    /// Its place in the order of service: given once, so that later turns of an old session come before new sessions.
    pub(super) ticket: u64,
    /// When it last left the batch or asked to be in it again; what is lowest loses its blocks first.
    pub(super) stamp: u64,
    pub(super) ids: Vec<u32>,
    /// How many of `ids` have their KV in the table's blocks.
    pub(super) computed: usize,
    /// How many ever had; what is computed below it is computed again.
    pub(super) peak: usize,
    pub(super) table: Vec<u32>,
    /// Leading blocks of the table that were registered or came from the cache. They are never written again.
    pub(super) registered: usize,
    /// Blocks up to here are promised to sessions that wait for the same prefix.
    pub(super) promised: usize,
    root: Key,
    /// Keys of the leading full blocks of `ids`, as far as they were needed.
    keys: Vec<Key>,
    pub(super) turn: Option<Running>,
}

impl Sequence {
    pub(super) fn new(id: u64, ticket: u64, options: SessionOptions, root: Key) -> Self {
        Self {
            id,
            adapter: options.adapter,
            request: options.request,
            since: Instant::now(),
            phase: Phase::Parked,
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

    /// Tokens that have to be computed before the next one can be sampled.
    pub(super) fn pending(&self) -> usize {
        self.ids.len() - self.computed
    }

    /// Blocks that its ids need beyond those it has.
    pub(super) fn missing(&self) -> usize {
        self.ids.len().div_ceil(BLOCK) - self.table.len()
    }

    /// Keys of its first `blocks` blocks, which must be full.
    pub(super) fn keys(&mut self, blocks: usize) -> &[Key] {
        for index in self.keys.len()..blocks {
            let parent = if index == 0 { self.root } else { self.keys[index - 1] };
            self.keys.push(parent.child(&self.ids[index * BLOCK..(index + 1) * BLOCK]));
        }
        &self.keys[..blocks]
    }

    /// Notes that the KV of `tokens` more tokens was written, and makes blocks that became full known. Returns how many
    /// of the tokens had been computed before.
    pub(super) fn advance(&mut self, tokens: usize, pool: &mut Pool) -> usize {
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

    /// Gives up its blocks. Those that are known stay in the cache, the first ones longest: nothing is lost until
    /// their place is needed.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        while let Some(block) = self.table.pop() {
            pool.release(block);
        }
        self.computed = 0;
        self.registered = 0;
    }

    /// Gives up its blocks and keeps anyone from sharing what they hold.
    pub(super) fn discard(&mut self, pool: &mut Pool) {
        for block in &self.table {
            pool.forget(*block);
        }
        self.release(pool);
    }

    /// Begins a turn: of the tokens so far the first `keep` stay, `append` follow them. At least one token is left to be
    /// computed, since only that gives logits.
    pub(super) fn extend(&mut self, keep: usize, append: &[u32], pool: &mut Pool) {
        if keep < self.ids.len() {
            self.ids.truncate(keep);
            self.keys.truncate(keep / BLOCK);
            self.peak = self.peak.min(keep);
            self.forget(keep, pool);
        }
        self.ids.extend_from_slice(append);
        if self.computed == self.ids.len() {
            self.forget(self.ids.len() - 1, pool);
        }
    }

    /// Forgets the KV from position `from` on, and the blocks that are then not needed.
    fn forget(&mut self, from: usize, pool: &mut Pool) {
        let mut blocks = from.div_ceil(BLOCK);
        if self.computed > from {
            self.computed = from;
            if self.registered > from / BLOCK && !from.is_multiple_of(BLOCK) {
                // Others may share the block that is cut: it cannot be written, so what it held is computed again.
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

    fn computed(tokens: u32, pool: &mut Pool) -> Sequence {
        let mut sequence = Sequence::new(1, 1, SessionOptions::default(), Key::root(0, None, 0));
        sequence.ids.extend(0..tokens);
        for _ in 0..sequence.missing() {
            sequence.table.push(pool.take().unwrap());
        }
        assert_eq!(sequence.advance(tokens as usize, pool), 0);
        sequence
    }

    #[test]
    fn a_cut_inside_a_shared_block_gives_that_block_up() {
        let mut pool = Pool::new(4);
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
        let mut pool = Pool::new(4);
        let mut sequence = computed(40, &mut pool);
        sequence.extend(35, &[9], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (35, 3, 2));
        sequence.extend(32, &[9], &mut pool);
        assert_eq!((sequence.computed, sequence.table.len(), sequence.registered), (32, 2, 2));
    }

    #[test]
    fn a_turn_without_new_tokens_computes_the_last_one_again() {
        let mut pool = Pool::new(4);
        let mut sequence = computed(40, &mut pool);
        sequence.extend(40, &[], &mut pool);
        assert_eq!((sequence.pending(), sequence.registered), (1, 2));
        sequence.extend(32, &[], &mut pool);
        assert_eq!((sequence.pending(), sequence.table.len(), sequence.registered), (16, 1, 1));
    }

    #[test]
    fn discarded_blocks_are_not_found_again() {
        let mut pool = Pool::new(4);
        let mut sequence = computed(40, &mut pool);
        let key = sequence.keys(1)[0];
        assert!(pool.find(&key).is_some());
        sequence.discard(&mut pool);
        assert_eq!((pool.find(&key), pool.free()), (None, 4));
    }
}
