//! Division of a step's attention into items that threads take one by one.

use std::cmp::Reverse;
use std::ops::Range;

use super::HeadLayout;
use super::tile::{RUN, RUN_TOKENS};
use crate::batch::{BatchRow, ForwardBatch};

/// Number of query rows (positions times heads of a group) in a tile: enough to amortize reading keys and values
/// from the second-level cache, few enough to keep their scores in that cache.
pub(super) const TILE_ROWS: usize = 48;

/// Number of items per thread that lets all threads finish at about the same time.
const ITEMS_PER_THREAD: usize = 4;

/// Consecutive query positions of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuerySpan {
    /// Index of the sequence in the batch.
    pub(super) row: usize,
    /// Index of the first query token in the batch.
    pub(super) token: usize,
    /// Number of positions.
    pub(super) queries: usize,
    /// Position of the first query in its sequence.
    pub(super) position: usize,
}

/// Queries of one or more sequences for one key and value head.
#[derive(Debug, Clone)]
pub(super) struct AttentionItem {
    /// Key and value head.
    pub(super) head: usize,
    /// Range of [`TilePlan::members`].
    pub(super) members: Range<usize>,
    /// Number of first positions whose blocks all members share, a multiple of [`RUN_TOKENS`]. 0 for a single member.
    pub(super) shared: usize,
    /// Upper bound of the number of pairs of a query and a position.
    work: usize,
}

/// Items of one step, the same for all layers.
#[derive(Debug, Default)]
pub(super) struct TilePlan {
    items: Vec<AttentionItem>,
    members: Vec<QuerySpan>,
    /// Working memory of [`plan`](Self::plan): a range of members and the positions they share.
    groups: Vec<(Range<usize>, usize)>,
    /// Number of tokens of the planned batch.
    pub(super) tokens: usize,
}

impl QuerySpan {
    /// Number of whole runs of blocks before the first query.
    fn runs(&self) -> usize {
        self.position / RUN_TOKENS
    }

    fn table<'a>(&self, batch: &'a ForwardBatch) -> &'a [u32] {
        &batch.table(&batch.rows()[self.row])[..self.runs() * RUN]
    }

    /// Number of first runs that two members have in common.
    fn common_runs(&self, other: &Self, batch: &ForwardBatch) -> usize {
        let own = self.table(batch).chunks_exact(RUN);
        own.zip(other.table(batch).chunks_exact(RUN)).take_while(|(own, other)| own == other).count()
    }

    fn work(&self) -> usize {
        self.queries * (self.position + self.queries)
    }
}

impl TilePlan {
    /// Items, the longest first, so the last ones are short and all threads finish together.
    pub(super) fn items(&self) -> &[AttentionItem] {
        &self.items
    }

    /// Members of an item.
    pub(super) fn members(&self, item: &AttentionItem) -> &[QuerySpan] {
        &self.members[item.members.clone()]
    }

    /// Divides a step among `threads` threads.
    ///
    /// Sequences that share their first blocks, such as the instructions of a policy, are attended together: these
    /// blocks are read once per item. No sum depends on the grouping, since every query adds the same runs in the same
    /// order. If there are few queries per thread, equal shares take precedence: 32 sequences with 2 heads of keys join
    /// in pairs on 8 threads, and not at all on 16. Layers with windows share nothing, whatever is joined.
    pub(super) fn plan(&mut self, batch: &ForwardBatch, heads: HeadLayout, threads: usize) {
        self.tokens = batch.tokens().len();
        let most = (TILE_ROWS / heads.group()).max(1);
        self.members.clear();
        for (row, share) in batch.rows().iter().enumerate() {
            self.members.extend(split(row, share, most));
        }
        self.members.sort_unstable_by(|a, b| a.table(batch).cmp(b.table(batch)).then(a.token.cmp(&b.token)));
        let even = (self.tokens * heads.kv).div_ceil(threads * ITEMS_PER_THREAD);
        self.group(batch, most.min(even));
        self.items.clear();
        for (members, shared) in &self.groups {
            let work = self.members[members.clone()].iter().map(QuerySpan::work).sum();
            let item = |head| AttentionItem { head, members: members.clone(), shared: *shared, work };
            self.items.extend((0..heads.kv).map(item));
        }
        // Among equals, heads of a row stay together because their keys and values are adjacent.
        self.items.sort_unstable_by_key(|item| (Reverse(item.work), item.members.start, item.head));
    }

