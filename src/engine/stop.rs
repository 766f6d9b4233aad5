//! Stop strings, found in a stream of token bytes.

/// Byte strings that end a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopSet {
    stops: Vec<Stop>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop {
    bytes: Vec<u8>,
    /// `border[n]`: length of the longest proper prefix of `bytes[..=n]` that also ends it (Knuth, Morris, Pratt 1977).
    border: Vec<usize>,
}

impl StopSet {
    /// Takes the strings in the order that [`Finish::Stop`](super::Finish::Stop) counts them. Empty ones never match.
    pub fn new<S: AsRef<[u8]>>(stops: impl IntoIterator<Item = S>) -> Self {
        Self { stops: stops.into_iter().map(|stop| Stop::new(stop.as_ref())).collect() }
    }

    /// True when nothing can match.
    pub fn is_empty(&self) -> bool {
        self.stops.iter().all(|stop| stop.bytes.is_empty())
    }

    /// The string with this index.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.stops.get(index).map(|stop| stop.bytes.as_slice())
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.stops.len()
    }
}

impl Stop {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut border = vec![0; bytes.len()];
        for end in 1..bytes.len() {
            let mut len = border[end - 1];
            while len > 0 && bytes[len] != bytes[end] {
                len = border[len - 1];
            }
            border[end] = len + usize::from(bytes[len] == bytes[end]);
        }
        Self { bytes: bytes.to_vec(), border }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How much of the string the text ends with after one more byte, given how much it ended with before.
    pub(crate) fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.border[matched - 1];
        }
        matched + usize::from(self.bytes[matched] == byte)
    }
}

/// How far into each stop string a stream is. Starts anew with each turn.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    matched: Vec<usize>,
}

impl Matcher {
    /// Takes the next token's bytes and returns the first stop string they complete: of several that end at the same
    /// byte the longest, since it began first. After that the matcher is spent.
    pub fn push(&mut self, set: &StopSet, bytes: &[u8]) -> Option<usize> {
        self.matched.resize(set.stops.len(), 0);
        for &byte in bytes {
            let mut found: Option<usize> = None;
            for (index, stop) in set.stops.iter().enumerate() {
                if stop.bytes.is_empty() {
                    continue;
                }
                self.matched[index] = stop.advance(self.matched[index], byte);
                let longer = found.is_none_or(|other| stop.bytes.len() > set.stops[other].bytes.len());
                if self.matched[index] == stop.bytes.len() && longer {
                    found = Some(index);
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stop_is_found_across_tokens() {
        let set = StopSet::new(["</search>", "</answer>"]);
        let mut matcher = Matcher::default();
        for token in ["<", "/a", "<</", "sear", "ch"] {
            assert_eq!(matcher.push(&set, token.as_bytes()), None);
        }
        assert_eq!(matcher.push(&set, b">\n\n"), Some(0));
    }

    #[test]
    fn the_longest_of_those_that_end_together_wins() {
        let set = StopSet::new(["b", "ab", ""]);
        assert_eq!(Matcher::default().push(&set, b"xab"), Some(1));
        assert_eq!(Matcher::default().push(&set, b"xb"), Some(0));
        assert!(!set.is_empty() && StopSet::new([""]).is_empty());
    }

    proptest! {
        /// Any text, any tokenisation, any stop set: the same end as a search in the whole text finds.
        #[test]
        fn every_tokenisation_finds_the_same_end(
            text in "[ab<]{0,40}",
            stops in prop::collection::vec("[ab<]{1,4}", 1..4),
            cuts in prop::collection::vec(1usize..5, 40),
        ) {
            let bytes = text.as_bytes();
            let wanted = (1..=bytes.len()).find_map(|end| {
                let ending = stops.iter().enumerate().filter(|(_, stop)| bytes[..end].ends_with(stop.as_bytes()));
                let longest = ending.map(|(index, stop)| (stop.len(), std::cmp::Reverse(index))).max()?;
                Some((end, longest.1.0))
            });
            let set = StopSet::new(&stops);
            let mut matcher = Matcher::default();
            let mut at = 0;
            let mut found = None;
            for cut in cuts {
                let next = (at + cut).min(bytes.len());
                if let Some(which) = matcher.push(&set, &bytes[at..next]) {
                    found = Some((at, next, which));
                    break;
                }
                at = next;
            }
            match (wanted, found) {
                (None, None) => {}
                (Some((end, which)), Some((from, to, hit))) => {
                    prop_assert!(from < end && end <= to);
                    prop_assert_eq!(which, hit);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
