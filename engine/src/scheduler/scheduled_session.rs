//! A session as the scheduler sees it: its sequence, its place in the queues and its turn.

use std::time::Instant;

use waymark_models::AdapterSlot;
use waymark_models::sampler::Pick;

use super::queues::QueueEntry;
use crate::lookup::PromptLookup;
use crate::pool::BlockPool;
use crate::request::{LoadedAdapter, RequestId, SessionOptions};
use crate::running_turn::RunningTurn;
use crate::sequence::Sequence;
use crate::snapshot::SessionSnapshot;

/// Number of failed passes with proposed tokens of a turn, whose rows all succeed alone, after which no more are
/// proposed in the turn. Each costs the whole batch, whose rows then run one by one.
const MOST_FAILED_PROPOSALS: u32 = 3;

/// A session that has had a turn.
#[derive(Debug)]
pub(crate) struct ScheduledSession {
    id: u64,
    adapter: Option<LoadedAdapter>,
    request: Option<RequestId>,
    /// Number of tokens that were to be computed when the session last entered the batch.
    pub(super) entered_with: usize,
    /// If `true`, the session entered the batch ahead of a session that waits for blocks.
    pub(super) overtook: bool,
    /// Time at which the first turn was requested.
    since: Instant,
    pub(super) entry: QueueEntry,
    pub(super) sequence: Sequence,
    pub(super) lookup: PromptLookup,
    /// Number of passes of the current turn that failed with proposed tokens, but not without them.
    pub(super) failed_proposals: u32,
    /// Turn in progress. `None` between turns, and while its next tokens are drawn. Boxed, since it moves in every step.
    pub(super) turn: Option<Box<RunningTurn>>,
}

impl ScheduledSession {
    pub(super) fn new(id: u64, options: SessionOptions, since: Instant, entry: QueueEntry, sequence: Sequence) -> Self {
        let SessionOptions { adapter, request, .. } = options;
        Self {
            id,
            adapter,
            request,
            entered_with: 0,
            overtook: false,
            since,
            entry,
            sequence,
            lookup: PromptLookup::default(),
            failed_proposals: 0,
            turn: None,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the token ids, including those whose KV is not computed yet.
    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Returns the first `tokens` tokens that were proposed to follow the sequence.
    pub(crate) fn proposal(&self, tokens: usize) -> &[u32] {
        let proposal = self.lookup.proposal();
        &proposal[..tokens.min(proposal.len())]
    }

    /// Returns `true` if tokens may be proposed in the current turn.
    pub(super) fn proposes(&self) -> bool {
        self.failed_proposals < MOST_FAILED_PROPOSALS
    }

    pub(crate) fn adapter_slot(&self) -> Option<AdapterSlot> {
        self.adapter.map(|adapter| adapter.slot)
    }

    /// Returns the instructions with which the backend itself may choose the token after the sequence and its first
    /// `offset` proposed tokens; see [`RunningTurn::pick`].
    pub(crate) fn pick(&mut self, offset: usize, vocab: usize, until: Instant) -> Option<Pick> {
        let Self { sequence, lookup, turn, .. } = self;
        let ahead = lookup.proposal().get(..offset)?;
        turn.as_mut().and_then(|turn| turn.pick(sequence.ids(), ahead, vocab, until))
    }

    /// Rewinds the sequence so that its last token, whose logits were not used, is computed again.
    pub(super) fn rewind(&mut self, pool: &mut BlockPool) {
        let len = self.sequence.len();
        self.sequence.extend(len, &[], pool);
    }

    /// Returns the number of tokens sampled in the current turn.
    fn sampled(&self) -> usize {
        self.turn.as_ref().map_or(0, |turn| turn.sampled(self.sequence.len()))
    }

    pub(super) fn snapshot(&self, now: Instant) -> SessionSnapshot {
        SessionSnapshot {
            id: self.id,
            request: self.request,
            state: self.entry.state(),
            tokens: self.sequence.len(),
            computed: self.sequence.computed(),
            sampled: self.sampled(),
            blocks: self.sequence.blocks(),
            adapter: self.adapter,
            age: now.duration_since(self.since),
            turn_age: self.turn.as_ref().map(|turn| now.duration_since(turn.submitted())),
        }
    }
}