    /// Joins neighbors that share their first runs, with at most `most` queries together.
    fn group(&mut self, batch: &ForwardBatch, most: usize) {
        self.groups.clear();
        let mut first = 0;
        while let Some(leader) = self.members.get(first) {
            let mut queries = leader.queries;
            let mut shared = leader.runs();
            let mut end = first + 1;
            while let Some(next) = self.members.get(end) {
                queries += next.queries;
                let common = shared.min(leader.common_runs(next, batch));
                let saved = shared * (end - first - 1);
                // One more member may lower what the others share.
                if queries > most || common == 0 || common * (end - first) < saved {
                    break;
                }
                shared = common;
                end += 1;
            }
            let alone = end - first == 1;
            self.groups.push((first..end, if alone { 0 } else { shared * RUN_TOKENS }));
            first = end;
        }
    }
}

/// Splits a row into members of at most `most` queries.
fn split(row: usize, share: &BatchRow, most: usize) -> impl Iterator<Item = QuerySpan> {
    let first = share.tokens.start;
    let start = share.start;
    let tokens = share.tokens.len();
    (0..tokens).step_by(most).map(move |done| QuerySpan {
        row,
        token: first + done,
        queries: (tokens - done).min(most),
        position: start + done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BLOCK, LogitPositions};

    const HEADS: HeadLayout = HeadLayout { query: 6, kv: 2, dim: 16 };

    /// Plans rows of (blocks shared with all others, tokens in the cache, new tokens) and returns, per item of the
    /// first head, its rows and the number of shared positions.
    fn planned(rows: &[(usize, usize, usize)], threads: usize) -> Vec<(Vec<usize>, usize)> {
        let mut batch = ForwardBatch::new();
        let mut own = 1000;
        for &(common, start, new) in rows {
            let blocks = (start + new).div_ceil(BLOCK);
            let table: Vec<u32> = (0..common as u32).chain(own..).take(blocks).collect();
            own += 1000;
            batch.push(&vec![0; new], start, &table, None, LogitPositions::Last);
        }
        let mut plan = TilePlan::default();
        plan.plan(&batch, HEADS, threads);
        let first = plan.items().iter().filter(|item| item.head == 0);
        first.map(|item| (plan.members(item).iter().map(|member| member.row).collect(), item.shared)).collect()
    }

    #[test]
    fn sequences_with_equal_first_blocks_are_attended_together() {
        let shared = planned(&[(17, 300, 1), (0, 300, 1), (17, 400, 1), (17, 290, 1)], 1);
        assert_eq!(shared, [(vec![0, 3], 256), (vec![2], 0), (vec![1], 0)], "two of the four queries per item");
        let rows: Vec<(usize, usize, usize)> = (0..8).map(|row| (16, 256 + row, 1)).collect();
        assert_eq!(planned(&rows, 1).len(), 2);
        assert_eq!(planned(&rows, 2).len(), 4, "threads get as many items as they need to finish together");
    }

    #[test]
    fn short_and_equal_runs_alone_are_shared() {
        assert_eq!(planned(&[(7, 200, 1), (7, 200, 1)], 1).len(), 2, "seven blocks are no run");
        assert_eq!(planned(&[(8, 127, 1), (8, 128, 1)], 1).len(), 2, "the first is still in its first run");
        let long = [(24, 400, 1), (24, 400, 1), (8, 400, 1), (8, 400, 1)];
        let rows: Vec<Vec<usize>> = planned(&long, 1).into_iter().map(|(rows, _)| rows).collect();
        assert_eq!(rows, [vec![0, 1], vec![2, 3]], "rows that share more are not held to what others share");
    }

    #[test]
    fn long_rows_are_split_and_every_query_is_planned_once() {
        let rows = [(0, 0, 40), (0, 300, 1), (16, 256, 20), (16, 256, 3)];
        let mut batch = ForwardBatch::new();
        for (common, start, new) in rows {
            let table: Vec<u32> = (0..common).chain(500..).take(20).collect();
            batch.push(&vec![0; new], start, &table, None, LogitPositions::Last);
        }
        let mut plan = TilePlan::default();
        plan.plan(&batch, HEADS, 2);
        for head in 0..HEADS.kv {
            let items = plan.items().iter().filter(|item| item.head == head);
            let members = items.flat_map(|item| plan.members(item));
            let mut tokens: Vec<usize> = members.flat_map(|m| m.token..m.token + m.queries).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..batch.tokens().len()).collect::<Vec<_>>());
        }
        assert!(plan.members.iter().all(|member| member.queries * HEADS.group() <= TILE_ROWS));
    }
}
