//! Typed ranges within one memory allocation.

use std::fmt;
use std::marker::PhantomData;

/// Alignment of placements in bytes, sufficient for reads of any width.
const BOUNDARY: usize = 256;

/// A typed range within a memory region, as byte offset and length.
pub struct Placement<T> {
    first: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Placement<T> {
    /// Creates a placement of `len` values at byte offset `first`.
    pub fn new(first: usize, len: usize) -> Self {
        Self { first, len, kind: PhantomData }
    }

    /// Returns the offset of the first byte.
    pub fn first(self) -> usize {
        self.first
    }

    /// Returns the offset after the last byte.
    pub fn end(self) -> usize {
        self.first + self.len * size_of::<T>()
    }

    /// Returns the number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns `true` if the placement has no values.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the placement of `len` values, starting with the one at index `at`.
    pub fn part(self, at: usize, len: usize) -> Self {
        assert!(at + len <= self.len, "values {at}..{} exceed the placement's {}", at + len, self.len);
        Self::new(self.first + at * size_of::<T>(), len)
    }
}

impl<T> Clone for Placement<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Placement<T> {}

impl<T> fmt::Debug for Placement<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end())
    }
}

/// Assigns placements one after the other.
#[derive(Debug, Default)]
pub struct PlacementAllocator {
    at: usize,
}

impl PlacementAllocator {
    /// Assigns `len` values after all previous placements.
    pub fn place<T>(&mut self, len: usize) -> Placement<T> {
        let place = Placement::new(self.at, len);
        self.at = place.end().next_multiple_of(BOUNDARY);
        place
    }

    /// Returns the total bytes assigned so far.
    pub fn bytes(&self) -> usize {
        self.at
    }
}
