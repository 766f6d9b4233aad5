//! Filter for the answer on its way to the client: strips it and ends it at the client's stop strings or at a tool
//! call.

use super::scanner::overlap;
use super::tool_call::{CallScanner, ReplySegment};

/// Passes an answer on while it is written. The concatenated output is the whole answer up to the stop string that is
/// complete first, or up to the longest of several that end together; the stop string itself is not shown. A longer one
/// that began earlier but is incomplete by then does not count. The output does not depend on how the answer is split
/// into pieces. A call that ends the answer is shown, and nothing after it.
#[derive(Debug, Clone)]
pub(super) struct AnswerFilter {
    stops: Vec<String>,
    trims: bool,
    raw: String,
    passed: usize,
    shown: String,
    /// Scanner of the shown text, if a call ends the answer.
    calls: Option<CallScanner>,
    stopped: bool,
}

impl AnswerFilter {
    /// Creates a filter. With `trims`, white space at both ends is dropped. Empty stop strings are ignored.
    pub(super) fn new(stops: &[String], trims: bool) -> AnswerFilter {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        AnswerFilter { stops, trims, raw: String::new(), passed: 0, shown: String::new(), calls: None, stopped: false }
    }

    /// Lets a call of one of the tools with these names end the answer. An empty list has no effect.
    #[must_use]
    pub(super) fn ended_by_call(self, names: &[String]) -> AnswerFilter {
        let calls = (!names.is_empty()).then(|| CallScanner::new(names.to_vec()));
        AnswerFilter { calls, ..self }
    }

    /// Returns the text shown so far.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns `true` if a stop string or a call ended the answer.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the number of bytes received.
    pub(super) fn taken(&self) -> usize {
        self.raw.len()
    }

    /// Returns the number of received bytes that were shown or skipped; later ones are held back or dropped.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    /// Returns the number of received bytes that were skipped at the beginning of the answer.
    pub(super) fn skipped(&self) -> usize {
        // All other bytes that passed are shown.
        self.passed - self.shown.len()
    }

    /// Takes more of the answer and returns the text that can be shown now, which may be empty.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.raw.push_str(text);
        if self.stopped {
            return String::new();
        }
        self.skip_leading();
        let rest = &self.raw[self.passed..];
        let met = |stop: &String| rest.find(stop.as_str()).map(|at| (at + stop.len(), at));
        // The minimum by end, then by start: the first stop that completes, and the longest of those.
        let (mut length, found) = match self.stops.iter().filter_map(met).min() {
            Some((_, at)) => (at, true),
            // The end of the text may be the beginning of a stop string, and is held back until that is known.
            None => (rest.len() - self.stops.iter().map(|stop| overlap(rest, stop)).max().unwrap_or(0), false),
        };
        self.stopped = found;
        if self.trims {
            // Trailing white space is held back: it is shown only if more text follows.
            length = rest[..length].trim_end().len();
        }
        self.show(length)
    }

    /// Ends the answer and returns the rest of it.
    pub(super) fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        self.skip_leading();
        let rest = &self.raw[self.passed..];
        let length = if self.trims { rest.trim_end().len() } else { rest.len() };
        self.show(length)
    }

    fn skip_leading(&mut self) {
        if self.trims && self.shown.is_empty() {
            let rest = &self.raw[self.passed..];
            self.passed += rest.len() - rest.trim_start().len();
        }
    }

    fn show(&mut self, length: usize) -> String {
        let mut text = self.raw[self.passed..self.passed + length].to_owned();
        if let Some(end) = self.call_end(&text) {
            text.truncate(end);
            self.stopped = true;
        }
        self.passed += text.len();
        self.shown.push_str(&text);
        text
    }

    /// Returns the position in `text`, which is shown next, at which a call ends the answer, if one does.
    fn call_end(&mut self, text: &str) -> Option<usize> {
        let calls = self.calls.as_mut()?;
        // The scanner reports a call at the character that completes it, so the text is pushed character by character.
        let mut letters = text.char_indices().map(|(at, letter)| at..at + letter.len_utf8());
        let called = |part: &ReplySegment| matches!(part, ReplySegment::Call(_));
        letters.find(|letter| calls.push(&text[letter.clone()]).iter().any(called)).map(|letter| letter.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn oracle(text: &str, stops: &[String], trims: bool) -> String {
        let text = if trims { text.trim_start() } else { text };
        let lengths = (0..=text.len()).filter(|&length| text.is_char_boundary(length));
        let complete = |length| stops.iter().filter(move |stop| text[..length].ends_with(stop.as_str()));
        let first = lengths.filter_map(|length| complete(length).map(|stop| length - stop.len()).min()).next();
        let text = &text[..first.unwrap_or(text.len())];
        if trims { text.trim_end().to_owned() } else { text.to_owned() }
    }

    #[test]
    fn what_is_complete_first_ends_it() {
        for pieces in [&[" a "][..], &[" a", " "], &[" ", "a", " "]] {
            let mut filter = AnswerFilter::new(&["a".to_owned(), " a ".to_owned()], false);
            assert_eq!(pieces.iter().map(|piece| filter.push(piece)).collect::<String>(), " ");
            assert!(filter.stopped());
        }
        let mut filter = AnswerFilter::new(&["b".to_owned(), "ab".to_owned()], false);
        assert_eq!(filter.push("xa") + &filter.push("bc"), "x", "of those that end together the longest");
    }

    #[test]
    fn the_first_call_ends_it_and_shows() {
        let call = |name: &str| {
            format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{\"q\": \"</tool_call>\"}}}}</tool_call>")
        };
        let shown = format!("\u{e9} {}\n{}", call("leap"), call("look"));
        let answer = format!("{shown} and {}", call("look"));
        for size in [1, 7, 1000] {
            let mut filter = AnswerFilter::new(&[], false).ended_by_call(&["look".to_owned()]);
            let letters: Vec<char> = answer.chars().collect();
            let told: String =
                letters.chunks(size).map(|piece| filter.push(&piece.iter().collect::<String>())).collect();
            assert!(filter.stopped());
            assert_eq!((told + &filter.finish()).as_str(), shown, "by {size}");
            assert_eq!((filter.shown(), filter.passed()), (shown.as_str(), shown.len()));
        }
    }

    proptest! {
        /// For any text, split and stop strings, the output equals the one computed from the whole text.
        #[test]
        fn pieces_show_what_the_whole_shows(
            pieces in prop::collection::vec("[ab\u{e9} \n]{0,4}", 0..12),
            stops in prop::collection::vec("[ab\u{e9} \n]{1,3}", 0..3),
            trims: bool,
        ) {
            let mut filter = AnswerFilter::new(&stops, trims);
            let mut shown = String::new();
            for piece in &pieces {
                shown += &filter.push(piece);
            }
            shown += &filter.finish();
            prop_assert_eq!(&shown, &oracle(&pieces.concat(), &stops, trims));
            prop_assert_eq!(shown.as_str(), filter.shown());
        }
    }
}
