//! Where sentences end.

use super::lexicon::{self, WordTag};
use super::token::WordToken;

/// Tokens after which a bracket that was never closed no longer holds a sentence together.
const LONGEST_ASIDE: usize = 60;

/// The sentences of a text, each without the mark that ends it. None is empty.
pub(super) fn sentences<'t, 'a>(tokens: &'t [WordToken<'a>]) -> impl Iterator<Item = &'t [WordToken<'a>]> {
    let mut rest = tokens;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (length, skipped) = first(rest);
            let sentence = &rest[..length];
            rest = &rest[length + skipped..];
            if !sentence.is_empty() {
                return Some(sentence);
            }
        }
        None
    })
}

/// How many tokens the first sentence has, and how many after it end it.
fn first(tokens: &[WordToken<'_>]) -> (usize, usize) {
    // `run` is the end of the run of marks last looked at: each run is counted once.
    let mut opened = None;
    let mut run = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.tag {
            WordTag::Open => opened = Some(at),
            WordTag::Close => opened = None,
            WordTag::Stop if opened.is_none_or(|open| at - open > LONGEST_ASIDE) => {
                if at >= run {
                    let ends = |token: &&WordToken<'_>| matches!(token.tag, WordTag::Stop | WordTag::Unquote);
                    run = at + tokens[at..].iter().take_while(ends).count();
                }
                let marks = run - at;
                let next = tokens.get(at + marks);
                // `Are You Being Served? was` goes on, and so does a title that ends in a mark.
                if next.is_none_or(|next| begins(next) || next.tag == WordTag::Quote || token.text == ".") {
                    let closing = usize::from(tokens.get(at + 1).is_some_and(|next| next.tag == WordTag::Unquote));
                    return if closing == 1 { (at + 2, marks.saturating_sub(2)) } else { (at, marks) };
                }
            }
            _ if ends_by_itself(token) && tokens.get(at + 1).is_some_and(is_opening) => return (at + 1, 0),
            _ => {}
        }
    }
    (tokens.len(), 0)
}

fn begins(token: &WordToken<'_>) -> bool {
    token.text.starts_with(|first: char| !first.is_lowercase())
}

/// Abbreviations that often stand last in a sentence.
fn ends_by_itself(token: &WordToken<'_>) -> bool {
    // `World War I.`
    matches!(
        token.text,
        "I." | "Jr." | "Sr." | "Inc." | "Ltd." | "Co." | "Corp." | "Bros." | "etc." | "U.S." | "U.K." | "D.C."
    )
}

/// A word of a closed class with a capital, as only a sentence begins.
fn is_opening(token: &WordToken<'_>) -> bool {
    token.text.starts_with(char::is_uppercase) && lexicon::closed(token.text).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::clean::clean;
    use super::super::token::tokens;
    use super::*;

    fn ends(text: &str) -> Vec<String> {
        let text = clean(text);
        let tokens = tokens(&text);
        sentences(&tokens).filter_map(|sentence| sentence.last()).map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn only_ends_of_sentences_end_them() {
        assert_eq!(ends("J. R. Smith of St. Louis, Jr. paid $1.5 to Dr. Who. He left."), ["Who", "left"]);
        assert_eq!(ends("He moved to the U.S. The end."), ["U.S.", "end"]);
        assert_eq!(
            ends("It (a. b. c.) ended. And \"Who?\" was sung. \"Get This.\" Then"),
            ["ended", "sung", "”", "Then"]
        );
        assert_eq!(ends("... ! "), [""; 0]);
    }
}
