//! Places in one piece of memory.

use std::fmt;
use std::marker::PhantomData;

/// Where every place begins: a multiple of this many bytes, so that reads of any width are aligned.
const BOUNDARY: usize = 256;

/// Where some values of one type lie in a piece of memory.
pub struct Place<T> {
    first: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Place<T> {
    /// `len` values from byte `first` on.
    pub fn new(first: usize, len: usize) -> Self {
        Self { first, len, kind: PhantomData }
    }

    /// Its first byte.
    pub fn first(self) -> usize {
        self.first
    }

    /// The byte after its last one.
    pub fn end(self) -> usize {
        self.first + self.len * size_of::<T>()
    }

    /// Values in it.
    pub fn len(self) -> usize {
        self.len
    }

    /// True when it holds nothing.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` of its values from the one at `at` on.
    pub fn part(self, at: usize, len: usize) -> Self {
        assert!(at + len <= self.len, "a part inside the place");
        Self::new(self.first + at * size_of::<T>(), len)
    }
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.end())
    }
}

/// Lays places one after the other.
#[derive(Debug, Default)]
pub struct Carver {
    at: usize,
}

impl Carver {
    /// A place for `len` values behind all that were given.
    pub fn place<T>(&mut self, len: usize) -> Place<T> {
        let place = Place::new(self.at, len);
        self.at = place.end().next_multiple_of(BOUNDARY);
        place
    }

    /// Bytes of all places so far.
    pub fn bytes(&self) -> usize {
        self.at
    }
}
