//! Finds key entities for a question that names none: phrases of the graph that occur in the question.

use std::collections::HashSet;

use crate::query::ENTITIES;

/// Maximum number of words in a phrase.
const LONGEST: usize = 8;

/// Words that are no entity by themselves.
const FILLING: &[&str] = &[
    "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "before", "between",
    "both", "but", "by", "can", "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "him", "his",
    "how", "i", "if", "in", "into", "is", "it", "its", "many", "may", "more", "most", "much", "name", "no", "not",
    "of", "on", "one", "or", "other", "same", "she", "so", "some", "than", "that", "the", "their", "them", "there",
    "these", "they", "this", "those", "to", "was", "we", "were", "what", "when", "where", "which", "while", "who",
    "whom", "whose", "why", "will", "with", "would", "you",
];

/// Run of letters and digits in a question.
struct QuestionWord {
    /// Start in the question's normal form, in bytes.
    start: usize,
    end: usize,
    /// If `true`, the word is not a filler word and begins with a capital letter or contains a digit.
    named: bool,
    filling: bool,
}

/// Finds phrases in `question` from left to right, each time the longest that `known` accepts and that has more than
/// filler words. If one of them is written like a name, with a capital letter or a digit, only such phrases count.
/// Returns at most [`ENTITIES`], since each becomes a key entity with a search of its own.
pub(crate) fn linked(question: &str, known: &dyn Fn(&str) -> bool) -> Vec<String> {
    let (normal, words) = words(question);
    let mut found: Vec<(String, bool)> = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    let mut at = 0;
    while at < words.len() {
        let ends = (at..words.len().min(at + LONGEST)).rev();
        let longest = ends.filter(|&end| words[at..=end].iter().any(|word| !word.filling)).find_map(|end| {
            let phrase = &normal[words[at].start..words[end].end];
            let plain = phrase.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            // Phrases of the graph keep their runs of spaces, as HippoRAG's normal form does; questions may have
            // others.
            let phrase = [phrase, &plain].into_iter().find(|phrase| known(phrase))?.to_owned();
            Some((end, phrase))
        });
        let Some((end, phrase)) = longest else {
            at += 1;
            continue;
        };
        let named = words[at..=end].iter().any(|word| word.named);
        if seen.insert(phrase.clone()) {
            found.push((phrase, named));
        }
        at = end + 1;
    }
    let any_named = found.iter().any(|(_, named)| *named);
    found.into_iter().filter(|(_, named)| *named || !any_named).map(|(phrase, _)| phrase).take(ENTITIES).collect()
}

/// Returns the normal form of the question, as [`phrase::normalize`](crate::graph::phrase::normalize) defines it, and
/// its words.
fn words(question: &str) -> (String, Vec<QuestionWord>) {
    let mut normal: String = String::new();
    let mut words: Vec<QuestionWord> = Vec::new();
    let mut within = false;
    for c in question.chars() {
        for lower in c.to_lowercase() {
            let kept = lower.is_ascii_alphanumeric();
            let at = normal.len();
            normal.push(if kept { lower } else { ' ' });
            if kept && !within {
                words.push(QuestionWord { start: at, end: at, named: c.is_uppercase(), filling: false });
            }
            within = kept;
            if let (true, Some(word)) = (kept, words.last_mut()) {
                word.end = at + 1;
                word.named |= c.is_ascii_digit();
            }
        }
    }
    for word in &mut words {
        word.filling = FILLING.contains(&&normal[word.start..word.end]);
        word.named &= !word.filling;
    }
    (normal, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked_among(question: &str, phrases: &[&str]) -> Vec<String> {
        linked(question, &|phrase| phrases.contains(&phrase))
    }

    #[test]
    fn the_longest_known_phrases_are_taken_in_order() {
        let known = ["new york", "new york city", "york", "city", "1931", "the who", "who", "mayor"];
        assert_eq!(linked_among("Who was mayor of New York City in 1931?", &known), ["new york city", "1931"]);
        assert_eq!(linked_among("New, York and York", &known), ["new york", "york"]);
        assert_eq!(linked_among("york york", &known), ["york"]);
    }

    #[test]
    fn without_a_name_common_words_will_do_but_never_filling_ones() {
        let known = ["mayor", "city", "who", "it", "of the", "i"];
        assert_eq!(linked_among("who is the mayor of the city", &known), ["mayor", "city"]);
        assert_eq!(linked_among("Who is it?", &known), [""; 0]);
    }

    #[test]
    fn so_many_are_given_and_no_more() {
        let question: String = (0..100_000).map(|number| format!("Name{number} ")).collect();
        let found = linked(&question, &|phrase| !phrase.contains(' '));
        let expected: Vec<String> = (0..ENTITIES).map(|number| format!("name{number}")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn phrases_are_found_in_their_normal_form() {
        assert_eq!(linked_among("Where is the Caf\u{e9} M\u{fc}ller?", &["caf  m ller"]), ["caf  m ller"]);
        assert_eq!(linked_among("Who led the U.S.A.?", &["u s a"]), ["u s a"]);
        assert_eq!(linked_among("\u{130}zmir?", &["zmir"]), ["zmir"]);
        assert_eq!(linked_among("", &["x"]), [""; 0]);
    }
}
