//! String similarity: `difflib`.
//!
//! Ratcliff and Metzener's gestalt matching, as the documentation and source of CPython's `difflib` define it,
//! including its heuristic for popular characters.

use std::collections::HashMap;

/// Minimum length of the second string for the heuristic: from here on, characters that make up more than a hundredth
/// of that string start no match.
const POPULAR_FROM: usize = 200;

/// Computes `difflib.get_close_matches(word, possibilities, n=1, cutoff=0)`: the index of the possibility most similar
/// to `word`. Ties go to the one that sorts last, and among equal strings to the first. `None` if there is no
/// possibility.
pub(crate) fn closest(word: &str, possibilities: &[String]) -> Option<usize> {
    let matcher = SequenceMatcher::new(word);
    let mut best: Option<(f64, usize)> = None;
    for (place, possibility) in possibilities.iter().enumerate() {
        let ratio = matcher.ratio(possibility);
        let better = best.is_none_or(|(most, held)| {
            // UTF-8 sorts in code point order, as Python does.
            ratio > most || (ratio == most && *possibility > possibilities[held])
        });
        if better {
            best = Some((ratio, place));
        }
    }
    best.map(|(_, place)| place)
}

/// Python's `SequenceMatcher`, with its second sequence set.
struct SequenceMatcher {
    b: Vec<char>,
    /// Positions of each character in `b`, without popular characters.
    places: HashMap<char, Vec<usize>>,
}

impl SequenceMatcher {
    fn new(b: &str) -> SequenceMatcher {
        let b: Vec<char> = b.chars().collect();
        let mut places: HashMap<char, Vec<usize>> = HashMap::new();
        for (place, &c) in b.iter().enumerate() {
            places.entry(c).or_default().push(place);
        }
        if b.len() >= POPULAR_FROM {
            // CPython's own formula for `autojunk`.
            let most = b.len() / 100 + 1;
            places.retain(|_, places| places.len() <= most);
        }
        SequenceMatcher { b, places }
    }

    /// Twice the number of matching characters, divided by the length of both strings; 1 for two empty strings.
    fn ratio(&self, a: &str) -> f64 {
        let a: Vec<char> = a.chars().collect();
        let length = a.len() + self.b.len();
        if length == 0 { 1.0 } else { 2.0 * self.matches(&a) as f64 / length as f64 }
    }

    /// Sum of the lengths of all matching blocks.
    fn matches(&self, a: &[char]) -> usize {
        let mut sum = 0;
        let mut open = vec![(0, a.len(), 0, self.b.len())];
        while let Some((a_low, a_high, b_low, b_high)) = open.pop() {
            let (i, j, size) = self.longest(a, a_low, a_high, b_low, b_high);
            if size == 0 {
                continue;
            }
            sum += size;
            if a_low < i && b_low < j {
                open.push((a_low, i, b_low, j));
            }
            if i + size < a_high && j + size < b_high {
                open.push((i + size, a_high, j + size, b_high));
            }
        }
        sum
    }

    /// Python's `find_longest_match`: the longest common run of the two ranges that begins first in `a`, then in `b`.
    /// Popular characters only extend a match.
    fn longest(&self, a: &[char], a_low: usize, a_high: usize, b_low: usize, b_high: usize) -> (usize, usize, usize) {
        let mut start_a = a_low;
        let mut start_b = b_low;
        let mut size = 0;
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for (i, c) in a.iter().enumerate().take(a_high).skip(a_low) {
            let mut next = HashMap::new();
            for &j in self.places.get(c).into_iter().flatten().filter(|&&j| (b_low..b_high).contains(&j)) {
                let length = 1 + j.checked_sub(1).and_then(|before| lengths.get(&before)).copied().unwrap_or(0);
                next.insert(j, length);
                if length > size {
                    (start_a, start_b, size) = (i + 1 - length, j + 1 - length, length);
                }
            }
            lengths = next;
        }
        while start_a > a_low && start_b > b_low && a[start_a - 1] == self.b[start_b - 1] {
            (start_a, start_b, size) = (start_a - 1, start_b - 1, size + 1);
        }
        while start_a + size < a_high && start_b + size < b_high && a[start_a + size] == self.b[start_b + size] {
            size += 1;
        }
        (start_a, start_b, size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn ratio(a: &str, b: &str) -> f64 {
        SequenceMatcher::new(b).ratio(a)
    }
    /// Expected values come from CPython 3.11.
    #[test]
    fn ratios_are_those_of_difflib() {
        for (a, b, expected) in [
            ("", "", 1.0),
            ("a", "", 0.0),
            ("abcd", "bcde", 0.75),
            ("private", "primate", 0.857_142_857_142_857_1),
            ("tide", "diet", 0.25),
            ("diet", "tide", 0.5),
            ("北京大学", "北大", 0.666_666_666_666_666_6),
        ] {
            assert_eq!(ratio(a, b), expected, "{a:?} {b:?}");
        }
    }

    /// Expected values come from CPython 3.11, for strings long enough to have popular characters.
    #[test]
    fn popular_characters_start_no_match() {
        let long: String = (0..120_u8).map(|i| format!("{}{i}", char::from(b'a' + i % 26))).collect();
        let backwards: String = long.chars().rev().collect();
        let turned = format!("{}{}", &long[50..150], &long[..100]);
        assert_eq!(ratio("abc1d2e3f10 g11", &long), 0.005_194_805_194_805_195);
        assert_eq!(ratio(&backwards, &long), 0.016_216_216_216_216_217);
        assert_eq!(ratio(&turned, &long), 0.385_964_912_280_701_73);
    }

    #[test]
    fn the_last_of_equally_like_ones_is_closest() {
        let list = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect::<Vec<_>>();
        assert_eq!(closest("ab", &list(&["ax", "az", "ay", "az"])), Some(1));
        assert_eq!(closest("", &list(&["b", "c", "a"])), Some(1));
        assert_eq!(closest("x", &[]), None);
    }
}
