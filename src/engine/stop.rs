//! Stop strings and stop lines, found in a stream of token bytes.

/// Byte strings that end a turn, and labels whose line does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopSet {
    stops: Vec<Stop>,
    lines: Vec<Label>,
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
        Self { stops: stops.into_iter().map(|stop| Stop::new(stop.as_ref())).collect(), lines: Vec::new() }
    }

    /// The same set, and the line break of every line that begins with one of `labels`, blanks before it left out. A turn
    /// begins with a line. They are counted after the strings; a label without bytes never matches.
    #[must_use]
    pub fn with_lines<S: AsRef<[u8]>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
        self.lines.extend(labels.into_iter().map(|label| Label::new(label.as_ref())));
        self
    }

    /// True when nothing can match.
    pub fn is_empty(&self) -> bool {
        self.stops.iter().all(|stop| stop.bytes.is_empty()) && self.lines.iter().all(|label| label.0.is_empty())
    }

    /// The string with this index: of a line, its break.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let line = || index.checked_sub(self.stops.len()).and_then(|line| self.lines.get(line));
        self.stops.get(index).map(|stop| stop.bytes.as_slice()).or_else(|| line().map(|_| b"\n".as_slice()))
    }

    /// Number of strings and lines.
    pub fn len(&self) -> usize {
        self.stops.len() + self.lines.len()
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

/// A label: it counts at the beginning of a line alone, blanks before it left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label(Vec<u8>);

impl Label {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// How many states a text can be in that has not completed it, counted from 0, the beginning of a text: so many bytes of
    /// it after the beginning of a line, and at last, in a line that does not begin with it.
    pub(crate) fn states(&self) -> usize {
        self.0.len() + 1
    }

    /// The state after one more byte; none where it is complete.
    pub(crate) fn advance(&self, state: usize, byte: u8) -> Option<usize> {
        let other = self.0.len();
        match self.0.get(state) {
            _ if byte == b'\n' => Some(0),
            _ if state == 0 && other > 0 && matches!(byte, b' ' | b'\t') => Some(0),
            Some(next) if *next != byte => Some(other),
            Some(_) if state + 1 == other => None,
            Some(_) => Some(state + 1),
            None => Some(other),
        }
    }
}

/// How far into each stop string a stream is. Starts anew with each turn.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    matched: Vec<usize>,
    /// By label: its state, or none in a line that begins with it.
    lines: Vec<Option<usize>>,
}

impl Matcher {
    /// Takes the next token's bytes and returns the first stop string they complete: of several that end at the same
    /// byte the longest, since it began first. After that the matcher is spent.
    pub fn push(&mut self, set: &StopSet, bytes: &[u8]) -> Option<usize> {
        self.matched.resize(set.stops.len(), 0);
        self.lines.resize(set.lines.len(), Some(0));
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
            for (index, (label, state)) in set.lines.iter().zip(&mut self.lines).enumerate() {
                *state = match *state {
                    Some(state) => label.advance(state, byte),
                    None if byte == b'\n' => {
                        found = found.or(Some(set.stops.len() + index));
                        Some(0)
                    }
                    None => None,
                };
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

    #[test]
    fn a_line_ends_a_turn_with_its_break() {
        let set = StopSet::new(["</a>"]).with_lines(["Query:", ""]);
        let end = |text: &str| {
            let mut matcher = Matcher::default();
            let found = text.bytes().position(|byte| matcher.push(&set, &[byte]).is_some());
            found.map(|at| at + 1)
        };
        for (text, wanted) in [
            ("Query: x\nmore", Some(9)),
            ("a\n \tQuery:x\n", Some(12)),
            ("a\nQuery:\n", Some(9)),
            ("Query\nQuery: x", None),
            ("a Query: x\n", None),
            ("QQuery: x\n", None),
            ("Quer\ny: x\n", None),
            ("Query: x</a>\n", Some(12)),
            ("\n\n", None),
        ] {
            assert_eq!(end(text), wanted, "{text:?}");
        }
        assert_eq!((set.len(), set.get(1), set.get(3)), (3, Some(b"\n".as_slice()), None));
        assert_eq!(Matcher::default().push(&set, b"Query: x\nand on"), Some(1));
        assert!(StopSet::default().with_lines([""]).is_empty() && !set.is_empty());
    }

    proptest! {
        /// Any text, any tokenisation: the line that a look at the whole lines finds.
        #[test]
        fn lines_are_found_in_any_pieces(text in "[Qu: \n]{0,40}", cuts in prop::collection::vec(1usize..5, 40)) {
            let mut start = 0;
            let wanted = text.split_inclusive('\n').find_map(|line| {
                start += line.len();
                (line.trim_start_matches(' ').starts_with("Qu:") && line.ends_with('\n')).then_some(start)
            });
            let (set, mut matcher, mut at) = (StopSet::default().with_lines(["Qu:"]), Matcher::default(), 0);
            let found = cuts.iter().find_map(|cut| {
                let from = at;
                at = (at + cut).min(text.len());
                matcher.push(&set, &text.as_bytes()[from..at]).map(|_| (from, at))
            });
            prop_assert_eq!(wanted.is_some(), found.is_some());
            if let (Some(end), Some((from, to))) = (wanted, found) {
                prop_assert!(from < end && end <= to);
            }
        }

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
