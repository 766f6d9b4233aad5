//! Names in a question, found by trying every run of its words.

/// Returns the normal form of a phrase: ASCII letters in lower case, digits and spaces.
pub fn normal(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { ' ' };
    text.to_lowercase().chars().map(plain).collect::<String>().trim_matches(' ').to_owned()
}

/// Returns the distinct normal forms of the known names in a question, longest names first. No two share a word.
pub fn names(question: &str, known: impl Fn(&str) -> bool) -> Vec<String> {
    let words = words(question);
    let runs = (1..=8).rev().flat_map(|count| (0..words.len()).map(move |first| (first, first + count)));
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (first, end) in runs.filter(|(_, end)| *end <= words.len()) {
        let free = taken.iter().all(|other| end <= other.0 || other.1 <= first);
        let text = &question[words[first].0..words[end - 1].1];
        let name = normal(text);
        // The capital with which a question begins marks no name.
        let marked =
            text.chars().enumerate().any(|(at, c)| (c.is_uppercase() || c.is_numeric()) && (first, at) != (0, 0));
        let long = name.split_ascii_whitespace().count() > 1 || name.len() >= 4;
        if free && marked && long && known(&name) {
            taken.push((first, end));
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Byte ranges of the first 64 runs of letters and digits.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    for (at, c) in text.char_indices().filter(|(_, c)| c.is_alphanumeric()) {
        match words.last_mut() {
            Some((_, end)) if *end == at => *end += c.len_utf8(),
            _ => words.push((at, at + c.len_utf8())),
        }
    }
    words.truncate(64);
    words
}
