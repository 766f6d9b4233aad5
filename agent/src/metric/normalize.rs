//! Normal forms of answers, for comparison.

/// Normalizes like SQuAD: lower case, no ASCII punctuation, no English articles, single spaces (Rajpurkar et al. 2016;
/// `normalize_answer` of HippoRAG, Search-R1, RouteRAG and Graph-R1). Punctuation is deleted, so `U.S.` becomes `us`
/// and `well-known` becomes `wellknown`; characters outside ASCII stay.
///
/// Words are those of Python's `\w`, except for combining vowel signs of some scripts next to an article.
pub fn normalize(text: &str) -> String {
    let kept: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    words(&without_articles(&kept)).collect::<Vec<_>>().join(" ")
}

/// Normalizes an answer like R1-Searcher and GraphRAG-R1 (`normalize_answer` there): as [`spaced`], but `True` and
/// `False` become `yes` and `no` if they are the whole text.
pub fn spaced_answer(text: &str) -> String {
    spaced(match text {
        "True" => "yes",
        "False" => "no",
        text => text,
    })
}

/// Normalizes like [`normalize`], but each punctuation mark becomes a space, including three quotation marks outside
/// ASCII.
pub fn spaced(text: &str) -> String {
    let spaced = |c: char| if c.is_ascii_punctuation() || "‘’´".contains(c) { ' ' } else { c };
    let kept: String = text.to_lowercase().chars().map(spaced).collect();
    words(&without_articles(&kept)).collect::<Vec<_>>().join(" ")
}

/// Strips a text like Python's `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Splits a text like Python's `str.split()`: at white space as defined by [`char::is_whitespace`] and at the four
/// ASCII separators.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// Returns `true` if Python's `str.isspace()` holds for the character.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Replaces every word `a`, `an` and `the` of a lower-case text by a space.
fn without_articles(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        kept.push_str(if matches!(word, "a" | "an" | "the") { " " } else { word });
        let begin = after.find(is_word).unwrap_or(after.len());
        kept.push_str(&after[..begin]);
        rest = &after[begin..];
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn signs_and_articles_go() {
        for (text, squad, r1_searcher) in [
            ("The U.S. of A!", "us of", "u s of"),
            ("a-b an\u{a0}the\u{1f}x", "ab x", "b x"),
            ("“The” Ärger’s", "“ ” ärger’s", "“ ” ärger s"),
            ("True", "true", "yes"),
            ("True story", "true story", "true story"),
            ("theatre banana", "theatre banana", "theatre banana"),
        ] {
            assert_eq!((normalize(text).as_str(), spaced_answer(text).as_str()), (squad, r1_searcher), "{text:?}");
        }
        assert_eq!(["True", "False", "a-b"].map(spaced), ["true", "false", "b"]);
    }

    proptest! {
        #[test]
        fn what_is_normal_has_single_spaces_and_no_articles(text in "[aA the,.n\u{e9}_\u{2019}\u{1c}-]{0,30}") {
            for normal in [normalize(&text), spaced_answer(&text)] {
                let parts: Vec<&str> = normal.split(' ').collect();
                prop_assert!(normal.is_empty() || parts.iter().all(|part| !part.is_empty()), "{normal:?}");
                prop_assert!(parts.iter().all(|part| !["a", "an", "the"].contains(part)), "{normal:?}");
                prop_assert!(!normal.contains(|c: char| c.is_ascii_punctuation()));
            }
        }
    }
}
