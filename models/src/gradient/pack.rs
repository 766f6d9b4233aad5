//! What one pass computes: token sequences side by side, some of which continue others.

use std::ops::Range;

/// Sequences packed without padding, as a forest: a segment continues its parent or begins a sequence. A token sees its
/// own segment up to itself and all of its ancestors, and nothing else; its position counts from the root's beginning.
///
/// A prompt that several answers share is one segment with a child per answer, and is computed once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pack {
    tokens: Vec<u32>,
    segments: Vec<Segment>,
    targets: Vec<Target>,
}

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its tokens, as a range of [`Pack::tokens`].
    pub tokens: Range<usize>,
    /// The segment it continues: an earlier one.
    pub parent: Option<usize>,
    /// The position of its first token: 0, or where the parent ends.
    pub start: usize,
}

/// A token whose probability counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The token it is predicted from, as an index of [`Pack::tokens`]: the one before it in its sequence.
    pub at: usize,
    /// Its id.
    pub token: u32,
}

impl Pack {
    /// An empty pack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes everything and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.segments.clear();
        self.targets.clear();
    }

    /// Adds a segment, after the end of `parent` if there is one, and returns its number.
    ///
    /// # Panics
    /// If `parent` is not the number of an earlier segment, or either of the two has no token.
    pub fn push(&mut self, tokens: &[u32], parent: Option<usize>) -> usize {
        assert!(!tokens.is_empty(), "a segment without tokens");
        let start = parent.map_or(0, |parent| {
            assert!(parent < self.segments.len(), "parent {parent} of a pack of {} segments", self.segments.len());
            self.segments[parent].end()
        });
        let first = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.segments.push(Segment { tokens: first..self.tokens.len(), parent, start });
        self.segments.len() - 1
    }

    /// Makes token `index` of `segment` a target: predicted from the token before it, which may be its parent's last.
    ///
    /// # Panics
    /// If there is no such token, or none before it.
    pub fn target(&mut self, segment: usize, index: usize) {
        assert!(segment < self.segments.len(), "segment {segment} of a pack of {}", self.segments.len());
        let Segment { tokens, parent, .. } = &self.segments[segment];
        assert!(index < tokens.len(), "token {index} of segment {segment}, which has {}", tokens.len());
        let at = match (index, parent) {
            (0, Some(parent)) => self.segments[*parent].tokens.end - 1,
            (0, None) => panic!("segment {segment} begins a sequence: nothing predicts its first token"),
            _ => tokens.start + index - 1,
        };
        self.targets.push(Target { at, token: self.tokens[tokens.start + index] });
    }

    /// All tokens, segment after segment.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The segments, in the order they were added.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The targets, in the order they were added.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
}

impl Segment {
    /// The position after its last token.
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
        let (one, two) = (pack.push(&[8, 9], Some(prompt)), pack.push(&[3], Some(prompt)));
        pack.target(one, 0);
        pack.target(one, 1);
        pack.target(two, 0);
        assert_eq!(pack.segments()[two], Segment { tokens: 5..6, parent: Some(prompt), start: 3 });
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
