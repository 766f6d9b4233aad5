//! Phrases that a question names literally, as further starts of a walk.
//!
//! Facts are linked by vectors, which often miss an entity that stands in the question word by word. The phrase table
//! is exact, so each name costs a few look-ups.

use super::seeds::Seed;
use crate::graph::{Graph, phrase};

/// Weight of a named phrase before division by the number of its passages: the scaled score of the fact most similar to
/// the question. Chosen on the training questions of MuSiQue and 2WikiMultiHopQA, where 0.5 to 2 differ little.
const NAMED: f64 = 1.0;

/// Maximum number of words in a name.
const MOST_WORDS: usize = 8;

/// Maximum number of words of a question that are searched for names.
const MOST_SEARCHED: usize = 64;

/// Smallest length of a name of one word, in bytes: shorter ones are initials and articles.
const LEAST: usize = 4;

/// Adds the phrases that `question` names, or raises the weight of those that are among the seeds already.
pub(crate) fn add_named(graph: &Graph, question: &str, seeds: &mut Vec<Seed>) {
    for phrase in named(question, |name| graph.phrase_id(name)) {
        let passages = graph.passages_of(phrase).len();
        let weight = NAMED / passages.max(1) as f64;
        match seeds.iter_mut().find(|seed| seed.phrase == phrase) {
            Some(seed) => seed.weight = seed.weight.max(weight),
            None => seeds.push(Seed { phrase, passages, linking: NAMED, weight }),
        }
    }
}

/// Returns the known names in a question, longest first. No two of them share a word.
pub(crate) fn named<T: PartialEq>(question: &str, known: impl Fn(&str) -> Option<T>) -> Vec<T> {
    let words = words(question);
    let mut taken = vec![false; words.len()];
    let mut found = Vec::new();
    for count in (1..=MOST_WORDS.min(words.len())).rev() {
        for first in 0..=words.len() - count {
            if taken[first..first + count].contains(&true) {
                continue;
            }
            let text = &question[words[first].0..words[first + count - 1].1];
            let Some(name) = name(text, first == 0) else { continue };
            let Some(phrase) = known(&name) else { continue };
            taken[first..first + count].fill(true);
            if !found.contains(&phrase) {
                found.push(phrase);
            }
        }
    }
    found
}

/// Returns the normal form of `text` if it can be a name: it contains a capital or a digit, and has several words or at
/// least [`LEAST`] bytes. If the text `begins` the question, its first character does not count.
fn name(text: &str, begins: bool) -> Option<String> {
    let marked = |c: char| c.is_uppercase() || c.is_numeric();
    if !text.chars().skip(usize::from(begins)).any(marked) {
        return None;
    }
    let name = phrase::normalize(text);
    // Counts words of the normal form, which drops words in other scripts.
    let words = name.split_ascii_whitespace().count();
    (words > 1 || name.len() >= LEAST).then_some(name)
}

/// Returns the byte ranges of the first [`MOST_SEARCHED`] words (runs of letters and digits).
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (start, c.is_alphanumeric()) {
            (None, true) => start = Some(at),
            (Some(first), false) => {
                words.push((first, at));
                start = None;
            }
            _ => {}
        }
    }
    words.truncate(MOST_SEARCHED);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(question: &str, names: &[&str]) -> Vec<String> {
        named(question, |name| names.contains(&name).then(|| name.to_owned()))
    }

    #[test]
    fn the_longest_names_are_found_once() {
        let names = ["get low", "low", "dj snake", "snake", "film", "1984"];
        assert_eq!(found("Who sings Get Low, the song of DJ Snake?", &names), ["get low", "dj snake"]);
        assert_eq!(found("Is Snake a snake, or Snake?", &names), ["snake"]);
        assert_eq!(found("Who read 1984 in 1984?", &names), ["1984"]);
        assert_eq!(found("", &names), [""; 0]);
    }

    #[test]
    fn words_that_are_no_names_are_left_out() {
        let names = ["film", "which film", "the", "who", "in", "élan"];
        assert_eq!(found("Which film is the one? Film who In", &names), ["film"]);
        assert_eq!(found("Film!", &names), [""; 0]);
        // Phrases keep ASCII alone.
        assert_eq!(found("What is Élan?", &[" lan", "lan"]), [""; 0]);
        assert_eq!(found("Где Лев Толстой?", &["", " "]), [""; 0]);
        assert_eq!(found("Где Лев Толстой 7, Paris?", &["", "7", "paris"]), ["paris"]);
    }

    #[test]
    fn a_long_question_is_searched_at_its_beginning() {
        let question = format!("{} Paris", "word ".repeat(63));
        assert_eq!(found(&question, &["paris"]), ["paris"]);
        assert_eq!(found(&format!("word {question}"), &["paris"]), [""; 0]);
    }
}
