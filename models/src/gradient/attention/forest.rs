//! Who sees whom: a pack's segments with what lies before and behind them.

use std::ops::Range;

use super::{Part, TILE};
use crate::gradient::Pack;

/// The segments of a pack, as ranges of tokens.
#[derive(Debug)]
pub(super) struct Forest {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    tokens: Range<usize>,
    /// The ancestors' tokens, neighbours joined, in ascending order.
    before: Vec<Range<usize>>,
    /// The descendants' tokens, likewise.
    behind: Vec<Range<usize>>,
}

impl Forest {
    pub(super) fn new(pack: &Pack) -> Self {
        let mut nodes: Vec<Node> = Vec::with_capacity(pack.segments().len());
        for segment in pack.segments() {
            let mut before = Vec::new();
            if let Some(parent) = segment.parent {
                before.clone_from(&nodes[parent].before);
                join(&mut before, nodes[parent].tokens.clone());
            }
            let mut ancestor = segment.parent;
            while let Some(index) = ancestor {
                join(&mut nodes[index].behind, segment.tokens.clone());
                ancestor = pack.segments()[index].parent;
            }
            nodes.push(Node { tokens: segment.tokens.clone(), before, behind: Vec::new() });
        }
        Self { nodes }
    }

    /// A segment's tokens, `TILE` at a time.
    pub(super) fn parts(&self, segment: usize) -> impl Iterator<Item = Part> {
        let all = self.nodes[segment].tokens.clone();
        all.clone().step_by(TILE).map(move |first| Part { segment, tokens: first..(first + TILE).min(all.end) })
    }

    /// The keys that the last query of `part` sees, in ascending order; the others see those up to themselves.
    pub(super) fn keys(&self, part: &Part) -> Vec<Range<usize>> {
        let node = &self.nodes[part.segment];
        let mut keys = node.before.clone();
        join(&mut keys, node.tokens.start..part.tokens.end);
        keys
    }

    /// The queries that see the first key of `part`, in ascending order; they see the others too if these are not behind
    /// themselves.
    pub(super) fn queries(&self, part: &Part) -> Vec<Range<usize>> {
        let node = &self.nodes[part.segment];
        let mut queries: Vec<_> = std::iter::once(part.tokens.start..node.tokens.end).collect();
        node.behind.iter().for_each(|range| join(&mut queries, range.clone()));
        queries
    }

    /// How many keys the last query of `part` sees.
    pub(super) fn seen(&self, part: &Part) -> usize {
        self.keys(part).iter().map(Range::len).sum()
    }
}

/// Appends a range, to the last one if it goes on there.
fn join(ranges: &mut Vec<Range<usize>>, next: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Cuts ranges into pieces of at most `TILE`.
pub(super) fn tiles(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    ranges.iter().flat_map(|range| {
        let end = range.end;
        range.clone().step_by(TILE).map(move |first| first..(first + TILE).min(end))
    })
}
