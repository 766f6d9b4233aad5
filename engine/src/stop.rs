//! Stop strings and stop lines in a stream of token bytes.

/// Byte strings that end a turn, and labels whose line ends a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopSet {
    stops: Vec<StopString>,
    lines: Vec<LineLabel>,
}

/// A stop string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopString {
    bytes: Vec<u8>,
    /// `border[n]`: length of the longest proper prefix of `bytes[..=n]` that is also its suffix (Knuth, Morris, Pratt
    /// 1977).
    border: Vec<usize>,
}

impl StopSet {
    /// Creates a set of stop strings, numbered in the given order as in [`TurnFinish::Stop`](super::TurnFinish::Stop).
    /// Empty strings never match.
    pub fn new<S: AsRef<[u8]>>(stops: impl IntoIterator<Item = S>) -> Self {
        Self { stops: stops.into_iter().map(|stop| StopString::new(stop.as_ref())).collect(), lines: Vec::new() }
    }

    /// Adds stop lines: a line that begins with one of `labels`, after optional blanks, ends the turn with its line
    /// break. A turn begins at the beginning of a line. Labels are numbered after the strings; an empty label never
    /// matches.
    #[must_use]
    pub fn with_lines<S: AsRef<[u8]>>(mut self, labels: impl IntoIterator<Item = S>) -> Self {
        self.lines.extend(labels.into_iter().map(|label| LineLabel::new(label.as_ref())));
        self
    }

    /// Returns the stop strings, without the stop lines.
    pub fn strings(&self) -> impl Iterator<Item = &[u8]> {
        self.stops.iter().map(|stop| stop.bytes.as_slice())
    }

    /// Returns the labels of the stop lines.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(|label| label.0.as_slice())
    }

    /// Returns `true` if the set cannot match.
    pub fn is_empty(&self) -> bool {
        self.stops.iter().all(|stop| stop.bytes.is_empty()) && self.lines.iter().all(|label| label.0.is_empty())
    }

    /// Returns the stop string with this index; for a stop line, the line break.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let line = || index.checked_sub(self.stops.len()).and_then(|line| self.lines.get(line));
        self.stops.get(index).map(|stop| stop.bytes.as_slice()).or_else(|| line().map(|_| b"\n".as_slice()))
    }

    /// Returns the number of strings and lines.
    pub fn len(&self) -> usize {
        self.stops.len() + self.lines.len()
    }
}

impl StopString {
    /// Prepares a stop string for Knuth-Morris-Pratt matching.
    pub fn new(bytes: &[u8]) -> Self {
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

    /// Returns the length in bytes.
    pub fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    /// Advances the match by one byte. `matched` is the number of leading bytes of the string with which the text
    /// ended before, less than the whole. Returns the number after the byte.
    pub fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.border[matched - 1];
        }
        matched + usize::from(self.bytes[matched] == byte)
    }
}

/// Label of a stop line. It matches at the beginning of a line only, after optional blanks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineLabel(Vec<u8>);

impl LineLabel {
    /// Creates a label from its bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Returns the number of states of a text that has not completed the label. State 0 is the beginning of a line,
    /// state n follows n matched bytes, and the last state means a line that does not begin with the label.
    pub fn states(&self) -> usize {
        self.0.len() + 1
    }

    /// Returns the state after one more byte. `None` when the label is complete.
    pub fn advance(&self, state: usize, byte: u8) -> Option<usize> {
        let other = self.0.len();
        match self.0.get(state) {
            // A label never contains a line break, so a break resets every state.
            _ if byte == b'\n' => Some(0),
            _ if state == 0 && other > 0 && matches!(byte, b' ' | b'\t') => Some(0),
            Some(next) if *next != byte => Some(other),
            Some(_) if state + 1 == other => None,
            Some(_) => Some(state + 1),
            None => Some(other),
        }
    }
}

/// Progress of a stream in each stop string and stop line. A new matcher is needed for each turn.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    matched: Vec<usize>,
    /// State of each label. `None` in a line that begins with it.
    lines: Vec<Option<usize>>,
}

impl Matcher {
    /// Takes the bytes of the next token and returns the index of the first stop string or stop line that they
    /// complete. Of several strings that end at the same byte the longest wins, since it began first. After a match
    /// the matcher must not be used again.
    pub fn push(&mut self, set: &StopSet, bytes: &[u8]) -> Option<usize> {
        // Most turns have no stop strings, and then a matcher allocates nothing.
        self.matched.resize(set.stops.len(), 0);
        self.lines.resize(set.lines.len(), Some(0));
        for &byte in bytes {
            let mut found: Option<usize> = None;
            for (index, stop) in set.stops.iter().enumerate() {
                if stop.bytes.is_empty() {
                    continue;
                }
                self.matched[index] = stop.advance(self.matched[index], byte);
                // Of several stops that end at this byte, the longest began first.
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
                // The turn ends with this token as a whole, so its remaining bytes decide nothing.
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
        /// For any text and tokenization, the stop line is the one that a search in the whole lines finds.
        #[test]
        fn lines_are_found_in_any_pieces(text in "[Qu: \n]{0,40}", cuts in prop::collection::vec(1usize..5, 40)) {
            let mut start = 0;
            let wanted = text.split_inclusive('\n').find_map(|line| {
                start += line.len();
                (line.trim_start_matches(' ').starts_with("Qu:") && line.ends_with('\n')).then_some(start)
            });
            let set = StopSet::default().with_lines(["Qu:"]);
            let mut matcher = Matcher::default();
            let mut at = 0;
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

        /// For any text, tokenization and stop set, the end is the one that a search in the whole text finds.
        #[test]
        fn every_tokenization_finds_the_same_end(
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
