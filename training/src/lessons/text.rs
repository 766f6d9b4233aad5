//! Word matching, sentence splitting and quotation of passages.

use std::ops::Range;

/// Words of a text: runs of letters and digits, in lower case.
pub fn words(text: &str) -> Vec<String> {
    spans(text).into_iter().map(|span| text[span].to_lowercase()).collect()
}

/// Normalized text for comparison: its [`words`] joined by single spaces.
pub fn normalized(text: &str) -> String {
    words(text).join(" ")
}

/// Byte ranges of the runs of letters and digits.
fn spans(text: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (at, c) in text.char_indices().filter(|(_, c)| c.is_alphanumeric()) {
        match spans.last_mut().filter(|span| span.end == at) {
            Some(span) => span.end = at + c.len_utf8(),
            None => spans.push(at..at + c.len_utf8()),
        }
    }
    spans
}

/// Byte range of the first place in `text` with the consecutive words of `wanted`, ignoring case and punctuation.
pub fn find_words(text: &str, wanted: &str) -> Option<Range<usize>> {
    let wanted = words(wanted);
    if wanted.is_empty() {
        return None;
    }
    let spans = spans(text);
    let at = spans
        .windows(wanted.len())
        .find(|window| window.iter().zip(&wanted).all(|(span, word)| text[span.clone()].to_lowercase() == *word))?;
    Some(at[0].start..at[at.len() - 1].end)
}

/// Splits a passage into sentences. A full stop ends a sentence if a capital follows and no initial or abbreviation
/// precedes.
pub fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(['.', '!', '?']) {
        let rest = &text[at + 1..];
        let initial = text[start..at].rsplit(|c: char| !c.is_alphanumeric()).next().is_some_and(|word| {
            word.chars().count() < 2 || matches!(word, "Dr" | "Mr" | "Mrs" | "Ms" | "St" | "Jr" | "Sr" | "vs" | "No")
        });
        let capital = rest.trim_start().chars().next().is_none_or(|c| c.is_uppercase() || c == '"');
        if !initial && capital && (rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            found.push(text[start..=at].trim());
            start = at + 1;
        }
    }
    found.push(text[start..].trim());
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Maximum number of words from the start of the sentence to the end of the quoted range, for a quotation that starts
/// with the sentence.
const LONGEST: usize = 16;
/// Number of words that may follow the quoted range.
const AFTER: usize = 2;
/// Number of words before the quoted range in a long sentence.
const BEFORE: usize = 9;

/// Short quotation of a sentence that contains the bytes `kept`. It starts at the beginning of the sentence if that is
/// close enough. It ends at the next punctuation if that is close enough, otherwise with `kept`. Double quotes become
/// single ones and line breaks become spaces.
pub fn quote(sentence: &str, kept: Range<usize>) -> String {
    let starts: Vec<usize> = word_starts(sentence);
    if starts.is_empty() {
        return String::new();
    }
    let first = starts.iter().rposition(|&at| at <= kept.start).unwrap_or(0);
    let last = starts.iter().rposition(|&at| at < kept.end).unwrap_or(first);
    // A quotation from the beginning of the sentence keeps its subject, which tells what the words are about.
    let from = if last < LONGEST { 0 } else { first.saturating_sub(BEFORE) };
    let word = |at: usize| sentence[starts[at]..starts.get(at + 1).copied().unwrap_or(sentence.len())].trim_end();
    let breaks = |at: &usize| word(*at).ends_with([',', ';', '.', ')']);
    // The quotation extends to close punctuation, or else ends with the kept range.
    let end = (last..starts.len().min(last + 1 + AFTER)).find(breaks).map(|at| starts[at] + word(at).len());
    let end = end.unwrap_or(kept.end).max(kept.end);
    let begin = starts.get(from).copied().unwrap_or(0);
    let text = sentence[begin.min(kept.start)..end].trim_end_matches([',', ';', '.', ' ']);
    let text = text.replace('"', "'").split_whitespace().collect::<Vec<_>>().join(" ");
    if from > 0 { format!("... {text}") } else { text }
}

/// Byte positions at which words separated by white space start.
fn word_starts(text: &str) -> Vec<usize> {
    let mut before = true;
    let starts = text.char_indices().filter(|(_, c)| {
        let begins = before && !c.is_whitespace();
        before = c.is_whitespace();
        begins
    });
    starts.map(|(at, _)| at).collect()
}

/// Title up to its first parenthesis.
pub fn bare_title(title: &str) -> &str {
    title.split(" (").next().unwrap_or(title).trim()
}

/// Number of distinct words of `of` with at least four letters that occur in `text`.
pub fn overlap(text: &str, of: &str) -> usize {
    let mut wanted = words(of);
    // Shorter words are mostly articles and prepositions, which match everywhere.
    wanted.retain(|word| word.chars().count() > 3);
    wanted.sort_unstable();
    wanted.dedup();
    let there = words(text);
    wanted.iter().filter(|word| there.contains(word)).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_found_across_punctuation() {
        let text = "Guido Brignone (6 December 1886 – 6 March 1959) was born in Milan, Italy.";
        assert_eq!(&text[find_words(text, "milan italy").unwrap()], "Milan, Italy");
        assert_eq!(find_words(text, "Mila"), None);
        assert_eq!(find_words(text, "-"), None);
    }

    #[test]
    fn initials_do_not_end_a_sentence() {
        let text = "B. Reeves Eason was a director. He met St. John in the U.S. Army. Then he left";
        let expected = ["B. Reeves Eason was a director.", "He met St. John in the U.S. Army.", "Then he left"];
        assert_eq!(sentences(text), expected);
    }

    #[test]
    fn a_quotation_ends_at_the_next_punctuation() {
        let text = "Guido Brignone was born in Milan, Italy, and \"moved\" to Rome.";
        assert_eq!(quote(text, find_words(text, "Milan").unwrap()), "Guido Brignone was born in Milan");
        assert_eq!(quote(text, find_words(text, "Italy").unwrap()), "Guido Brignone was born in Milan, Italy");
        assert_eq!(
            quote(text, find_words(text, "Rome").unwrap()),
            "Guido Brignone was born in Milan, Italy, and 'moved' to Rome"
        );
    }

    proptest! {
        #[test]
        fn quotations_are_short_and_contain_the_kept_range(before in proptest::collection::vec("[a-z(]{1,9}[,.]?", 0..60),
            after in proptest::collection::vec("[a-z)]{1,9}[,.]?", 0..60)) {
            let text = format!("{} ANSWER {}", before.join(" "), after.join(" "));
            let quoted = quote(&text, find_words(&text, "ANSWER").unwrap());
            prop_assert!(quoted.contains("ANSWER"), "{quoted}");
            prop_assert!(quoted.split(' ').count() <= LONGEST + AFTER + 1, "{quoted}");
        }

        #[test]
        fn any_text_is_split_and_quoted_without_panics(text in ".{0,200}") {
            let _ = sentences(&text).len();
            let _ = find_words(&text, &text);
            for span in spans(&text) {
                let _ = quote(&text, span);
            }
        }
    }
}
