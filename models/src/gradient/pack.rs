//! Input of one pass: packed token sequences, some of which share prefixes.

use std::ops::Range;

/// Sequences packed without padding, as a forest: a segment continues its parent or begins a sequence. A token
/// attends to its own segment up to itself and to all ancestors; its position counts from the start of the root.
///
/// A prompt shared by several answers is one segment with a child per answer, and is computed once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pack {
    tokens: Vec<u32>,
    segments: Vec<PackSegment>,
    targets: Vec<PackTarget>,
}

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackSegment {
    /// Tokens of the segment, as a range of [`Pack::tokens`].
    pub tokens: Range<usize>,
    /// Index of the earlier segment that this one continues. `None` begins a sequence.
    pub parent: Option<usize>,
    /// Position of the first token: 0, or the end of the parent.
    pub start: usize,
}

/// A token whose probability enters the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackTarget {
    /// Index in [`Pack::tokens`] of the token before the target in its sequence, from which the target is
    /// predicted.
    pub at: usize,
    /// ID of the target token.
    pub token: u32,
}

impl Pack {
    /// Creates an empty pack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes everything and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.segments.clear();
        self.targets.clear();
    }

    /// Adds a segment, after the end of `parent` if given, and returns its index.
    ///
    /// # Panics
    /// If `parent` is not the index of an earlier segment, or `tokens` is empty.
    pub fn push(&mut self, tokens: &[u32], parent: Option<usize>) -> usize {
        assert!(!tokens.is_empty(), "a segment without tokens");
        let start = parent.map_or(0, |parent| {
            assert!(parent < self.segments.len(), "parent {parent} of a pack of {} segments", self.segments.len());
            self.segments[parent].end()
        });
        let first = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.segments.push(PackSegment { tokens: first..self.tokens.len(), parent, start });
        self.segments.len() - 1
    }

    /// Makes token `index` of `segment` a target, predicted from the token before it, which may be the last token
    /// of the parent.
    ///
    /// # Panics
    /// If there is no such token, or no token before it.
    pub fn target(&mut self, segment: usize, index: usize) {
        assert!(segment < self.segments.len(), "segment {segment} of a pack of {}", self.segments.len());
        let PackSegment { tokens, parent, .. } = &self.segments[segment];
        assert!(index < tokens.len(), "token {index} of segment {segment}, which has {}", tokens.len());
        let at = match (index, parent) {
            // The parent's last token predicts the first token of each of its continuations.
            (0, Some(parent)) => self.segments[*parent].tokens.end - 1,
            (0, None) => panic!("segment {segment} begins a sequence: nothing predicts its first token"),
            _ => tokens.start + index - 1,
        };
        self.targets.push(PackTarget { at, token: self.tokens[tokens.start + index] });
    }

    /// All tokens, segment by segment.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Segments, in the order they were added.
    pub fn segments(&self) -> &[PackSegment] {
        &self.segments
    }

    /// Targets, in the order they were added.
    pub fn targets(&self) -> &[PackTarget] {
        &self.targets
    }
}

impl PackSegment {
    /// Position after the segment's last token.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_child_goes_on_where_its_parent_ends() {
        let mut pack = Pack::new();
        let prompt = pack.push(&[5, 6, 7], None);
        let one = pack.push(&[8, 9], Some(prompt));
        let two = pack.push(&[3], Some(prompt));
        pack.target(one, 0);
        pack.target(one, 1);
        pack.target(two, 0);
        assert_eq!(pack.segments()[two], PackSegment { tokens: 5..6, parent: Some(prompt), start: 3 });
        let targets: Vec<_> = pack.targets().iter().map(|target| (target.at, target.token)).collect();
        assert_eq!(targets, [(2, 8), (3, 9), (2, 3)]);
        pack.clear();
        assert_eq!(pack, Pack::new());
    }

    #[test]
    fn what_cannot_be_is_named() {
        let said = |wrong: fn(&mut Pack)| {
            let mut pack = Pack::new();
            pack.push(&[5, 6], None);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrong(&mut pack)));
            result.unwrap_err().downcast_ref::<String>().cloned().unwrap_or_default()
        };
        let unknown = said(|pack| {
            pack.push(&[1], Some(1));
        });
        assert!(unknown.contains("parent 1 of a pack of 1 segments"), "{unknown}");
        assert!(said(|pack| pack.target(1, 0)).contains("segment 1 of a pack of 1"));
        assert!(said(|pack| pack.target(0, 2)).contains("token 2 of segment 0, which has 2"));
        assert!(said(|pack| pack.target(0, 0)).contains("segment 0 begins a sequence"));
    }
}
