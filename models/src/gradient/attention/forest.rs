//! Attention structure of a pack: the ancestors and descendants of each segment.

use std::ops::Range;

use super::{SegmentPart, TILE};
use crate::gradient::Pack;

/// Segments of a pack as ranges of tokens.
#[derive(Debug)]
pub(super) struct Forest {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    tokens: Range<usize>,
    /// Tokens of the ancestors in ascending order, adjacent ranges joined.
    before: Vec<Range<usize>>,
    /// Tokens of the descendants in ascending order, adjacent ranges joined.
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

    /// Tokens of a segment in tiles of at most `TILE`.
    pub(super) fn parts(&self, segment: usize) -> impl Iterator<Item = SegmentPart> {
        let all = self.nodes[segment].tokens.clone();
        all.clone().step_by(TILE).map(move |first| SegmentPart { segment, tokens: first..(first + TILE).min(all.end) })
    }

    /// Keys visible to the last query of `part`, in ascending order. The other queries see only those up to
    /// themselves.
    pub(super) fn keys(&self, part: &SegmentPart) -> Vec<Range<usize>> {
        let node = &self.nodes[part.segment];
        let mut keys = node.before.clone();
        join(&mut keys, node.tokens.start..part.tokens.end);
        keys
    }

    /// Queries that see the first key of `part`, in ascending order. They see each further key unless it follows
    /// them.
    pub(super) fn queries(&self, part: &SegmentPart) -> Vec<Range<usize>> {
        let node = &self.nodes[part.segment];
        let mut queries: Vec<_> = std::iter::once(part.tokens.start..node.tokens.end).collect();
        node.behind.iter().for_each(|range| join(&mut queries, range.clone()));
        queries
    }

    /// Number of keys visible to the last query of `part`.
    pub(super) fn seen(&self, part: &SegmentPart) -> usize {
        self.keys(part).iter().map(Range::len).sum()
    }
}

/// Appends a range, joining it with the last one if the two are adjacent.
fn join(ranges: &mut Vec<Range<usize>>, next: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Splits ranges into pieces of at most `TILE`.
pub(super) fn tiles(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    ranges.iter().flat_map(|range| {
        let end = range.end;
        range.clone().step_by(TILE).map(move |first| first..(first + TILE).min(end))
    })
}
